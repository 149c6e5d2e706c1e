"""What stands around the curves of a plot: axes, grid, bounds, bands, legend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import NamedTuple

from reports.charts.scales import Scale, Tick, scale, ticks
from reports.charts.shapes import Axis, Band, Bound
from reports.charts.svg import element, label, number, words

WIDTH, HEIGHT = 640.0, 308.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 24.0, 36.0, 48.0
COLORS = 6
MARK = 4.0
MANY_TICKS = 6


class Frame(NamedTuple):
    """The place for the curves, and how values are drawn there."""

    x: Scale
    y: Scale
    x_axis: Axis
    y_axis: Axis


def frame(x_axis: Axis, y_axis: Axis, xs: Iterable[float], ys: Iterable[float]) -> Frame:
    there = [value for value in xs if isfinite(value)]
    if x_axis.scale == "linear" and x_axis.high is None and there:
        x_axis = x_axis._replace(high=max(there))  # no empty stretch after the end
    x = scale(x_axis, there, LEFT, WIDTH - RIGHT, ticks=8)
    return Frame(x, scale(y_axis, ys, HEIGHT - BOTTOM, TOP), x_axis, y_axis)


def around(of: Frame) -> str:
    """Grid, ticks and names of both axes."""
    bottom = HEIGHT - BOTTOM
    parts = [label(0, 16, of.y_axis.label, class_="axis-name")]
    for tick in ticks(of.y):
        y = of.y.at(tick.value)
        parts.append(element("path", d=f"M{number(LEFT)} {number(y)}H{number(WIDTH - RIGHT)}", class_="grid"))
        parts.append(label(LEFT - 8, y + 4, tick.label, text_anchor="end"))
    parts.append(
        element("path", d=f"M{number(LEFT)} {number(bottom)}H{number(WIDTH - RIGHT)}", class_="axis")
    )
    return "".join(parts) + below(of.x, ticks(of.x, 8), of.x_axis.label, bottom)


def below(of: Scale, along: Sequence[Tick], name: str, bottom: float) -> str:
    """What is written below an axis of x, for which there is room as high as `BOTTOM`."""
    parts = []
    for place, tick in enumerate(along):
        x = of.at(tick.value)
        odd = "spare" if len(along) > MANY_TICKS and place % 2 else None
        parts.append(element("path", d=f"M{number(x)} {number(bottom)}v4", class_="tick"))
        parts.append(label(x, bottom + 19, tick.label, text_anchor="middle", class_=odd))
    parts.append(label(WIDTH - RIGHT, bottom + BOTTOM - 6, name, text_anchor="end", class_="axis-name"))
    return "".join(parts)


def bound_lines(of: Frame, bounds: Sequence[Bound]) -> str:
    upright = [bound for bound in bounds if bound.axis == "x"]
    places = {bound: place for place, bound in enumerate(upright)}
    return "".join(_bound(of, bound, places.get(bound, 0)) for bound in bounds)


def band_areas(of: Frame, bands: Sequence[Band]) -> str:
    parts = []
    for band in bands:
        low, high = (within(of.x, value) for value in (band.low, band.high))
        area = element("rect", x=low, y=TOP, width=high - low, height=HEIGHT - BOTTOM - TOP, class_="band")
        parts.append(area + label(low + 4, TOP + 12, band.label, class_="band-name"))
    return "".join(parts)


def clipped(of: Frame, *children: str) -> str:
    """Children in the picture's places, of which nothing is seen outside of the axes."""
    left, top = LEFT - MARK, TOP - MARK  # a mark on an axis is not cut in half
    width, height = WIDTH - left - RIGHT + MARK, HEIGHT - top - BOTTOM + MARK
    box = f"{number(left)} {number(top)} {number(width)} {number(height)}"
    return element("svg", *children, x=left, y=top, width=width, height=height, viewBox=box)


def legend(keys: Sequence[tuple[str, str]]) -> str:
    """Pairs of the swatch (markup) and the name of it. One thing alone needs none."""
    if len(keys) < 2:
        return ""
    items = (element("li", swatch, element("span", words(name))) for swatch, name in keys)
    return element("ul", *items, class_="legend")


def swatch(inner: str) -> str:
    return element("svg", inner, viewBox="0 0 28 12", class_="swatch", aria_hidden="true")


def _bound(of: Frame, bound: Bound, place: int) -> str:
    """The names of upright ones stand one below the other, for they may be close together."""
    if bound.axis == "x":
        x = within(of.x, bound.value)
        line = f"M{number(x)} {number(TOP)}V{number(HEIGHT - BOTTOM)}"
        left = x > (LEFT + WIDTH) / 2
        name = label(
            x - 5 if left else x + 5,
            TOP + 12 + 15 * (place % 8),
            bound.label,
            text_anchor="end" if left else None,
            class_="bound-name",
        )
    else:
        y = within(of.y, bound.value)
        line = f"M{number(LEFT)} {number(y)}H{number(WIDTH - RIGHT)}"
        below = y - TOP < 16
        name = label(
            WIDTH - RIGHT - 2, y + 14 if below else y - 5, bound.label, text_anchor="end", class_="bound-name"
        )
    return element("path", d=line, class_="bound") + name


def within(of: Scale, value: float) -> float:
    low, high = sorted((of.start, of.end))
    return min(max(of.at(value), low), high)
