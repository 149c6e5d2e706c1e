"""An agreement as one HTML page: the verdict first, then what it rests on, policy by policy. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from ledgers.distributions import Distribution
from reports.agree_charts import Ledgers, kv_chart, time_charts, timeline_of
from reports.agreement import Agreement, RequestAgreement, Verdict
from reports.agreement_text import MEANING, PARTS, PolicyResult, legend, side_pairs
from reports.charts import Table
from reports.page import Section, render
from reports.plan import Plan
from reports.tables import DASH, ms, shortened
from reports.timing import Timing

MOST_IN_TIMELINE = 20  # requests, for each takes two lines
MOST_LISTED = 50
LONGEST_ID, LONGEST = 60, 400  # characters of what a ledger or a server says
HAPPENED = {
    "received": "received",
    "prefill_start": "prefill",
    "first_token": "first token",
    "last_token": "last token",
}
QUESTIONS = (
    "Three questions are asked of each policy. (a) Schedule: did the server do in every tick what the "
    "simulation does with the inputs that the server got? (b) Time: did the client stamp each token when the "
    "server wrote it? (c) Plan: did the server do what the simulation does with the ledger as planned, up to "
    "the first input that came in another tick?"
)


def agreement_page(
    name: str, verdict: Verdict, results: Sequence[PolicyResult], ledgers: Sequence[Ledgers]
) -> str:
    """`name` is the ledger's; there are as many `ledgers` as results."""
    said = f"{verdict.upper()}: {MEANING[verdict]}."
    doubts = [
        f"{each.policy}: {shortened(reason, LONGEST)}."
        for each in results
        for reason in each.agreement.reasons
    ]
    sections = [
        Section(
            "Verdict",
            [said, *doubts, QUESTIONS],
            [_verdicts(results)],
            id="verdict",
        ),
        _side_by_side(results),
        Section("Where the time to first token went", [PARTS_SAID], [_parts(results)], id="parts"),
        *(_policy_section(result, its) for result, its in zip(results, ledgers, strict=True)),
    ]
    return render(f"Agreement of {name}: {verdict}", sections)


PARTS_SAID = (
    "The median and the largest of each part of the measured TTFT, in ms. Those of a request add up exactly."
)


def _verdicts(results: Sequence[PolicyResult]) -> Table:
    head = [
        "policy",
        "verdict",
        "(a) requests",
        "(a) ticks",
        "(b) token p95, ms",
        "(b) SLO met, client / server",
        "(c) requests",
    ]
    return Table([*head, "inputs moved"], [_verdict_cells(each.policy, each.agreement) for each in results])


def _verdict_cells(policy: str, found: Agreement) -> list[str]:
    a, b, c = found.schedule, found.timing, found.plan
    return [
        policy,
        found.verdict,
        f"{a.requests_equal} of {a.requests}",
        f"{a.ticks_equal} of {a.ticks}",
        DASH if b.tokens is None else f"{ms(b.tokens.p95)} (limit {b.limit_ms:g})",
        DASH if b.slo_met_measured is None else f"{b.slo_met_measured} / {b.slo_met_served}",
        f"{c.equal} of {c.requests}",
        str(len(c.moved)),
    ]


def _side_by_side(results: Sequence[PolicyResult]) -> Section:
    """Policies as columns, each measured and simulated."""
    found = side_pairs(results)
    head = ["", *(f"{each.policy}, {side}" for each in results for side in ("measured", "simulated"))]
    rows = [[name, *chain(*pairs)] for name, pairs in found]
    return Section("Side by side", legend(found), [Table(head, rows)], id="side-by-side")


def _parts(results: Sequence[PolicyResult]) -> Table:
    rows = [
        [label, *(_part(each.agreement.parts.get(name)) for each in results)] for name, label in PARTS.items()
    ]
    return Table(["p50 (max), ms", *(each.policy for each in results)], rows)


def _part(found: Distribution | None) -> str:
    return DASH if found is None else f"{ms(found.p50)} ({ms(found.max)})"


# A policy


def _policy_section(result: PolicyResult, its: Ledgers) -> Section:
    found = result.agreement
    charts = [*time_charts(result.policy, found, its), *kv_chart(result.policy, its)]
    if 0 < len(found.requests) <= MOST_IN_TIMELINE:
        charts.append(timeline_of(result.policy, found, its))
    moved = [each for each in found.requests if each.moved or each.plan_differs or not each.schedule_equal]
    return Section(
        f"{result.policy}: {found.verdict}",
        _sentences(found, len(moved)),
        [_moved_table(moved[:MOST_LISTED])] if moved else [],
        charts,
        f"policy-{result.policy}",
    )


def _sentences(found: Agreement, off: int) -> list[str]:
    schedule, late, lag = found.schedule, ms(found.tick_late_max_ms), ms(found.client_lag_max_ms)
    said = [
        f"(a) Of the same inputs, {schedule.requests_equal} of {schedule.requests} requests and "
        f"{schedule.ticks_equal} of {schedule.ticks} ticks were served as they are simulated.",
        _time_said(found.timing),
        _plan_said(found.plan),
        f"Ticks ran at most {late} ms late, the load generator {lag} ms.",
    ]
    said += [f"{what}: {_ids(ids)}." for what, ids in _disputed(found).items() if ids]
    if off:
        shown = f", the first {MOST_LISTED} of {off:,}" if off > MOST_LISTED else ""
        said.append(f"What moved, and what was served otherwise than planned{shown}:")
    return said


def _time_said(timing: Timing) -> str:
    tokens = timing.tokens
    if tokens is None:
        return "(b) There were no tokens."
    return (
        f"(b) The client's stamp of a token lies {ms(tokens.p50)} ms from the server's write at the median, "
        f"{ms(tokens.p95)} at p95 (limit {timing.limit_ms:g}) and {ms(tokens.max)} at most."
    )


def _plan_said(plan: Plan) -> str:
    first = f", the first at tick {plan.first_moved_tick}" if plan.moved else ""
    return (
        f"(c) {plan.equal} of {plan.requests} requests were served as planned; inputs that moved: "
        f"{len(plan.moved)}{first}."
    )


def _disputed(found: Agreement) -> dict[str, Sequence[str]]:
    timing = found.timing
    return {
        "On the edge of the SLO": timing.on_edge,
        "Counted differently against the SLO": timing.slo_different,
        "Tokens missing": timing.missing_tokens,
        "Another outcome": timing.outcome_different,
        "Received with other lengths than planned": found.plan.lengths_different,
    }


def _ids(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - MOST_LISTED:,} more" if len(ids) > MOST_LISTED else ""
    return " ".join(shortened(id, LONGEST_ID) for id in ids[:MOST_LISTED]) + more


def _moved_table(requests: Sequence[RequestAgreement]) -> Table:
    """The tick at which each thing happened, as planned and as served."""
    rows = []
    for each in requests:
        ticks = [
            _ticks(getattr(each.planned_ticks, key, None), getattr(each.served_ticks, key, None))
            for key in HAPPENED
        ]
        rows.append([shortened(each.id, LONGEST_ID), "; ".join(each.moved) or DASH, *ticks])
    return Table(["request", "what moved", *(f"{name}, tick" for name in HAPPENED.values())], rows)


def _ticks(planned: int | None, served: int | None) -> str:
    one, other = (DASH if tick is None else str(tick) for tick in (planned, served))
    return one if one == other else f"{one} → {other}"
