"""What the rules of diagnosis go by, read once from the files of a run directory; the rows are not kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ledgers.columns import Table
from ledgers.metrics import (
    classify,
    decode_ns,
    e2e_ns,
    later_tokens,
    leave_ns,
    origin_ns,
    queue_delay_ns,
    tpot_ns,
    ttft_ns,
)
from ledgers.rows import FAILURES, RequestRow
from ledgers.rundir import Run, RunConfig, RunInfo
from ledgers.settings import Hardware, SchedulerSettings, Slo
from ledgers.summary import kept_ns
from ledgers.units import NS_PER_MS, to_ns
from ledgers.work import Asked, Work
from reports.diagnosis_waits import Admitted, Waits, waits
from reports.requests_text import request_labels

NO_CLASS = "(no class)"
COMPLETED = (
    "id",
    "class",
    "origin",
    "prompt",
    "tokens",
    "cached",
    "ttft",
    "queue",
    "prefill",
    "first_turn",
    "tpot",
    "e2e",
)
PARTS = {"queue": "queue", "prefill": "prefill", "first_turn": "first decode turn"}


@dataclass
class Facts:
    """One run: `completed` are the requests that did so in the window, in order of arrival."""

    name: str
    info: RunInfo
    summary: dict[str, Any]
    completed: Table = field(default_factory=lambda: Table(COMPLETED))
    misses: Counter[tuple[str, str]] = field(default_factory=Counter)  # by class, and bound or outcome
    failed: Counter[tuple[str, str | None]] = field(default_factory=Counter)  # by outcome and phase
    demands: dict[str, Asked] = field(default_factory=dict)  # of what was offered, by resource
    waits: Waits | None = None

    @property
    def n(self) -> int:
        return len(self.completed)

    @property
    def measured(self) -> bool:
        return self.info.kind == "measured"

    @property
    def slo(self) -> Slo:
        return self.info.config.slo

    @property
    def hardware(self) -> Hardware | None:
        return self.info.config.hardware

    def known(self, *names: str) -> list[tuple[Any, ...]]:
        """The values of these columns, of the requests that have all of them."""
        values = zip(*(self.completed[name] for name in names), strict=True)
        return [each for each in values if None not in each]

    def mean_ms(self, name: str) -> float | None:
        """A mean of a column in ns, over those that have it."""
        return mean([value / NS_PER_MS for (value,) in self.known(name)])

    @property
    def rate(self) -> float | None:
        """λ: requests offered per s, from the first arrival to the last, retries aside."""
        offered = self.summary["scheduled"] - self.summary["not_sent"] - self.summary["retries"]
        span = self.summary["arrivals_s"]
        return (offered - 1) / span if span and offered > 1 else None


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def facts_of(run: Run, summary: dict[str, Any]) -> Facts:
    """All that the rules need, in one pass over the rows and one over the ticks."""
    facts = Facts(str(run.path), run.info, summary)
    settings = _settings(run.info.config)
    work = Work(settings.hardware, settings.policy) if settings else Work(None, None)
    facts.demands = work.asked
    begin_ns, last_ns, t_obs_ns = kept_ns(summary)
    admitted = Admitted()
    labels = request_labels(run.rows()) if run.info.kind == "served" else {}
    for row in run.rows():
        row.id = labels.get(row.id, row.id)
        admitted.add(row)
        if begin_ns <= (origin_ns(row) or 0) <= last_ns:
            _add(facts, row, work, t_obs_ns)
    order = facts.completed["origin"]
    facts.completed.take(sorted(range(facts.n), key=lambda i: order[i] or 0))
    if settings:
        facts.waits = waits(run.ticks(), settings, admitted)
    return facts


def _add(facts: Facts, row: RequestRow, work: Work, t_obs_ns: int) -> None:
    """What a request that counts adds."""
    outcome = classify(row.outcome, leave_ns(row), t_obs_ns)
    if outcome == "completed":
        facts.completed.append(_record(row))
    elif outcome in FAILURES:
        facts.failed[outcome, row.phase] += 1
    if facts.slo.given:
        bounds = facts.slo.bounds_ns()
        facts.misses.update((row.class_ or NO_CLASS, why) for why in _missed(row, bounds, t_obs_ns))
    if row.retry_of is None:
        work.add(row)


def _record(row: RequestRow) -> tuple[Any, ...]:
    tpot = tpot_ns(row)
    return (
        row.id,
        row.class_,
        origin_ns(row),
        row.prompt_tokens if row.usage_prompt_tokens is None else row.usage_prompt_tokens,
        row.tokens,
        row.cached_tokens,
        ttft_ns(row),
        *_parts(row),
        None if tpot is None else round(tpot),
        e2e_ns(row),
    )


def _parts(row: RequestRow) -> tuple[int | None, int | None, int | None]:
    """Queue, prefill, and the wait for the first decode turn, which add up to TTFT; None of a client's."""
    start, end, first = row.prefill_start_ns, row.prefill_end_ns, row.first_token_ns
    if start is None or end is None or first is None:
        return None, None, None
    return queue_delay_ns(row), end - start, first - end


def _missed(row: RequestRow, bounds: Sequence[int | None], t_obs_ns: int) -> Iterable[str]:
    """The bounds that a completed request exceeds, or what became of it; nothing where it met them all."""
    outcome = classify(row.outcome, leave_ns(row), t_obs_ns)
    if outcome != "completed":
        return ["failed" if outcome in FAILURES else str(outcome)]
    ttft, tpot, e2e = bounds
    over = {"TTFT": _over(ttft_ns(row), ttft), "TPOT": False, "E2E": _over(e2e_ns(row), e2e)}
    if tpot is not None:
        later, decode = later_tokens(row), decode_ns(row)
        over["TPOT"] = later is None or (later >= 1 and _over(decode, tpot * later))
    return [name for name, missed in over.items() if missed]


def _over(value: int | None, bound: int | None) -> bool:
    return bound is not None and (value is None or value > bound)


def _settings(config: RunConfig) -> SchedulerSettings | None:
    """What the scheduler of a simulated or served run was set up with."""
    if config.hardware is None or config.policy is None:
        return None
    given = {"max_batch": config.max_batch, "prefill_chunk": config.prefill_chunk, "traffic": config.traffic}
    known: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if config.max_wait_s is not None:
        known["max_wait_ns"] = to_ns(config.max_wait_s)
    return SchedulerSettings(policy=config.policy, hardware=config.hardware, **known)
