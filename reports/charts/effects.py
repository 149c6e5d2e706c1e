"""Effects with their intervals, a line each, against no change: a forest plot. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reports.charts.frame import BOTTOM, RIGHT, WIDTH, below, legend, swatch, within
from reports.charts.scales import Scale, scale, ticks
from reports.charts.shapes import Axis, Chart, Table
from reports.charts.svg import element, label, number, picture
from reports.tables import shortened

LEFT, TOP, DEEP = 172.0, 8.0, 24.0
MOST_LETTERS = 17
CHANGE = Axis("change, shares in points", "%")
LEAST_SHOWN = 10.0  # percent to either side
VERDICTS = ("better", "worse", "no difference shown", "cannot tell")


class Effect(NamedTuple):
    """`middle` is the change in percent, `low` and `high` its interval; None is not known, or has no bound.

    From 0 to `forgiven` the tolerance has nothing against it. `said` is the same in words.
    """

    name: str
    middle: float | None
    low: float | None
    high: float | None
    forgiven: float
    verdict: str
    said: str


def effects(title: str, description: str, rows: Sequence[Effect]) -> Chart:
    """What would make all others too small to be seen is cut off, with an arrow."""
    most = _reach(rows)
    of = scale(CHANGE, [-most, most], LEFT, WIDTH - RIGHT)
    height = TOP + DEEP * len(rows) + BOTTOM
    drawn = [_row(of, row, TOP + DEEP * place) for place, row in enumerate(rows)]
    image = picture(title, description, WIDTH, height, _axis(of, height), *drawn)
    there = [verdict for verdict in VERDICTS if any(row.verdict == verdict for row in rows)]
    keys = legend([(swatch(_mark(verdict, 14, 6)), verdict) for verdict in there])
    head = ("figure", "change and interval", "verdict")
    table = Table(head, [[row.name, row.said, row.verdict] for row in rows])
    return Chart(title, description, keys + image, table)


def _reach(rows: Sequence[Effect]) -> float:
    """As far as the farthest effect, and intervals up to twice of that."""
    middles = [abs(row.middle) for row in rows if row.middle is not None]
    ends = [abs(end) for row in rows for end in (row.low, row.high, row.forgiven) if end is not None]
    return max(LEAST_SHOWN, min(max(ends, default=0.0), 2 * max(middles, default=0.0)), *middles)


def _axis(of: Scale, height: float) -> str:
    """A line for each tick, that of no change darker."""
    bottom, parts, along = height - BOTTOM, [], []
    for tick in ticks(of):
        d = f"M{number(of.at(tick.value))} {number(TOP)}V{number(bottom)}"
        parts.append(element("path", d=d, class_="axis" if abs(tick.value) < 1e-9 else "grid"))
        along.append(tick._replace(label=f"+{tick.label}") if tick.value > 1e-9 else tick)
    return "".join(parts) + below(of, along, CHANGE.label, bottom)


def _row(of: Scale, row: Effect, top: float) -> str:
    middle, zero, forgiven = top + DEEP / 2, of.at(0), within(of, row.forgiven)
    left, wide = min(zero, forgiven), abs(forgiven - zero)
    parts = [
        element("rect", x=left, y=top + 2, width=wide, height=DEEP - 4, class_="band"),
        label(LEFT - 10, middle + 4, shortened(row.name, MOST_LETTERS), text_anchor="end"),
    ]
    if row.low is not None or row.high is not None:
        parts.append(element("path", d=_whisker(of, row, middle), class_="whisker"))
    if row.middle is not None:
        parts.append(_mark(row.verdict, within(of, row.middle), middle))
    return element("g", *parts)


def _mark(verdict: str, x: float, y: float) -> str:
    """Told apart by shape as well: full and round, full and square, hollow."""
    if verdict == "worse":
        return element("rect", x=x - 4.5, y=y - 4.5, width=9.0, height=9.0, class_="worse")
    if verdict == "better":
        return element("circle", cx=x, cy=y, r=5.0, class_="better")
    return element("circle", cx=x, cy=y, r=4.0, class_="open")


def _whisker(of: Scale, row: Effect, y: float) -> str:
    """From end to end; an end that is out of the picture, or without bound, is an arrow."""
    ends = []
    for limit, edge, away in ((row.low, of.start, 1), (row.high, of.end, -1)):
        inside = limit is not None and of.low <= limit <= of.high
        x = of.at(limit) if limit is not None and inside else edge
        tip = (
            f"m0-4v8M{number(x)} {number(y)}"
            if inside
            else f"m{5 * away}-4l{-5 * away} 4 {5 * away} 4M{number(x)} {number(y)}"
        )
        ends.append((x, tip))
    (low, low_tip), (high, high_tip) = ends
    return f"M{number(low)} {number(y)}{low_tip}H{number(high)}{high_tip}"
