"""An agreement as one HTML page: the verdict, then measured against simulated, a section for each policy. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Literal, NamedTuple

from ledgers.distributions import Distribution
from ledgers.metrics import e2e_ns, origin_ns, ttft_ns
from ledgers.rows import RequestRow, TickRow
from ledgers.settings import Hardware
from ledgers.units import NS_PER_MS, NS_PER_S
from reports.agreement import Agreement, RequestAgreement, Verdict
from reports.agreement_text import FIGURES, PARTS, WHERE_ANY, PolicyResult
from reports.charts import Axis, Bar, Bound, Chart, Series, Table, lines, scatter, timeline
from reports.page import Section, render
from reports.sides import state
from reports.text import CENSORED, DASH, RESTS, marked, ms, number

MOST_IN_TIMELINE = 20  # requests, for each takes two lines
MOST_LISTED = 50
NEAR = 4  # times what was reserved: from there on a budget would only make the curve small
LATENCIES = {"queue_delay_ms": "queue delay", "ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2e_ms": "E2E"}
PERCENTILES = ("p50", "p95", "p99")
MEANING: dict[Verdict, str] = {
    "agree": "AGREE: the measured and the simulated ledger are the same where they have to be.",
    "disagree": "DISAGREE: the measured and the simulated ledger differ where they must not.",
    "inconclusive": "INCONCLUSIVE: this run proves nothing, for the reasons below.",
}
QUESTIONS = (
    "Three questions are asked of each policy. (a) Schedule: did the server do in every tick what the simulation does "
    "with the inputs that the server got? (b) Time: did the client stamp each token when the server wrote it? "
    "(c) Plan: did the server do what the simulation does with the ledger as planned, up to the first input that came "
    "in another tick?"
)


class Ledgers(NamedTuple):
    """The rows of one policy's replay by the ids of the plan, and the tick rows of both schedulers."""

    measured: Mapping[str, RequestRow]
    served: Mapping[str, RequestRow]
    simulated: Mapping[str, RequestRow]
    served_ticks: Mapping[int, TickRow]
    simulated_ticks: Mapping[int, TickRow]
    hardware: Hardware


def agreement_page(
    name: str, verdict: Verdict, results: Sequence[PolicyResult], ledgers: Sequence[Ledgers]
) -> str:
    """`name` is the ledger's; there are as many `ledgers` as results."""
    doubts = [f"{each.policy}: {reason}." for each in results for reason in each.agreement.reasons]
    sections = [
        Section("Verdict", [MEANING[verdict], *doubts, QUESTIONS], [_verdicts(results)], id="verdict"),
        Section("Side by side", _legend(results), [_side_by_side(results)], id="side-by-side"),
        Section("Where the time to first token went", [PARTS_SAID], [_parts(results)], id="parts"),
        *(_policy_section(result, its) for result, its in zip(results, ledgers, strict=True)),
    ]
    return render(f"Agreement of {name}: {verdict}", sections)


PARTS_SAID = "The median and the largest of each part of the measured TTFT, in ms. The parts of a request add up exactly."


def _verdicts(results: Sequence[PolicyResult]) -> Table:
    head = [
        "policy",
        "verdict",
        "(a) requests",
        "(a) ticks",
        "(b) token p95, ms",
        "(b) SLO met",
        "(c) requests",
    ]
    return Table([*head, "inputs moved"], [_verdict_cells(each.policy, each.agreement) for each in results])


def _verdict_cells(policy: str, found: Agreement) -> list[str]:
    a, b, c = found.schedule, found.timing, found.plan
    planned = c.equal + len(c.differ_later) + len(c.differ_before)
    return [
        policy,
        found.verdict,
        f"{a.requests_equal} of {a.requests}",
        f"{a.ticks_equal} of {a.ticks}",
        DASH if b.tokens is None else f"{ms(b.tokens.p95)} (limit {b.limit_ms:g})",
        DASH
        if b.slo_met_measured is None
        else f"{b.slo_met_measured} as measured, {b.slo_met_served} as served",
        f"{c.equal} of {planned}",
        str(len(c.moved)),
    ]


def _side_by_side(results: Sequence[PolicyResult]) -> Table:
    """Policies as columns, each measured and simulated. Queue delay and KV are the server's to tell."""
    head = ["", *(f"{each.policy}, {side}" for each in results for side in ("measured", "simulated"))]
    rows = []
    for key, name in LATENCIES.items():
        for percentile in PERCENTILES:
            cells = [_latency(side, key, percentile) for each in results for side in _sides(each, key)]
            rows.append([f"{name} {percentile}, ms", *cells])
    for key, name in FIGURES.items():
        if key not in WHERE_ANY or any(side[key] for each in results for side in each[2:]):
            rows.append([name, *(number(side[key]) for each in results for side in _sides(each, key))])
    return Table(head, rows)


def _sides(result: PolicyResult, key: str) -> tuple[Mapping[str, object], Mapping[str, object]]:
    real = result.served if key in ("queue_delay_ms", "kv_peak_tokens") else result.measured
    return real, result.simulated


def _latency(summary: Mapping[str, object], key: str, percentile: str) -> str:
    found = summary[key]
    return marked(dict(summary), key, percentile, found) if isinstance(found, dict) else DASH


def _legend(results: Sequence[PolicyResult]) -> list[str]:
    sides = [side for each in results for side in each[2:]]
    found = {
        CENSORED: any(side["censored"] for side in sides),
        RESTS: any(side["rests_on_largest"] for side in sides),
    }
    return [line for line, here in found.items() if here]


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
    charts = [*_time_charts(result.policy, found, its), *_kv_chart(result.policy, its)]
    if 0 < len(found.requests) <= MOST_IN_TIMELINE:
        charts.append(_timeline(result.policy, found, its))
    moved = [each for each in found.requests if each.moved or each.plan_differs or not each.schedule_equal]
    return Section(
        f"{result.policy}: {found.verdict}",
        _sentences(found, len(moved)),
        [_moved_table(moved[:MOST_LISTED])] if moved else [],
        charts,
        f"policy-{result.policy}",
    )


def _sentences(found: Agreement, off: int) -> list[str]:
    schedule, plan, tokens = found.schedule, found.plan, found.timing.tokens
    said = [
        f"(a) Served and simulated from the same inputs, {schedule.requests_equal} of {schedule.requests} requests and "
        f"{schedule.ticks_equal} of {schedule.ticks} ticks are equal.",
        "(b) There were no tokens."
        if tokens is None
        else f"(b) The client's stamp of a token lies from the server's write {ms(tokens.p50)} ms at the median, "
        f"{ms(tokens.p95)} at p95 (limit {found.timing.limit_ms:g}) and {ms(tokens.max)} at most.",
        f"(c) As planned were {plan.equal} of {plan.equal + len(plan.differ_later) + len(plan.differ_before)} requests. "
        + (
            f"{len(plan.moved)} inputs moved, the first at tick {plan.first_moved_tick}."
            if plan.moved
            else "No input moved."
        ),
        f"Ticks ran at most {ms(found.tick_late_max_ms)} ms late, the load generator {ms(found.client_lag_max_ms)} ms.",
    ]
    said += [f"{what}: {_ids(ids)}." for what, ids in _disputed(found).items() if ids]
    if off:
        shown = f", the first {MOST_LISTED} of {off:,}" if off > MOST_LISTED else ""
        said.append(f"What moved, and what was served otherwise than planned{shown}:")
    return said


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
    return " ".join(ids[:MOST_LISTED]) + more


def _moved_table(requests: Sequence[RequestAgreement]) -> Table:
    names = {
        "received": "received",
        "prefill_start": "prefill",
        "first_token": "first token",
        "last_token": "last token",
    }
    rows = []
    for each in requests:
        ticks = [
            _ticks(getattr(each.planned_ticks, key, None), getattr(each.served_ticks, key, None))
            for key in names
        ]
        rows.append([each.id, "; ".join(each.moved) or DASH, *ticks])
    return Table(
        ["request", "what moved", *(f"{name}, tick planned → served" for name in names.values())], rows
    )


def _ticks(planned: int | None, served: int | None) -> str:
    one, other = (DASH if tick is None else str(tick) for tick in (planned, served))
    return one if one == other else f"{one} → {other}"


# Charts of a policy

Pairs = list[tuple[float, float]]


def _time_charts(policy: str, found: Agreement, its: Ledgers) -> Iterator[Chart]:
    """Measured against simulated, and the difference over time; nothing of requests that one side has not."""
    off_plan = {each.id for each in found.requests if each.plan_differs}
    against: dict[str, Pairs] = {}
    residuals: dict[str, Pairs] = {}
    for each in found.requests:
        measured, simulated = its.measured.get(each.id), its.simulated.get(each.id)
        if measured is None or simulated is None:
            continue
        for name, define in (("TTFT", ttft_ns), ("E2E", e2e_ns)):
            real, planned = define(measured), define(simulated)
            if real is None or planned is None:
                continue
            key = f"{name}, served off plan" if each.id in off_plan else name
            against.setdefault(key, []).append((planned / NS_PER_MS, real / NS_PER_MS))
            at_s = (origin_ns(simulated) or 0) / NS_PER_S
            residuals.setdefault(key, []).append((at_s, (real - planned) / NS_PER_MS))
    if not against:
        return
    kind = _axis_kind([value for pairs in against.values() for pair in pairs for value in pair])
    yield scatter(
        f"{policy}: {_nearness(residuals)}",
        "Each request's measured time over its simulated one, TTFT and E2E. On the dashed line both are the same.",
        [Series(key, sorted(pairs)) for key, pairs in sorted(against.items())],
        x=Axis("simulated", "ms", kind),
        y=Axis("measured", "ms", kind),
        identity=True,
        table=_nearness_table(residuals),
    )
    yield scatter(
        f"{policy}: {_residual_finding(residuals)}",
        "Measured minus simulated, TTFT and E2E, by the time at which a request arrives. At 0 both are the same.",
        [Series(key, sorted(pairs)) for key, pairs in sorted(residuals.items())],
        x=_arrivals(residuals),
        y=Axis("measured - simulated", "ms"),
        bounds=[Bound("the same", 0.0)],
        table=_nearness_table(residuals),
    )


def _arrivals(residuals: Mapping[str, Pairs]) -> Axis:
    """With room at its ends, so that no point stands on the edge."""
    last = max((at for pairs in residuals.values() for at, _ in pairs), default=0.0)
    return Axis("arrival", "s", low=-0.02 * last, high=1.02 * last)


def _axis_kind(values: Sequence[float]) -> Literal["linear", "log"]:
    """Logarithmic where a linear axis would hide what is small."""
    return "log" if max(values) > 50 * min(values) > 0 else "linear"


def _nearness(residuals: Mapping[str, Pairs]) -> str:
    """How near the requests are that were served as planned."""
    near = [abs(value) for key, pairs in residuals.items() if "," not in key for _, value in pairs]
    off = sum(len(pairs) for key, pairs in residuals.items() if key.startswith("E2E,"))
    if not near:
        return "no request was served as planned"
    rest = f"; {off:,} requests were served off plan" if off else ""
    return f"measured times lie within {ms(max(near))} ms of the simulated ones{rest}"


def _residual_finding(residuals: Mapping[str, Pairs]) -> str:
    middles = {
        name: median(value for _, value in residuals[name]) for name in ("TTFT", "E2E") if name in residuals
    }
    if not middles:
        return "only requests served off plan"
    parts = [
        f"{name} {abs(value):.2f} ms {'later' if value >= 0 else 'earlier'}"
        for name, value in middles.items()
    ]
    return f"at the median measured {' and '.join(parts)} than simulated"


def _nearness_table(residuals: Mapping[str, Pairs]) -> Table:
    rows = []
    for key, pairs in sorted(residuals.items()):
        values = sorted(value for _, value in pairs)
        rows.append(
            [key, *(f"{value:.3f}" for value in (values[0], median(values), values[-1])), f"{len(values):,}"]
        )
    return Table(["measured - simulated, ms", "least", "median", "most", "requests"], rows)


def _kv_chart(policy: str, its: Ledgers) -> Iterator[Chart]:
    """Reserved KV after each tick on both sides. A tick without a row was idle."""
    numbers = its.served_ticks.keys() | its.simulated_ticks.keys()
    if not numbers:
        return
    every = range(min(numbers), max(numbers) + 2)
    equal = sum(state(its.served_ticks.get(k)) == state(its.simulated_ticks.get(k)) for k in every[:-1])
    series = [
        Series(
            f"{what} {side}",
            [(float(k), float(getattr(ticks.get(k), key, 0))) for k in every],
            style,
            color=color,
        )
        for what, key, color in (("reserved", "kv_reserved", 1), ("cached", "kv_cached", 3))
        for side, ticks, style in (
            ("served", its.served_ticks, "step"),
            ("simulated", its.simulated_ticks, "dots"),
        )
    ]
    budget = its.hardware.kv_budget_tokens
    peak = max(
        tick.kv_reserved for ticks in (its.served_ticks, its.simulated_ticks) for tick in ticks.values()
    )
    near = NEAR * peak >= budget
    yield lines(
        f"{policy}: the KV of {equal:,} of {len(every) - 1:,} ticks is as simulated; reserved at most {peak:,} of "
        f"{budget:,} tokens",
        "KV tokens reserved and cached after each tick, as served (lines) and as simulated from the plan (dots).",
        series,
        x=Axis("tick"),
        y=Axis("KV", "tokens", low=0),
        bounds=[Bound("budget", float(budget))] if near else [],
        note="" if near else f"The budget of {budget:,} tokens lies far above.",
    )


def _timeline(policy: str, found: Agreement, its: Ledgers) -> Chart:
    """Two lines for each request: as measured, below it as simulated."""
    bars = []
    for each in found.requests:
        measured, simulated = its.measured.get(each.id), its.simulated.get(each.id)
        bars.append(Bar(f"{each.id} measured", _spans(measured, its.served.get(each.id))))
        bars.append(Bar("simulated", _spans(simulated, simulated)))
    return timeline(
        f"{policy}: {len(found.requests)} requests, as measured and below it as simulated",
        "For each request two bars over time, measured and simulated: queue, prefill and decode. When the prefill of "
        "a measured request began and ended, the server tells.",
        bars,
        x=Axis(
            "time", "s", low=0, high=1.02 * max((end for bar in bars for *_, end in bar.spans), default=1.0)
        ),
    )


def _spans(row: RequestRow | None, server: RequestRow | None) -> list[tuple[str, float, float]]:
    """Queue, prefill and decode in s: the ends of them that both sides know, from the client's row."""
    if row is None:
        return []
    start = None if server is None else server.prefill_start_ns
    stamps = [origin_ns(row), start, row.first_token_ns, row.last_token_ns]
    names = ("queue", "prefill", "decode")
    return [
        (name, max(0, begin) / NS_PER_S, max(0, begin, end) / NS_PER_S)
        for name, begin, end in zip(names, stamps, stamps[1:], strict=False)
        if begin is not None and end is not None
    ]
