"""Runs for the tests of diagnosis: simulated with a cause planted in them, or written by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ledgers.ledger import Ledger
from ledgers.rows import RequestRow
from ledgers.rundir import Kind, LedgerInfo, Run, RunConfig, RunInfo, RunWriter, settings_config
from ledgers.settings import Hardware, SchedulerSettings, Slo, WindowSettings
from ledgers.summary import summarize, write_summary
from mock_server.simulation import write_simulation
from reports.diagnosis import Diagnosis, diagnose
from reports.diagnosis_facts import Facts, facts_of
from reports.findings import Figure, Finding

S = 1_000_000_000
MS = 1_000_000
ROOMY = Hardware(tick_s=0.1, prefill_tokens_per_tick=24, decode_slots=64, kv_budget_tokens=100_000)
AT_ONCE = {"policy": "continuous", "max_wait_ns": 0, "hardware": ROOMY}  # no wait for a batch
TOY = Path(__file__).parent / "data" / "golden"


def requests(
    count: int, gap_s: float, prompt: Sequence[int] = (8,), output: Sequence[int] = (4,)
) -> list[RequestRow]:
    """Evenly spaced; lengths in turns."""
    return [
        RequestRow(
            id=f"R{i + 1}",
            prompt_tokens=prompt[i % len(prompt)],
            output_tokens=output[i % len(output)],
            arrival_ns=round(i * gap_s * S),
        )
        for i in range(count)
    ]


def simulated(
    path: Path,
    rows: list[RequestRow],
    slo: Slo | None = None,
    tail_ns: Any = "drain",
    cancels: dict[str, int] | None = None,
    **settings: Any,
) -> Facts:
    """A simulation with its ticks, in a run directory."""
    scheduler = SchedulerSettings(**settings)
    window = WindowSettings(slo or Slo(), tail_ns)
    info = RunInfo(
        kind="simulated",
        config=settings_config(RunConfig(), scheduler, window),
        ledger=LedgerInfo("test", requests=len(rows)),
    )
    write_simulation(RunWriter(path, info), Ledger(name="test", rows=rows), scheduler, cancels=cancels)
    return read(path)


def by_hand(
    path: Path, rows: Iterable[RequestRow], config: RunConfig | None = None, kind: Kind = "measured"
) -> Facts:
    """A run without ticks, of these rows."""
    info = RunInfo(kind=kind, config=config or RunConfig(), ledger=LedgerInfo("test"))
    writer = RunWriter(path, info)
    for row in rows:
        writer.add(row)
    writer.close(complete=True)
    write_summary(path)
    return read(path)


def read(path: Path) -> Facts:
    run = Run(path)
    return facts_of(run, summarize(run))


def answered(
    i: int, ttft_ms: float = 100, tpot_ms: float = 20, tokens: int = 11, gap_s: float = 1.0, **fields: Any
) -> RequestRow:
    """A measured row that completed; the i-th, evenly spaced."""
    arrival = round(i * gap_s * S)
    first = arrival + round(ttft_ms * MS)
    last = first + round(tpot_ms * MS) * (tokens - 1)
    known: dict[str, Any] = {"id": f"R{i + 1}", "prompt_tokens": 100, "output_tokens": tokens}
    times: dict[str, Any] = {"arrival_ns": arrival, "sent_ns": arrival, "first_token_ns": first}
    ends: dict[str, Any] = {"last_token_ns": last, "end_ns": last, "tokens": tokens, "events": tokens}
    return RequestRow(**{**known, **times, **ends, "streamed": True, "outcome": "completed", **fields})


def staged(i: int, queue_ms: float, prefill_ms: float, turn_ms: float, **fields: Any) -> RequestRow:
    """A row as a scheduler leaves it, with these parts of TTFT."""
    row = answered(i, queue_ms + prefill_ms + turn_ms, **fields)
    row.received_ns = row.arrival_ns
    row.prefill_start_ns = (row.arrival_ns or 0) + round(queue_ms * MS)
    row.prefill_end_ns = row.prefill_start_ns + round(prefill_ms * MS)
    return row


def found(facts: Facts, rule: str, baseline: Facts | None = None) -> Finding:
    """What this rule found, which it must have."""
    diagnosis = diagnose(facts, baseline)
    return next(finding for finding in diagnosis.findings if finding.rule == rule)


def silent(facts: Facts, rule: str, baseline: Facts | None = None) -> bool:
    """Whether this rule looked, and found nothing."""
    return rule in diagnose(facts, baseline).nothing


def unable(facts: Facts, rule: str, baseline: Facts | None = None) -> str:
    """Why this rule could not look, which it must say."""
    diagnosis: Diagnosis = diagnose(facts, baseline)
    return diagnosis.unable[rule]


def value(finding: Finding, name: str) -> Any:
    return figure(finding, name).value


def figure(finding: Finding, name: str) -> Figure:
    """The evidence of this name: there is one."""
    (only,) = [figure for figure in finding.evidence if figure.name == name]
    return only
