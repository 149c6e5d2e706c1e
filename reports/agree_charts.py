"""The charts of an agreement, for one policy: measured against simulated. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Literal, NamedTuple

from ledgers.metrics import e2e_ns, origin_ns, ttft_ns
from ledgers.rows import RequestRow, TickRow
from ledgers.settings import Hardware
from ledgers.units import NS_PER_MS, NS_PER_S
from reports.agreement import Agreement
from reports.charts import Axis, Bar, Bound, Chart, Series, Table, lines, scatter, timeline
from reports.charts.shapes import Style
from reports.charts.timeline import MOST_LETTERS
from reports.sides import state
from reports.tables import ms, shortened

NEAR = 4  # times what was reserved: from there on a budget would only make the curve small


Pairs = list[tuple[float, float]]
OFF_PLAN = ", served off plan"
MEASURED = " measured"


class Ledgers(NamedTuple):
    """The rows of one policy's replay by the ids of the plan, and the tick rows of both schedulers."""

    measured: Mapping[str, RequestRow]
    served: Mapping[str, RequestRow]
    simulated: Mapping[str, RequestRow]
    served_ticks: Mapping[int, TickRow]
    simulated_ticks: Mapping[int, TickRow]
    hardware: Hardware


def time_charts(policy: str, found: Agreement, its: Ledgers) -> Iterator[Chart]:
    """Measured against simulated, and the difference over time; nothing of requests that one side has not."""
    against, residuals = _pairs(found, its)
    if not against:
        return
    kind = _axis_kind([value for pairs in against.values() for pair in pairs for value in pair])
    table = _nearness_table(residuals)
    yield scatter(
        f"{policy}: {_nearness(residuals)}",
        "TTFT and E2E of each request, measured over simulated. On the dashed line both are the same.",
        [Series(key, sorted(pairs)) for key, pairs in sorted(against.items())],
        x=Axis("simulated", "ms", kind),
        y=Axis("measured", "ms", kind),
        identity=True,
        table=table,
    )
    yield scatter(
        f"{policy}: {_residual_finding(residuals)}",
        "Measured minus simulated TTFT and E2E, by arrival of the request. At 0 both are the same.",
        [Series(key, sorted(pairs)) for key, pairs in sorted(residuals.items())],
        x=_arrivals(residuals),
        y=Axis("measured - simulated", "ms"),
        bounds=[Bound("the same", 0.0)],
        table=table,
    )


def _pairs(found: Agreement, its: Ledgers) -> tuple[dict[str, Pairs], dict[str, Pairs]]:
    """By what is measured: (simulated, measured) in ms, and (arrival in s, measured - simulated in ms)."""
    against: dict[str, Pairs] = {}
    residuals: dict[str, Pairs] = {}
    for each in found.requests:
        measured, simulated = its.measured.get(each.id), its.simulated.get(each.id)
        if measured is None or simulated is None:
            continue
        for name, define in (("TTFT", ttft_ns), ("E2E", e2e_ns)):
            real, planned = define(measured), define(simulated)
            if real is not None and planned is not None:
                key = name + OFF_PLAN if each.plan_differs else name
                against.setdefault(key, []).append((planned / NS_PER_MS, real / NS_PER_MS))
                at_s = (origin_ns(simulated) or 0) / NS_PER_S
                residuals.setdefault(key, []).append((at_s, (real - planned) / NS_PER_MS))
    return against, residuals


def _arrivals(residuals: Mapping[str, Pairs]) -> Axis:
    """With room at its ends, so that no point stands on the edge."""
    last = max((at for pairs in residuals.values() for at, _ in pairs), default=0.0)
    return Axis("arrival", "s", low=-0.02 * last, high=1.02 * last)


def _axis_kind(values: Sequence[float]) -> Literal["linear", "log"]:
    """Logarithmic where a linear axis would hide what is small."""
    return "log" if max(values) > 50 * min(values) > 0 else "linear"


def _nearness(residuals: Mapping[str, Pairs]) -> str:
    """How near the requests are that were served as planned."""
    near = [abs(value) for key, pairs in residuals.items() if OFF_PLAN not in key for _, value in pairs]
    off = sum(len(pairs) for key, pairs in residuals.items() if key == "E2E" + OFF_PLAN)
    if not near:
        return "no request was served as planned"
    rest = f"; served off plan: {off:,}" if off else ""
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


def kv_chart(policy: str, its: Ledgers) -> Iterator[Chart]:
    """Reserved and cached KV after each tick on both sides. A tick without a row was idle."""
    both = (its.served_ticks, its.simulated_ticks)
    numbers = its.served_ticks.keys() | its.simulated_ticks.keys()
    if not numbers:
        return
    every = range(min(numbers), max(numbers) + 1)
    equal = sum(state(its.served_ticks.get(k)) == state(its.simulated_ticks.get(k)) for k in every)
    budget = its.hardware.kv_budget_tokens
    peak = max(tick.kv_reserved for ticks in both for tick in ticks.values())
    near = NEAR * peak >= budget
    yield lines(
        f"{policy}: {equal:,} of {len(every):,} ticks are as simulated; KV reserved at most {peak:,} of "
        f"{budget:,} tokens",
        "KV tokens reserved and cached after each tick, served as lines, simulated from the plan as dots.",
        [
            Series(f"{name} {side}", _curve(ticks, key, every), style, color=color)
            for name, key, color in (("reserved", "kv_reserved", 1), ("cached", "kv_cached", 3))
            for side, ticks, style in zip(("served", "simulated"), both, STYLES, strict=True)
        ],
        x=Axis("tick"),
        y=Axis("KV", "tokens", low=0),
        bounds=[Bound("budget", float(budget))] if near else [],
        note="" if near else f"The budget of {budget:,} tokens lies far above.",
    )


STYLES: tuple[Style, Style] = ("step", "dots")


def _curve(ticks: Mapping[int, TickRow], key: str, every: range) -> Pairs:
    return [(float(k), float(getattr(ticks.get(k), key, 0))) for k in every]


def timeline_of(policy: str, found: Agreement, its: Ledgers) -> Chart:
    """Two lines for each request: as measured, below it as simulated."""
    bars = []
    for each in found.requests:
        measured, simulated = its.measured.get(each.id), its.simulated.get(each.id)
        name = shortened(each.id, MOST_LETTERS - len(MEASURED))
        bars.append(Bar(name + MEASURED, _spans(measured, its.served.get(each.id))))
        bars.append(Bar("simulated", _spans(simulated, simulated)))
    return timeline(
        f"{policy}: {len(found.requests)} requests, as measured and below it as simulated",
        "For each request two bars over time, measured and simulated: queue, prefill and decode. When the "
        "prefill of a measured request began, the server tells.",
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
