"""A simulation with its files: from a planned ledger to a complete run directory."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from ledgers.histograms import IntervalLog
from ledgers.ledger import Ledger
from ledgers.rundir import RunWriter
from ledgers.sessions import turns_before
from ledgers.settings import SchedulerSettings
from ledgers.summary import write_summary
from ledgers.window import Window
from mock_server.policies import make_scheduler
from mock_server.simulate import Cancels, simulate


def write_simulation(
    writer: RunWriter,
    ledger: Ledger,
    settings: SchedulerSettings,
    *,
    cancels: Cancels | None = None,
    ticks: bool = True,
    record_tokens: bool = False,
    record_events: bool = False,
) -> None:
    """Simulate a ledger into a run directory, and complete it; if interrupted, as far as it came."""
    histograms = IntervalLog()
    last_ns, waits = ledger.rows[-1].arrival_ns or 0, turns_before(ledger.rows) is not None
    window = Window(last_ns, writer.info.config.tail_s, grows=waits)
    if ticks:
        writer.open_files("ticks.jsonl")
    rows = simulate(
        make_scheduler(settings),
        ledger.rows,
        cancels=cancels,
        on_tick=writer.add_tick if ticks else None,
        record_events=record_events,
    )
    end_ns = 0
    with noted_interrupts() as interrupted:
        for row in rows:
            for values in window.values(row):
                for tag, values_ns in values.items():
                    histograms[tag].record_all(values_ns)
            end_ns = row.end_ns or end_ns
            row.token_ns = row.token_ns if record_tokens else None
            writer.add(row)
            if interrupted:
                break
    writer.add_lines("histograms.hlog", histograms.lines(0, end_ns))
    writer.close(complete=not interrupted, interrupted=bool(interrupted))
    write_summary(writer.path)
    if interrupted:
        raise KeyboardInterrupt


@contextmanager
def noted_interrupts() -> Iterator[list[int]]:
    """Ctrl-C is noted, and takes effect between two rows rather than in the middle of one."""
    noted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)
