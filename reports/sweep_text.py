"""A sweep for a terminal of 80 columns: a table and a picture for each setting, one table of all settings."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from pathlib import Path
from typing import Any

from reports.curves import METRICS, TAILS, Curve, Load
from reports.numbers import percent
from reports.tables import DASH, WIDTH, is_plain, number, table, wrapped
from reports.text import RESTS

MOST_CURVES = 6  # that are shown one by one
BAR_WIDTH, AXIS_WIDTH = 28, 34
DONE, GOOD = "-", "="
MARKS = (("ttft_ms", "t"), ("e2e_ms", "e"))
KNEE_RULE = (
    "knee: the load with the most power, throughput over response time (Kleinrock 1979), of those tried"
)


def sweep_text(curves: Sequence[Curve], slo_given: bool, path: Path) -> str:
    """All that a sweep prints."""
    parts = []
    if len(curves) <= MOST_CURVES:
        parts += [_curve_text(curve, slo_given) for curve in curves]
    if len(curves) > 1:
        parts.append(table(*overview(curves, slo_given)))
    said = [line for words in notes(curves, slo_given) for line in wrapped(words, then="  ")]
    parts.append("\n".join([*said, f"files: {path}"]))
    return "\n\n".join(parts)


def _curve_text(curve: Curve, slo_given: bool) -> str:
    heading = [curve.label] if curve.label else []
    picture = [_picture(curve, slo_given)] if len(curve.loads) > 1 and not is_plain() else []
    return "\n".join([*heading, _load_table(curve, slo_given), *picture])


def _load_table(curve: Curve, slo_given: bool) -> str:
    return table(*load_rows(curve, slo_given))


def load_rows(curve: Curve, slo_given: bool) -> tuple[list[str], list[list[str]]]:
    """Columns and a row per load: rates per second; the tails in ms, as p50/p95/p99."""
    columns = ["req/s", "done/s", *(["good/s", "SLO"] if slo_given else [])]
    columns += [f"{name} {'/'.join(tail[1:] for tail in TAILS)}" for name in ("TTFT", "TPOT", "E2E")]
    rows = []
    for place, load in enumerate(curve.loads):
        cells = [rate_word(load), number(load.throughput_rps)]
        if slo_given:
            cells += [number(load.goodput_rps), percent(load.attainment)]
        cells += [_tails(getattr(load, name), load.rests_on_largest[name]) for name in METRICS]
        rows.append([cells[0] + marks(curve, place), *cells[1:]])
    return columns, rows


def marks(curve: Curve, place: int) -> str:
    load = curve.loads[place]
    knee = " k" if curve.knee == place and curve.knee_side == "inside" else ""
    return knee + (" †" if load.censored else "") + (" !" if load.client_limited else "")


def rate_word(load: Load) -> str:
    rate = load.offered_rps if load.rate is None else load.rate
    return DASH if rate is None else f"{rate:.4g}"


def _tails(found: dict[str, float] | None, resting: Sequence[str]) -> str:
    """With a mark where a percentile is no more than the largest value."""
    if found is None:
        return DASH
    return "/".join(short(found[tail]) + "*" * (tail in resting) for tail in TAILS)


def short(ms: float) -> str:
    """A duration in ms in at most five characters; from 10 s on in seconds."""
    if ms >= 9_999.5:
        return f"{ms / 1000:.0f}s"
    return f"{ms:.0f}" if ms >= 99.5 else f"{ms:.3g}"


def _picture(curve: Curve, slo_given: bool) -> str:
    """A line per load: what was done and what of it was good as a bar, tails on a logarithmic axis."""
    most = max(load.throughput_rps or 0 for load in curve.loads)
    spread = [found[tail] for load in curve.loads for found, tail in _marked(load) if found[tail] > 0]
    labels = [rate_word(load) for load in curve.loads]
    width = max(5, *map(len, labels))
    bar = f"done/s, 0 to {most:.3g}" + (f" ({GOOD} good)" if slo_given else "")
    head = f"{'req/s':>{width}}  {bar:<{BAR_WIDTH}}  "
    if not spread:
        return head.rstrip()
    low, high = min(spread), max(spread)
    lines = [head + f"p95 of TTFT t, E2E e: {short(low)} to {short(high)} ms"[: WIDTH - len(head)]]
    for place, (load, name) in enumerate(zip(curve.loads, labels, strict=True)):
        knee = " <knee" if curve.knee == place and curve.knee_side == "inside" else ""
        axis = _axis(load, low, high)
        lines.append(f"{name:>{width}} |{_bar(load, most, slo_given):<{BAR_WIDTH}} |{axis}{knee}".rstrip())
    return "\n".join(lines)


def _marked(load: Load) -> list[tuple[dict[str, float], str]]:
    return [(found, "p95") for name, _ in MARKS if (found := getattr(load, name))]


def _bar(load: Load, most: float, slo_given: bool) -> str:
    done = round(BAR_WIDTH * (load.throughput_rps or 0) / most) if most else 0
    good = round(BAR_WIDTH * (load.goodput_rps or 0) / most) if most and slo_given else 0
    return GOOD * good + DONE * (done - good)


def _axis(load: Load, low: float, high: float) -> str:
    cells = [" "] * AXIS_WIDTH
    decades = log10(high / low) or 1.0
    for name, mark in MARKS:
        found: dict[str, float] | None = getattr(load, name)
        if found and found["p95"] > 0:
            place = floor(log10(found["p95"] / low) / decades * (AXIS_WIDTH - 1))
            cells[place] = mark
    return "".join(cells)


def overview(curves: Sequence[Curve], slo_given: bool) -> tuple[list[str], list[list[str]]]:
    """Columns and a row per setting."""
    columns = ["setting", "knee at", "done/s most"]
    columns += ["good/s most", "at", "SLO there", "E2E p95 there"] if slo_given else ["E2E p95 at knee"]
    rows = []
    for curve in curves:
        most = max((load.throughput_rps or 0 for load in curve.loads), default=0)
        cells = [curve.label or "all", knee_word(curve), number(float(most))]
        if slo_given:
            cells += _at_most_goodput(curve)
        else:
            knee = None if curve.knee is None else curve.loads[curve.knee].e2e_ms
            cells.append(DASH if knee is None else short(knee["p95"]))
        rows.append(cells)
    return columns, rows


def _at_most_goodput(curve: Curve) -> list[str]:
    if curve.most_goodput is None:
        return ["0", DASH, DASH, DASH]
    load = curve.loads[curve.most_goodput]
    e2e = DASH if load.e2e_ms is None else short(load.e2e_ms["p95"])
    return [number(load.goodput_rps), rate_word(load), percent(load.attainment), e2e]


def knee_word(curve: Curve) -> str:
    """At which load the knee is, or on which side of those that were tried."""
    if curve.knee is None:
        return DASH
    rate = rate_word(curve.loads[curve.knee])
    return {"inside": rate, "first": f"<= {rate}", "last": f">= {rate}"}[curve.knee_side or "inside"]


def notes(curves: Sequence[Curve], slo_given: bool) -> list[str]:
    """What the marks mean, and how far the figures can be trusted."""
    loads = [load for curve in curves for load in curve.loads]
    lines: list[str] = []
    if any(curve.knee is not None for curve in curves):
        beyond = [curve for curve in curves if curve.knee_side in ("first", "last")]
        more = f"; {knee_word(beyond[0])}: it may lie beyond them" if beyond else ""
        lines.append(f"k {KNEE_RULE}{more}")
    if any(load.censored for load in loads):
        lines.append("† not all completed in the window: the tails are over those that did")
    lines += rejections(loads)
    if any(any(load.rests_on_largest.values()) for load in loads):
        lines.append(f"{RESTS} of a run: too few for that percentile")
    if any(load.client_limited for load in loads):
        lines.append("! the load generator was the limit: these loads prove nothing")
    repeats = max((load.repeats for load in loads), default=1)
    if repeats > 1:
        lines.append(f"means of {repeats} repeats, {_widest(loads, slo_given)}")
    return lines


def rejections(loads: Sequence[Load]) -> list[str]:
    """A line if any were, of all loads together."""
    rejected = sum(load.rejected for load in loads)
    scheduled = sum(load.scheduled for load in loads)
    return [f"{rejected:,} of {scheduled:,} requests rejected"] if rejected else []


def _widest(loads: Sequence[Load], slo_given: bool) -> str:
    """The largest half-length of an interval: how far the figures can be trusted."""
    name = "goodput" if slo_given else "throughput"
    found: list[tuple[float, Any]] = [
        ((interval[1] - interval[0]) / 2, load)
        for load in loads
        if (interval := getattr(load, f"{name}_interval"))
    ]
    if not found:
        return "too few for an interval"
    half, load = max(found, key=lambda each: each[0])
    return f"{name} to ± {half:.2g} req/s or better (95 %, widest at {rate_word(load)} req/s)"
