"""A simulation with its files: from a planned ledger to a complete run directory."""

from __future__ import annotations

from ledgers.histograms import IntervalLog
from ledgers.ledger import Ledger
from ledgers.metrics import e2e_ns, ttft_ns
from ledgers.rundir import RunWriter
from ledgers.settings import SchedulerSettings
from ledgers.summary import write_summary
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
    """Simulate a ledger into a run directory, and complete it."""
    histograms = IntervalLog()
    end_ns = 0
    for row in simulate(
        make_scheduler(settings),
        ledger.rows,
        cancels=cancels,
        on_tick=writer.add_tick if ticks else lambda _: None,
        on_gap=lambda gap_ns: histograms.record("itl", gap_ns),
        record_tokens=record_tokens,
        record_events=record_events,
    ):
        writer.add(row)
        end_ns = row.end_ns or end_ns
        for tag, value_ns in (("ttft", ttft_ns(row)), ("e2e", e2e_ns(row))):
            if value_ns is not None:
                histograms.record(tag, value_ns)
    writer.add_lines("histograms.hlog", histograms.lines(0, end_ns))
    writer.close(complete=True)
    write_summary(writer.path)
