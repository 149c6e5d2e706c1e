"""The numbers of a chart as a table, where its maker has none that says more."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from reports.charts.shapes import Axis, Series, Table
from reports.numbers import figure
from reports.tables import DASH

MOST_ROWS = 40


def series_table(series: Sequence[Series], x: Axis, y: Axis) -> Table:
    """Every point where few are asked about; else what each series comes to."""
    places = sorted({point[0] for each in series for point in each.points})
    if len(places) > MOST_ROWS or any(len(each.points) > len(places) for each in series):
        return _ends_table(series, x, y)
    values = [dict(each.points) for each in series]
    rows = [[_place(x, at), *(figure(value.get(at)) for value in values)] for at in places]
    return Table([x.label, *(each.name for each in series)], rows)


def _ends_table(series: Sequence[Series], x: Axis, y: Axis) -> Table:
    rows = []
    for each in series:
        points = [point for point in each.points if isfinite(point[1])]
        low, high = min(points, key=_y, default=None), max(points, key=_y, default=None)
        if low is None or high is None:
            rows.append([each.name, "0", *[DASH] * 4])
            continue
        ends = [figure(low[1]), _place(x, low[0]), figure(high[1]), _place(x, high[0])]
        rows.append([each.name, f"{len(points):,}", *ends])
    return Table([y.label, "points", "lowest", f"at {x.label}", "highest", f"at {x.label}"], rows)


def _y(point: tuple[float, float]) -> float:
    return point[1]


def _place(x: Axis, value: float) -> str:
    return f"{100 * value:.6g}%" if x.scale == "percentile" else figure(value)
