"""A simulation with its files: from a planned ledger to a complete run directory."""

from __future__ import annotations

from ledgers.histograms import IntervalLog
from ledgers.ledger import Ledger
from ledgers.metrics import completed_by, distributed_ns, window_end_ns
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
    t_obs_ns = window_end_ns(ledger.rows[-1].arrival_ns or 0, writer.info.config.tail_s)
    end_ns = 0
    if ticks:
        writer.open_files("ticks.jsonl")
    for row in simulate(
        make_scheduler(settings),
        ledger.rows,
        cancels=cancels,
        on_tick=writer.add_tick if ticks else None,
        record_events=record_events,
    ):
        if completed_by(row, t_obs_ns):
            for tag, values_ns in distributed_ns(row).items():
                histograms[tag].record_all(values_ns)
        end_ns = row.end_ns or end_ns
        row.token_ns = row.token_ns if record_tokens else None
        writer.add(row)
    writer.add_lines("histograms.hlog", histograms.lines(0, end_ns))
    writer.close(complete=True)
    write_summary(writer.path)
