"""A sweep as one HTML page: goodput, throughput and tails against offered load, and where they bend. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from reports.charts import Axis, Bound, Chart, Series, Table, lines
from reports.curves import METRICS, TAILS, Curve, Load
from reports.numbers import percent
from reports.page import Section, render
from reports.sweep_text import marks, notes, overview, rate_word
from reports.tables import DASH, ms, number

ROOM = 1.03  # so that no point stands on the edge
NAMES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2e_ms": "E2E"}
TAIL = "p99"
MOST_CURVES = 6
MOST_TABLED = 50  # settings, of which every load is listed; the rest is in the file of curves
COLORS = 6  # of series
UNJOINED = "Points that no line joins, †: not all completed, and the tails are over those that did."
Value = Callable[[Load], float | None]


class Tail(NamedTuple):
    """In ms, at a rate; `censored` if it is over fewer than all."""

    rate: float
    ms: float
    censored: bool


def sweep_page(settings: Mapping[str, Any], curves: Sequence[Curve]) -> str:
    """`settings` is what the sweep's own file says of it."""
    slo_given = any(bound is not None for bound in settings["window"]["slo"].values())
    shown = [curve for curve in curves if any(_rate(load) is not None for load in curve.loads)][:MOST_CURVES]
    more = [f"Of {len(curves)} settings the first {MOST_CURVES} are drawn."] * (len(curves) > MOST_CURVES)
    ledger = settings["ledger"]
    sections = [
        Section(
            "Result",
            [
                f"{_rate_title(shown, 'goodput' if slo_given else 'throughput')}.",
                _asked(settings),
                *notes(curves, slo_given),
            ],
            [Table(*overview(curves, slo_given))],
            id="result",
        )
    ]
    if shown:
        sections.append(Section("Work done", more, charts=_rate_charts(shown, slo_given), id="work"))
        tails = [_tail_chart(shown, key) for key in ("ttft_ms", "e2e_ms")]
        sections.append(Section("Tails", charts=[chart for chart in tails if chart], id="tails"))
    sections += [
        Section(f"Every load{f', {curve.label}' if curve.label else ''}", (), [_loads(curve, slo_given)])
        for curve in curves[:MOST_TABLED]
    ]
    rates = len(settings["rates"])
    return render(f"Sweep of {ledger['name']}{f' over {rates} rates' if rates > 1 else ''}", sections)


def _asked(settings: Mapping[str, Any]) -> str:
    ledger, server = settings["ledger"], settings["measured"]
    bounds = {name.removesuffix("_ms").upper(): bound for name, bound in settings["window"]["slo"].items()}
    slo = ", ".join(f"{name} {bound:g} ms" for name, bound in bounds.items() if bound is not None)
    repeats = settings["repeats"]
    parts = [
        f"{ledger['requests']:,} requests of {ledger['name']}",
        "simulated" if server is None else f"measured at {server['server']}",
        f"{repeats} repeats each" if repeats > 1 else "once each",
        *([f"SLO {slo}"] if slo else []),
    ]
    return f"{'; '.join(parts)}."


def _rate(load: Load) -> float | None:
    return load.offered_rps if load.rate is None else load.rate


def _rate_charts(curves: Sequence[Curve], slo_given: bool) -> list[Chart]:
    charts = []
    if slo_given:
        charts.append(_rate_chart(curves, "goodput"))
    return [*charts, _rate_chart(curves, "throughput")]


def _rate_chart(curves: Sequence[Curve], name: str) -> Chart:
    series = [
        Series(
            curve.label or name,
            [(x, y) for load in curve.loads if (x := _rate(load)) is not None for y in [_of(load, name)]],
            spread=[getattr(load, f"{name}_interval") for load in curve.loads if _rate(load) is not None],
        )
        for curve in curves
    ]
    bars = any(pair for each in series for pair in each.spread)
    return lines(
        _rate_title(curves, name),
        f"{name.capitalize()} against offered load, a line for each of {len(curves)} settings"
        f"{', with the 95 % interval of the mean of the repeats' if bars else ''}. Dotted: the knees.",
        series,
        x=_rates(curves),
        y=Axis(name, "req/s", low=0),
        bounds=_knees(curves),
    )


def _rates(curves: Sequence[Curve]) -> Axis:
    most = max(_rate(load) or 0 for curve in curves for load in curve.loads)
    return Axis("offered load", "req/s", low=0, high=ROOM * most)


def _of(load: Load, name: str) -> float:
    value: float | None = getattr(load, f"{name}_rps")
    return float("nan") if value is None else value


def _rate_title(curves: Sequence[Curve], name: str) -> str:
    """Which setting does most, or which do, and where."""
    found = [
        (max(known, key=lambda load: _of(load, name)), curve)
        for curve in curves
        if (known := [load for load in curve.loads if _of(load, name) >= 0])
    ]
    if not found:
        return f"No {name} is known"
    most = number(max(_of(load, name) for load, _ in found))
    best = [(load, curve) for load, curve in found if number(_of(load, name)) == most]
    labels = " and ".join(curve.label for _, curve in best)
    rates = " and ".join(dict.fromkeys(rate_word(load) for load, _ in best))
    whose = f" with {labels}" if labels else ""
    return f"{name.capitalize()} is {most} req/s at most{whose}, at {rates} req/s offered"


def _knees(curves: Sequence[Curve]) -> list[Bound]:
    """One line for each rate at which there is a knee."""
    found: dict[float, list[str]] = {}
    for curve in curves:
        if curve.knee is not None and curve.knee_side == "inside":
            rate = _rate(curve.loads[curve.knee])
            if rate is not None:
                found.setdefault(rate, []).append(curve.label)
    several = len(curves) > 1
    return [
        Bound(f"knee: {', '.join(labels)}" if several and len(labels) < len(curves) else "knee", rate, "x")
        for rate, labels in sorted(found.items())
    ]


def _tail_chart(curves: Sequence[Curve], key: str) -> Chart | None:
    name = NAMES[key]
    tails = {place: _tails(curve, key) for place, curve in enumerate(curves)}
    known = {curves[place].label: points for place, points in tails.items() if points}
    if not known:
        return None
    series = [
        each
        for place, points in tails.items()
        for each in _tail_series(curves[place].label or f"{name} {TAIL}", points, place % COLORS + 1)
    ]
    return lines(
        _tail_title(known, name),
        f"{TAIL} of {name}, logarithmic, against offered load, a line for each setting. Dotted: the knees.",
        series,
        x=_rates(curves),
        y=Axis(f"{name} {TAIL}", "ms", "log"),
        bounds=_knees(curves),
        note=UNJOINED if any(tail.censored for points in known.values() for tail in points) else "",
    )


def _tails(curve: Curve, key: str) -> list[Tail]:
    return [
        Tail(x, tails[TAIL], load.censored)
        for load in curve.loads
        if (x := _rate(load)) is not None and (tails := getattr(load, key)) and tails[TAIL] > 0
    ]


def _tail_series(label: str, points: Sequence[Tail], color: int) -> list[Series]:
    """A line with gaps where not all completed, and what is known there as points beside it."""
    of_all = [(tail.rate, float("nan") if tail.censored else tail.ms) for tail in points]
    of_some = [(tail.rate, tail.ms) for tail in points if tail.censored]
    found = [Series(label, of_all, color=color)] if len(of_some) < len(points) else []
    return found + ([Series(f"{label} †", of_some, "dots", color=color)] if of_some else [])


def _tail_title(known: Mapping[str, Sequence[Tail]], name: str) -> str:
    """How much it grows over the rates, of the setting of which it grows most."""
    worst = max(known, key=lambda label: known[label][-1].ms / known[label][0].ms)
    first, last = known[worst][0], known[worst][-1]
    low, high = (f"{ms(tail.ms)} ms{' †' * tail.censored}" for tail in (first, last))
    whose = f" with {worst}" if len(known) > 1 else ""
    if first == last:
        return f"{name} {TAIL} is {low}{whose} at {first.rate:.4g} req/s"
    return f"{name} {TAIL} is {low} at {first.rate:.4g} and {high} at {last.rate:.4g} req/s{whose}"


def _loads(curve: Curve, slo_given: bool) -> Table:
    """A line for each load, its tails in ms."""
    head = ["offered, req/s", "throughput", *(["goodput", "SLO met"] if slo_given else [])]
    head += [f"{NAMES[key]} {tail}" for key in METRICS for tail in TAILS]
    rows = []
    for place, load in enumerate(curve.loads):
        cells = [rate_word(load) + marks(curve, place), _with_interval(load, "throughput")]
        cells += [_with_interval(load, "goodput"), percent(load.attainment)] if slo_given else []
        for key in METRICS:
            found, resting = getattr(load, key), load.rests_on_largest.get(key, ())
            cells += [ms(found[tail]) + "*" * (tail in resting) if found else DASH for tail in TAILS]
        rows.append(cells)
    return Table(head, rows)


def _with_interval(load: Load, name: str) -> str:
    value = getattr(load, f"{name}_rps")
    interval = getattr(load, f"{name}_interval")
    return number(value) + (
        f" ± {(interval[1] - interval[0]) / 2:.2g}" if interval and value is not None else ""
    )
