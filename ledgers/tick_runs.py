"""Tick rows that differ only in their tick and in the tokens cached, as one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import NamedTuple

from ledgers.rows import TickRow

_LINES_AT_ONCE = 1_024  # a run can be as long as a trace is


class TickRun(NamedTuple):
    """The rows of `count` ticks from `first` on; after each of them `kv_growth` more tokens are cached."""

    first: int
    count: int
    queue: int
    prefill: int
    ready: int
    emitted: int
    kv_reserved: int
    kv_cached: int
    kv_growth: int = 0
    starved: int = 0

    @property
    def idle(self) -> bool:
        return not (self.queue or self.prefill or self.ready or self.emitted)

    def rows(self) -> Iterator[TickRow]:
        for i in range(self.count):
            yield TickRow(
                tick=self.first + i,
                queue=self.queue,
                prefill=self.prefill,
                ready=self.ready,
                emitted=self.emitted,
                kv_reserved=self.kv_reserved,
                kv_cached=self.kv_cached + i * self.kv_growth,
                starved=self.starved,
            )

    def lines(self) -> Iterator[str]:
        """The rows as they are encoded, with their newlines, many at a time."""
        # Written out, for an encoder would need a row for each tick: this takes a tenth of the time.
        middle = (
            f',"queue":{self.queue},"prefill":{self.prefill},"ready":{self.ready},"emitted":{self.emitted}'
            f',"kv_reserved":{self.kv_reserved},"kv_cached":'
        )
        end = f',"starved":{self.starved}}}\n' if self.starved else "}\n"
        if self.count == 1:
            yield f'{{"tick":{self.first}{middle}{self.kv_cached}{end}'
            return
        cached = count(self.kv_cached, self.kv_growth)
        for first in range(self.first, self.first + self.count, _LINES_AT_ONCE):
            ticks = range(first, min(first + _LINES_AT_ONCE, self.first + self.count))
            yield "".join(
                [f'{{"tick":{tick}{middle}{kv}{end}' for tick, kv in zip(ticks, cached, strict=False)]
            )


class TickTable:
    """Passes runs on through the last tick that was not idle, and fills in those that were leapt over."""

    def __init__(self, on_ticks: Callable[[TickRun], None]) -> None:
        self._on_ticks = on_ticks
        self._next = 0

    def add(self, run: TickRun) -> None:
        if run.idle:
            return
        if idle := run.first - self._next:
            self._on_ticks(TickRun(self._next, idle, 0, 0, 0, 0, 0, 0))
        self._on_ticks(run)
        self._next = run.first + run.count


class TickLines:
    """Appends the lines of runs to a file, so many at a time that the writes cost little."""

    def __init__(self, append: Callable[[bytes], None]) -> None:
        self._append = append
        self._lines: list[str] = []

    def add(self, run: TickRun) -> None:
        for lines in run.lines():
            self._lines.append(lines)
            if len(self._lines) >= _LINES_AT_ONCE:
                self.flush()

    def flush(self) -> None:
        if self._lines:
            self._append("".join(self._lines).encode())
            self._lines.clear()
