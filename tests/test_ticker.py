"""When ticks are run: by the alarm, between two reads, and not at all after one has failed."""

from __future__ import annotations

import asyncio
import time
from typing import cast

from mock_server.engine import Engine
from mock_server.ticker import Ticker

MS = 1_000_000


class Ticking:
    """Stands for an engine with one tick after another, each `tick_ns` after the one before."""

    def __init__(self, due_ns: int, tick_ns: int = 3600 * 1000 * MS) -> None:
        self.due_ns = due_ns
        self.tick_ns = tick_ns
        self.runs = 0
        self.broken: Exception | None = None

    def run_due(self) -> None:
        if self.broken:
            raise self.broken
        self.runs += 1
        self.due_ns += self.tick_ns


def ticker(engine: Ticking) -> tuple[Ticker, list[Exception]]:
    failures: list[Exception] = []
    return Ticker(cast(Engine, engine), failures.append), failures


async def test_a_tick_that_came_due_is_run_between_two_reads() -> None:
    """Once, though the loop has had no turn in which the alarm could ring."""
    engine = Ticking(time.monotonic_ns() + 20 * MS)
    ticks, _ = ticker(engine)
    ticks.arm()
    ticks.check()
    assert engine.runs == 0
    time.sleep(0.03)
    ticks.check()
    ticks.check()
    assert engine.runs == 1
    await asyncio.sleep(0.02)
    assert engine.runs == 1
    ticks.stop()


async def test_reads_are_not_held_up_by_ticks_that_were_late_before_them() -> None:
    """An engine a second behind is left to the alarm, however often the loop reads meanwhile."""
    engine = Ticking(time.monotonic_ns() - 1000 * MS, tick_ns=MS)
    ticks, _ = ticker(engine)
    ticks.arm()
    for _ in range(100):
        ticks.check()
    assert engine.runs == 0
    await asyncio.sleep(0.02)
    assert engine.runs >= 1
    ticks.stop()


async def test_a_tick_that_fails_between_two_reads_is_not_passed_over() -> None:
    """Who reads from a client would swallow the error, and the server would answer and never tick again."""
    engine = Ticking(time.monotonic_ns() + MS)
    engine.broken = ZeroDivisionError()
    ticks, failures = ticker(engine)
    ticks.arm()
    time.sleep(0.005)
    ticks.check()
    assert failures == [engine.broken]
    ticks.arm()
    await asyncio.sleep(0.02)
    assert failures == [engine.broken]


async def test_a_tick_that_fails_by_the_alarm_is_told_too() -> None:
    """In the same words, and once."""
    engine = Ticking(time.monotonic_ns() + MS)
    engine.broken = ZeroDivisionError()
    ticks, failures = ticker(engine)
    ticks.arm()
    await asyncio.sleep(0.05)
    assert failures == [engine.broken]
