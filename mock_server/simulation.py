"""A simulation with its files: from a planned ledger to a complete run directory."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ledgers.histograms import IntervalLog
from ledgers.ledger import Ledger
from ledgers.metrics import completed_by, e2e_ns, gaps_ns, ttft_ns, window_end_ns
from ledgers.rows import RequestRow
from ledgers.rundir import RunWriter
from ledgers.settings import SchedulerSettings
from ledgers.summary import write_summary
from ledgers.tick_runs import TickLines
from mock_server.leaps import LEAPERS
from mock_server.leaps.driver import Ended, leap
from mock_server.leaps.flight import Flight
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
    results = _Results(writer, ledger, settings.hardware.tick_ns, record_tokens)
    if ticks:
        writer.open_files("ticks.jsonl")
    tick_lines = TickLines(lambda lines: writer.add_lines("ticks.jsonl", lines))
    if record_events or settings.policy not in LEAPERS:
        ended = _tick_by_tick(writer, ledger, settings, cancels, ticks, record_events)
    else:
        leaper = LEAPERS[settings.policy](settings)
        on_ticks = tick_lines.add if ticks else None
        ended = leap(settings, leaper, ledger.rows, cancels=cancels, on_ticks=on_ticks)
    with noted_interrupts() as interrupted:
        for row, flight in ended:
            results.add(row, flight)
            if interrupted:
                break
        tick_lines.flush()
    writer.add_lines("histograms.hlog", results.histograms())
    writer.close(complete=not interrupted, interrupted=bool(interrupted))
    write_summary(writer.path)
    if interrupted:
        raise KeyboardInterrupt


def _tick_by_tick(
    writer: RunWriter,
    ledger: Ledger,
    settings: SchedulerSettings,
    cancels: Cancels | None,
    ticks: bool,
    record_events: bool,
) -> Iterator[Ended]:
    """The plain form, for the events of each tick, and for policies that cannot leap."""
    rows = simulate(
        make_scheduler(settings),
        ledger.rows,
        cancels=cancels,
        on_tick=writer.add_tick if ticks else None,
        record_events=record_events,
    )
    return (Ended(row, None) for row in rows)


class _Results:
    """Writes rows as requests end, and adds them to the histograms."""

    def __init__(self, writer: RunWriter, ledger: Ledger, tick_ns: int, record_tokens: bool) -> None:
        self._writer = writer
        self._tick_ns = tick_ns
        self._record_tokens = record_tokens
        self._t_obs_ns = window_end_ns(ledger.rows[-1].arrival_ns or 0, writer.info.config.tail_s)
        self._log = IntervalLog()
        self._gaps: Counter[int] = Counter()
        self._end_ns = 0

    def add(self, row: RequestRow, flight: Flight | None) -> None:
        if completed_by(row, self._t_obs_ns):
            for tag, value_ns in (("ttft", ttft_ns(row)), ("e2e", e2e_ns(row))):
                if value_ns is not None:
                    self._log.record(tag, value_ns)
            self._gaps.update(flight.gaps_ns(self._tick_ns) if flight else gaps_ns(row))
        if not self._record_tokens:
            row.token_ns = None
        elif flight:
            row.token_ns = [tick * self._tick_ns for tick in flight.token_ticks()]
        self._end_ns = row.end_ns or self._end_ns
        self._writer.add(row)

    def histograms(self) -> bytes:
        """The lines of their log."""
        self._log["itl"].record_counts(self._gaps)
        return self._log.lines(0, self._end_ns)


@contextmanager
def noted_interrupts() -> Iterator[list[int]]:
    """Ctrl-C is noted, and takes effect between two rows rather than in the middle of one."""
    noted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)
