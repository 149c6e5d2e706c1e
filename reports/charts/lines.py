"""Curves and clouds of points over two axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import isfinite

from reports.charts.frame import (
    BOTTOM,
    COLORS,
    HEIGHT,
    WIDTH,
    Frame,
    around,
    band_areas,
    bound_lines,
    clipped,
    frame,
    legend,
    swatch,
)
from reports.charts.shapes import TIME, Axis, Band, Bound, Chart, Series, Table
from reports.charts.svg import element, number, picture
from reports.charts.tables import series_table
from reports.charts.thinning import DRAWN, MOST_POINTS, Point, spread_out, thinned

CELL = 2.0
MANY = 400


def lines(
    title: str,
    description: str,
    series: Sequence[Series],
    *,
    x: Axis = TIME,
    y: Axis,
    bounds: Sequence[Bound] = (),
    bands: Sequence[Band] = (),
    table: Table | None = None,
    note: str = "",
    identity: bool = False,
) -> Chart:
    """A chart of one or more series; its table is made from the points if none is given."""
    of = _frame_of(series, x, y, bounds)
    colors = [each.color or place % COLORS + 1 for place, each in enumerate(series)]
    drawn = "".join(_drawn(of, each, color) for each, color in zip(series, colors, strict=True))
    keys = [(swatch(_key(each, color)), each.name) for each, color in zip(series, colors, strict=True)]
    inside = [band_areas(of, bands), around(of), clipped(of, _identity(of) if identity else "", drawn)]
    image = picture(title, description, WIDTH, HEIGHT, *inside, bound_lines(of, bounds))
    notes = [note, *(DRAWN.format(e.name, len(e.points)) for e in series if _is_thinned(e))]
    table = table or series_table(series, x, y)
    return Chart(title, description, legend(keys) + image, table, " ".join(filter(None, notes)))


def scatter(
    title: str,
    description: str,
    series: Sequence[Series],
    *,
    x: Axis,
    y: Axis,
    identity: bool = False,
    bounds: Sequence[Bound] = (),
    table: Table | None = None,
    note: str = "",
) -> Chart:
    """Points that no line joins. `identity` draws where x and y are the same."""
    dots = [each._replace(style="dots") for each in series]
    return lines(title, description, dots, x=x, y=y, bounds=bounds, table=table, note=note, identity=identity)


def _frame_of(series: Sequence[Series], x: Axis, y: Axis, bounds: Sequence[Bound]) -> Frame:
    xs = [point[0] for each in series for point in each.points]
    ys = [point[1] for each in series for point in each.points]
    ys += [end for each in series for pair in each.spread if pair for end in pair]
    xs += [bound.value for bound in bounds if bound.axis == "x"]
    ys += [bound.value for bound in bounds if bound.axis == "y"]
    if any(each.style == "area" for each in series) and y.scale == "linear":
        ys.append(0.0)
    return frame(x, y, xs, ys)


def _is_thinned(series: Series) -> bool:
    return series.style != "dots" and len(series.points) > MOST_POINTS


def _drawn(of: Frame, series: Series, color: int) -> str:
    shade = f"s{color}"
    if series.style == "dots":
        places = spread_out(_places(of, series.points), CELL)
        shape = f"dots {shade}{_many(places)}"
        return element("path", d=_dots(places, color), class_=shape) + _whiskers(of, series, shade)
    points = thinned(series.points)
    runs = [list(_places(of, run)) for run in _runs(points)]
    stepped = series.style in ("step", "area") or of.x.kind == "percentile"
    path = "".join(_path(run, stepped=stepped) for run in runs)
    area = ""
    if series.style == "area":
        base = number(HEIGHT - BOTTOM)
        closed = "".join(f"{_path(run, stepped=True)}V{base}H{number(run[0][0])}Z" for run in runs)
        area = element("path", d=closed, class_=f"area {shade}")
    dash = " dashed" if series.style == "dashed" else ""
    line = element("path", d=path, class_=f"line {shade}{dash}{_many(points)}")
    few = len(points) <= 30 and not stepped
    dots = (
        element("path", d=_dots([p for run in runs for p in run], color), class_=f"dots {shade}")
        if few
        else ""
    )
    return area + line + dots + _whiskers(of, series, shade)


def _many(points: Sequence[Point]) -> str:
    """The class of what is drawn finer: dashes of a curve that jumps about would be lost."""
    return " many" if len(points) > MANY else ""


def _runs(points: Sequence[Point]) -> Iterator[list[Point]]:
    """Stretches without a gap."""
    for there, run in groupby(points, key=lambda point: isfinite(point[1])):
        if there:
            yield list(run)


def _places(of: Frame, points: Sequence[Point]) -> Iterator[Point]:
    return ((of.x.at(x), of.y.at(y)) for x, y in points if isfinite(y))


def _path(places: Sequence[Point], *, stepped: bool) -> str:
    first, *others = places
    text = f"M{number(first[0])} {number(first[1])}"
    if stepped:
        return text + "".join(f"H{number(x)}V{number(y)}" for x, y in others)
    return text + "".join(f"L{number(x)} {number(y)}" for x, y in others)


def _dots(places: Sequence[Point], color: int) -> str:
    """Marks that differ in shape: the ends of the strokes are round, square, or make a cross."""
    if color % 3 == 0:
        return "".join(f"M{number(x - 2.5)} {number(y)}h5m-2.5-2.5v5" for x, y in places)
    return "".join(f"M{number(x)} {number(y)}h0" for x, y in places)


def _whiskers(of: Frame, series: Series, shade: str) -> str:
    if not series.spread:
        return ""
    parts = []
    for (value, _), pair in zip(series.points, series.spread, strict=True):
        if pair:
            x, low, high = of.x.at(value), of.y.at(pair[0]), of.y.at(pair[1])
            parts.append(f"M{number(x)} {number(low)}V{number(high)}m-4 0h8M{number(x - 4)} {number(low)}h8")
    return element("path", d="".join(parts), class_=f"whisker {shade}")


def _identity(of: Frame) -> str:
    low, high = max(of.x.low, of.y.low), min(of.x.high, of.y.high)
    ends = [(number(of.x.at(value)), number(of.y.at(value))) for value in (low, high)]
    return element("path", d="M" + "L".join(f"{x} {y}" for x, y in ends), class_="identity")


def _key(series: Series, color: int) -> str:
    shade = f"s{color}"
    if series.style == "dots":
        return element("path", d=_dots([(14, 6)], color), class_=f"dots {shade}")
    if series.style == "area":
        area = element("rect", x=4, y=1, width=20, height=10, class_=f"area {shade}")
        return area + element("path", d="M4 1h20", class_=f"line {shade}")
    look = " dashed" if series.style == "dashed" else _many(series.points)
    return element("path", d="M1 6H27", class_=f"line {shade}{look}")
