"""The lines that tell how a run fares where nothing is drawn."""

from __future__ import annotations

from pathlib import Path

from ledgers.health import HealthSample
from ledgers.rows import RequestRow
from ledgers.rundir import LedgerInfo, RunConfig, RunInfo, RunWriter
from loadgen.run_log import RunLog

MS, S = 1_000_000, 1_000_000_000


def log_of(path: Path) -> tuple[RunLog, list[str]]:
    info = RunInfo(kind="measured", config=RunConfig(), ledger=LedgerInfo(name="toy"))
    lines: list[str] = []
    return RunLog(RunWriter(path / "run", info), scheduled=100, show=lines.append), lines


def test_a_line_tells_rates_latency_and_whether_the_client_is_the_limit(tmp_path: Path) -> None:
    """In the first ten seconds 30 were due and 20 left, in the next ten 20 of 20; TTFT 100, 200, 300 ms."""
    log, lines = log_of(tmp_path)
    times = {"arrival_ns": 0, "sent_ns": 0, "last_token_ns": 900 * MS, "end_ns": 900 * MS}
    for number in (1, 2, 3):
        log.add(
            RequestRow(
                id=f"R{number}",
                prompt_tokens=9,
                output_tokens=2,
                outcome="completed",
                first_token_ns=number * 100 * MS,
                **times,
            )
        )
    log.add_health(HealthSample(t_ns=5 * S, asked=15, sent=10, in_flight=7))
    log.add_health(HealthSample(t_ns=10 * S, asked=30, sent=20, in_flight=17))
    log.add_health(HealthSample(t_ns=20 * S, asked=50, sent=41, retries=1, in_flight=37, cpu_share=0.97))
    assert lines == [
        "   10.0 s  sent 20/100, in flight 17, completed 3, asked 3.0/s, achieved 2.0/s, "
        "TTFT p50 so far 200.0 ms",
        "   20.0 s  sent 40/100, 1 again, in flight 37, completed 3, asked 2.0/s, achieved 2.0/s, "
        "TTFT p50 so far 200.0 ms, CLIENT-LIMITED in 1 of 3 seconds",
    ]


def test_a_line_says_nothing_that_is_not_known(tmp_path: Path) -> None:
    """A closed loop asks for no rate, and nothing has completed."""
    log, lines = log_of(tmp_path)
    log.add_health(HealthSample(t_ns=10 * S, sent=20, in_flight=20))
    assert lines == ["   10.0 s  sent 20/100, in flight 20, achieved 2.0/s"]
