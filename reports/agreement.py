"""Do the measured and the simulated ledger agree? Pure: ledgers in, an answer with its evidence out.

Three comparisons, each of one thing:
 (a) schedule: the served ticks against a simulation fed with what the server received. Equal for every
     request and every tick, whatever the load and the lateness.
 (b) time: the client's stamp against the server's write, token by token. Agrees if the 95th percentile of the
     distance is at most 5 ms, and both sides count the same requests as good but for those on the edge.
 (c) plan: the served ticks against a simulation of the planned ledger. Equal until the first input that the
     server got in another tick or another order than planned; what differs later is counted and listed.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from ledgers.distributions import Distribution, distribution
from ledgers.metrics import e2e_ns, ttft_ns
from ledgers.rows import Ticks
from reports.plan import Plan, compare_plan, moved_inputs
from reports.schedule import Schedule, compare_schedule
from reports.sides import Inputs
from reports.timing import Parts, Timing, compare_timing, token_distances, ttft_parts

Verdict = Literal["agree", "disagree", "inconclusive"]


class RequestAgreement(msgspec.Struct, kw_only=True):
    """One request on all sides. Times are measured − simulated from the plan, None where one is missing."""

    id: str
    schedule_equal: bool
    moved: list[str]
    plan_differs: bool
    planned_ticks: Ticks | None = None
    served_ticks: Ticks | None = None
    ttft_difference_ns: int | None = None
    e2e_difference_ns: int | None = None
    ttft_parts: Parts | None = None
    token_distance_max_ns: int | None = None
    on_edge: bool = False


class Agreement(msgspec.Struct, kw_only=True):
    """The whole answer for one run."""

    verdict: Verdict
    reasons: list[str]
    schedule: Schedule
    timing: Timing
    plan: Plan
    parts: dict[str, Distribution | None]
    tick_late_max_ms: float
    client_lag_max_ms: float
    requests: list[RequestAgreement]


def compare(inputs: Inputs) -> Agreement:
    """The three comparisons and the verdict."""
    schedule = compare_schedule(inputs.served, inputs.resimulated)
    moved, first_tick = moved_inputs(inputs)
    plan = compare_plan(inputs.planned, inputs.served, moved, first_tick)
    timing = compare_timing(inputs)
    late_ns = max((tick.late_ns or 0 for tick in inputs.served.ticks.values()), default=0)
    verdict, reasons = judge(schedule, timing, plan, doubts(inputs, late_ns))
    found = Found(
        set(schedule.different), set(timing.on_edge), {*plan.differ_before, *plan.differ_later}, moved
    )
    requests = [_request(inputs, id, found) for id in inputs.order]
    return Agreement(
        verdict=verdict,
        reasons=reasons,
        schedule=schedule,
        timing=timing,
        plan=plan,
        parts=_spread([request.ttft_parts for request in requests if request.ttft_parts]),
        tick_late_max_ms=late_ns / 1e6,
        client_lag_max_ms=inputs.client_lag_max_ns / 1e6,
        requests=requests,
    )


def judge(schedule: Schedule, timing: Timing, plan: Plan, doubts: list[str]) -> tuple[Verdict, list[str]]:
    """A different schedule is a disagreement whatever happened; else a run in doubt proves nothing."""
    found = {
        "served and simulated ticks differ for the same inputs": schedule.agrees,
        "what the client saw and what the server did differ": timing.agrees,
        "what was served differs from the plan before any input moved": plan.agrees,
    }
    disagreements = [reason for reason, agrees in found.items() if not agrees]
    if doubts and schedule.agrees:
        return "inconclusive", doubts + disagreements
    return ("disagree", disagreements + doubts) if disagreements else ("agree", [])


def doubts(inputs: Inputs, late_ns: int) -> list[str]:
    """Why the run may prove nothing: a machine that stalled, a client that was the bottleneck."""
    limit_ns, lag_ns = inputs.stall_limit_ns, inputs.client_lag_max_ns
    limit = f"(limit {limit_ns / 1e6:.0f} ms)"
    reasons = [] if inputs.served.rows else ["nothing was served, so nothing is shown"]
    missing = [id for id in inputs.order if id not in inputs.served.rows and not _left_out(inputs, id)]
    if missing and inputs.served.rows:
        row = inputs.measured.get(missing[0])
        why = f": {row.error or row.outcome}" if row else ""
        reasons.append(f"{len(missing)} of {len(inputs.order)} requests did not reach the server{why}")
    if late_ns > limit_ns:
        reasons.append(f"a tick ran {late_ns / 1e6:.0f} ms late {limit}")
    if lag_ns > limit_ns:
        reasons.append(f"the load generator stalled for {lag_ns / 1e6:.0f} ms {limit}")
    return reasons + [f"client-limited: {reason}" for reason in inputs.client_limits]


def _left_out(inputs: Inputs, id: str) -> bool:
    """Whether it is a turn of a session that was over before it, by the plan and in the run."""
    planned, measured = inputs.planned.rows.get(id), inputs.measured.get(id)
    return all(row is not None and row.outcome == "not_sent" for row in (planned, measured))


class Found(NamedTuple):
    """Ids for looking up, by what was found of them."""

    different: set[str]
    on_edge: set[str]
    off_plan: set[str]
    moved: dict[str, list[str]]


def _request(inputs: Inputs, id: str, found: Found) -> RequestAgreement:
    planned, served, measured = inputs.planned.rows[id], inputs.served.rows.get(id), inputs.measured.get(id)
    answer = RequestAgreement(
        id=id,
        schedule_equal=id not in found.different and (served is not None or _left_out(inputs, id)),
        moved=found.moved.get(id, []),
        plan_differs=id in found.off_plan,
        planned_ticks=planned.ticks,
        served_ticks=served.ticks if served else None,
        on_edge=id in found.on_edge,
    )
    if measured:
        answer.ttft_difference_ns = _difference(ttft_ns(measured), ttft_ns(planned))
        answer.e2e_difference_ns = _difference(e2e_ns(measured), e2e_ns(planned))
    if measured and served:
        answer.ttft_parts = ttft_parts(measured, served, inputs.settings.hardware.tick_ns)
        answer.token_distance_max_ns = max(map(abs, token_distances(measured, served)), default=None)
    return answer


def _difference(measured: int | None, simulated: int | None) -> int | None:
    return None if measured is None or simulated is None else measured - simulated


def _spread(parts: list[Parts]) -> dict[str, Distribution | None]:
    names = Parts.__struct_fields__
    return {name.removesuffix("_ns"): distribution([getattr(part, name) for part in parts]) for name in names}
