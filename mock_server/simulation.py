"""A simulation with its files: from a planned ledger to a complete run directory."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from ledgers.histograms import IntervalLog
from ledgers.ledger import Ledger
from ledgers.metrics import e2e_ns, gaps_ns, ttft_ns
from ledgers.rows import RequestRow
from ledgers.rundir import RunWriter
from ledgers.sessions import turns_before
from ledgers.settings import SchedulerSettings
from ledgers.summary import write_summary
from ledgers.telling import Teller
from ledgers.tick_runs import TickLines
from ledgers.window import Window
from mock_server.leaps import LEAPERS
from mock_server.leaps.driver import Ended, leap
from mock_server.leaps.flight import Flight
from mock_server.policies import make_scheduler
from mock_server.simulate import Cancels, simulate

_TOLD_EVERY = 20_000  # requests, which take a good part of a second


def write_simulation(
    writer: RunWriter,
    ledger: Ledger,
    settings: SchedulerSettings,
    *,
    cancels: Cancels | None = None,
    ticks: bool = True,
    record_tokens: bool = False,
    record_events: bool = False,
    tell: Teller | None = None,
) -> None:
    """Simulate a ledger into a run directory, and complete it; if interrupted, as far as it came.

    `tell` hears how far it is, if that takes a while.
    """
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
        for number, (row, flight) in enumerate(ended, 1):
            results.add(row, flight)
            if interrupted:
                break
            if tell and number % _TOLD_EVERY == 0:
                tell.counted(number, len(ledger.rows), "requests simulated")
        tick_lines.flush()
    writer.add_lines("histograms.hlog", results.histograms())
    writer.close(complete=not interrupted, interrupted=bool(interrupted))
    if tell and len(ledger.rows) >= _TOLD_EVERY:
        tell.begun("writing the summary ...", 1, 1)
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
        last_ns, waits = ledger.rows[-1].arrival_ns or 0, turns_before(ledger.rows) is not None
        self._window: Window[_Values] = Window(last_ns, writer.info.config.tail_s, grows=waits)
        self._log = IntervalLog()
        self._gaps: Counter[int] = Counter()
        self._end_ns = 0

    def add(self, row: RequestRow, flight: Flight | None) -> None:
        for values in self._window.take(row, lambda: self._values(row, flight)):
            for tag, value_ns in (("ttft", values.ttft_ns), ("e2e", values.e2e_ns)):
                if value_ns is not None:
                    self._log.record(tag, value_ns)
            self._gaps.update(values.gaps_ns)
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

    def _values(self, row: RequestRow, flight: Flight | None) -> _Values:
        gaps = flight.gaps_ns(self._tick_ns) if flight else Counter(gaps_ns(row))
        return _Values(ttft_ns(row), e2e_ns(row), gaps)


class _Values(NamedTuple):
    """What histograms take in of a request; of gaps, how often each comes."""

    ttft_ns: int | None
    e2e_ns: int | None
    gaps_ns: Mapping[int, int]


@contextmanager
def noted_interrupts() -> Iterator[list[int]]:
    """Ctrl-C is noted, and takes effect between two rows rather than in the middle of one."""
    noted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)
