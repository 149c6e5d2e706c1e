"""Runs for the tests of comparisons: simulated with other seeds, or written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from ledgers.rows import RequestRow
from ledgers.rundir import LedgerInfo, RunConfig, RunInfo, settings_config
from ledgers.settings import Hardware, SchedulerSettings, Slo, WindowSettings
from mock_server.policies import make_scheduler
from mock_server.simulate import simulate
from reports.compare_samples import Sample, sample_of

S, MS = 1_000_000_000, 1_000_000
HARDWARE = Hardware(tick_s=0.05, prefill_tokens_per_tick=200, decode_slots=8, kv_budget_tokens=100_000)
SLO = Slo(ttft_ms=400, e2e_ms=2_000)
UNMARKED: dict[str, Any] = {
    "without_row": 0,
    "client": None,
    "censored": False,
    "complete": True,
    "itl_ms": None,
    "trim": None,
    "stability": None,
}


def ledger(seed: int, count: int = 1_000, rate: float = 4.5, longer: float = 1.0) -> list[RequestRow]:
    """Poisson arrivals, exponential outputs."""
    random, now = Random(seed), 0.0
    rows = []
    for i in range(count):
        rows.append(
            RequestRow(
                id=f"R{i}",
                prompt_tokens=random.randint(20, 200),
                output_tokens=1 + int(random.expovariate(1 / 20) * longer),
                arrival_ns=round(now * S),
            )
        )
        now += random.expovariate(rate)
    return rows


def simulated(rows: Sequence[RequestRow], sha256: str, **settings: Any) -> Sample:
    """A simulation that leaves no files."""
    scheduler = SchedulerSettings(**{"max_wait_ns": 0, "hardware": HARDWARE, **settings})
    info = RunInfo(
        kind="simulated",
        config=settings_config(RunConfig(), scheduler, WindowSettings(SLO, "drain")),
        ledger=LedgerInfo("test", sha256, len(rows)),
    )
    ended = list(simulate(make_scheduler(scheduler), rows))
    return sample(ended, info)


def sample(rows: Sequence[RequestRow], info: RunInfo) -> Sample:
    end_ns = max(row.end_ns or 0 for row in rows)
    return sample_of(Path("run"), info, {**UNMARKED, "window_s": end_ns / S}, rows)


def by_hand(
    e2e_ms: Sequence[float], sha256: str | None = "same", slo: Slo | None = None, **fields: Any
) -> Sample:
    """A measured run of these E2E, a request a second, the first token after half of it, then ten more."""
    info = RunInfo(
        kind="measured",
        config=RunConfig(slo=slo or Slo()),
        ledger=LedgerInfo("test", sha256, len(e2e_ms)),
    )
    return sample([answered(i, ms, **fields) for i, ms in enumerate(e2e_ms)], info)


def answered(i: int, e2e_ms: float, **fields: Any) -> RequestRow:
    arrival = i * S
    first, last = arrival + round(e2e_ms * MS / 2), arrival + round(e2e_ms * MS)
    known: dict[str, Any] = {
        "id": f"R{i}",
        "prompt_tokens": 10,
        "output_tokens": 11,
        "tokens": 11,
        "events": 11,
    }
    times = {"arrival_ns": arrival, "first_token_ns": first, "last_token_ns": last, "end_ns": last}
    return RequestRow(**{**known, **times, "outcome": "completed", "streamed": True, **fields})
