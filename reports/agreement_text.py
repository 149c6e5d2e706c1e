"""An agreement in words and tables: the verdict first, then what it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ledgers.distributions import Distribution
from reports.agreement import Agreement, Verdict
from reports.plan import Plan
from reports.schedule import Schedule
from reports.tables import DASH, is_plain, ms, number, table, wrapped
from reports.text import CENSORED, RESTS, marked
from reports.timing import Timing

LISTED = 8


class PolicyResult(NamedTuple):
    """One policy's agreement, and the summaries of its three ledgers."""

    policy: str
    agreement: Agreement
    measured: dict[str, Any]
    served: dict[str, Any]
    simulated: dict[str, Any]


def side_by_side(results: Sequence[PolicyResult]) -> str:
    columns, rows, legend = side_rows(results)
    return "\n".join([table(columns, rows), *legend])


def side_rows(results: Sequence[PolicyResult]) -> tuple[list[str], list[list[str]], list[str]]:
    """Policies as columns, each measured and simulated; and what the marks mean."""
    columns = ["measured|sim.", *(result.policy for result in results)]
    found = side_pairs(results)
    rows = [[name, *(_pair(*pair) for pair in pairs)] for name, pairs in found]
    return columns, rows, legend(found)


SidePairs = Sequence[tuple[str, Sequence[tuple[str, str]]]]
"""Names of figures, each with the measured and the simulated one of every policy."""


def side_pairs(results: Sequence[PolicyResult]) -> SidePairs:
    rows = [
        (f"{label} {percentile}", [_latencies(result, key, percentile) for result in results])
        for key, label in LATENCIES.items()
        for percentile in ("p50", "p95", "p99")
    ]
    rows += [
        (label, [_figures(result, key) for result in results])
        for key, label in FIGURES.items()
        if key not in WHERE_ANY or any(side[key] for result in results for side in result[2:])
    ]
    return rows


def legend(found: SidePairs) -> list[str]:
    """What the marks mean that are there."""
    signs = "".join(cell for _, pairs in found for pair in pairs for cell in pair)
    return [line for line in (CENSORED, RESTS) if line[0] in signs]


LATENCIES = {
    "queue_delay_ms": "queue ms",
    "ttft_ms": "TTFT ms",
    "tpot_ms": "TPOT ms",
    "e2e_ms": "E2E ms",
}
FIGURES = {
    "throughput_rps": "throughput req/s",
    "goodput_rps": "goodput req/s",
    "concurrency_mean": "L mean",
    "concurrency_peak": "L peak",
    "kv_peak_tokens": "KV peak tokens",
    "completed": "completed",
    "unfinished": "unfinished",
    "failed": "failed",
    "rejected": "rejected",
    "not_sent": "not sent",
}
WHERE_ANY = ("failed", "rejected", "not_sent")


def _latencies(result: PolicyResult, key: str, percentile: str) -> tuple[str, str]:
    """Queue delay is the server's to tell; everything else the client's."""
    real = result.served if key == "queue_delay_ms" else result.measured
    return _latency(real, key, percentile), _latency(result.simulated, key, percentile)


def _latency(summary: dict[str, Any], key: str, percentile: str) -> str:
    found = summary[key]
    return DASH if found is None else marked(summary, key, percentile, found)


def _figures(result: PolicyResult, key: str) -> tuple[str, str]:
    real = result.served if key == "kv_peak_tokens" else result.measured
    return number(real[key]), number(result.simulated[key])


def _pair(real: str, simulated: str) -> str:
    return f"{real} and {simulated}" if is_plain() else f"{real}|{simulated}"


def agreement_text(policy: str, agreement: Agreement) -> str:
    """The three comparisons of one run, a line or two each."""
    lines = [f"{policy}: {agreement.verdict.upper()}"]
    for reason in agreement.reasons:
        lines += wrapped(reason, first="  ", then="    ")
    lines += _schedule_lines(agreement.schedule)
    lines += _timing_lines(agreement.timing)
    lines += _plan_lines(agreement.plan)
    late, lag = ms(agreement.tick_late_max_ms), ms(agreement.client_lag_max_ms)
    lines.append(f"      ticks ran at most {late} ms late, the load generator {lag} ms")
    return "\n".join(lines)


def _schedule_lines(schedule: Schedule) -> list[str]:
    line = (
        "  (a) served = simulated from the same inputs: "
        f"{schedule.requests_equal}/{schedule.requests} requests, "
        f"{schedule.ticks_equal}/{schedule.ticks} ticks"
    )
    return [line, *_listed("different", schedule.different)]


def _timing_lines(timing: Timing) -> list[str]:
    lines = [
        f"  (b) client stamp - server write of a token, ms (limit p95 {timing.limit_ms:g}):",
        f"      {_spread(timing.tokens)}",
    ]
    if timing.slo_met_measured is not None:
        lines.append(
            f"      SLO met: {timing.slo_met_measured} as measured, {timing.slo_met_served} as served"
        )
    lines += _listed("on the edge", timing.on_edge)
    lines += _listed("counted differently", timing.slo_different)
    lines += _listed("tokens missing", timing.missing_tokens)
    lines += _listed("another outcome", timing.outcome_different)
    return lines


def _plan_lines(plan: Plan) -> list[str]:
    moved = (
        f"{len(plan.moved)} moved, the first at tick {plan.first_moved_tick}" if plan.moved else "none moved"
    )
    lines = [f"  (c) served = planned: {plan.equal}/{plan.requests} requests; {moved}"]
    if plan.first_moved_tick == 0:
        lines.append("      an input moved in tick 0 already, so there is nothing before it to compare")
    lines += _listed("received with other lengths than planned", plan.lengths_different)
    lines += _listed("differ before any moved", plan.differ_before)
    lines += _listed("differ after that", plan.differ_later)
    return lines


def _listed(what: str, ids: Sequence[str]) -> list[str]:
    if not ids:
        return []
    more = f" and {len(ids) - LISTED} more" if len(ids) > LISTED else ""
    return wrapped(f"{what}: {' '.join(ids[:LISTED])}{more}", first=" " * 6, then=" " * 8)


def _spread(found: Distribution | None) -> str:
    if found is None:
        return "no tokens"
    return f"p50 {ms(found.p50)}  p95 {ms(found.p95)}  p99 {ms(found.p99)}  max {ms(found.max)}"


PARTS = {
    "send_lag": "send lag",
    "network_in": "network in",
    "queue": "queue",
    "prefill": "prefill",
    "first_decode_turn": "first decode turn",
    "tick_lateness": "tick lateness",
    "network_out": "network out",
}


def parts_table(results: Sequence[PolicyResult]) -> str:
    return table(*parts_rows(results))


def parts_rows(results: Sequence[PolicyResult]) -> tuple[list[str], list[list[str]]]:
    """Where the measured time to first token went: the median and the largest of each part."""
    columns = ["TTFT ms, p50|max", *(result.policy for result in results)]
    rows = [
        [label, *(_part_cell(result.agreement.parts, name) for result in results)]
        for name, label in PARTS.items()
    ]
    return columns, rows


def _part_cell(parts: Mapping[str, Distribution | None], name: str) -> str:
    found = parts.get(name)
    return DASH if found is None else _pair(ms(found.p50), ms(found.max))


MEANING: dict[Verdict, str] = {
    "agree": "measured and simulated ledgers agree",
    "disagree": "measured and simulated ledgers DISAGREE",
    "inconclusive": "this run proves nothing, for the reasons given",
}


def overall_text(verdict: Verdict, out: object) -> str:
    return f"verdict: {verdict.upper()} - {MEANING[verdict]}\nfiles:   {out}"
