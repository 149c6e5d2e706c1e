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
    parts = [label(0, 16, axis_name(of.y_axis), class_="axis-name")]
    for tick in ticks(of.y):
        y = of.y.at(tick.value)
        parts.append(element("path", d=f"M{number(LEFT)} {number(y)}H{number(WIDTH - RIGHT)}", class_="grid"))
        parts.append(label(LEFT - 8, y + 4, tick.label, text_anchor="end"))
    parts.append(
        element("path", d=f"M{number(LEFT)} {number(bottom)}H{number(WIDTH - RIGHT)}", class_="axis")
    )
    return "".join(parts) + below(of.x, ticks(of.x, 8), axis_name(of.x_axis), bottom)


def axis_name(axis: Axis) -> str:
    """A reader must know that equal steps are equal factors."""
    return f"{axis.label} (log scale)" if axis.scale == "log" else axis.label


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
    """Lines with their names, which stand where no curve is: above the plot, as far as there is room."""
    upright = [bound for bound in bounds if bound.axis == "x"]
    across = [bound for bound in bounds if bound.axis == "y"]
    parts = [_across(of, bound, 16 + 13 * place) for place, bound in enumerate(across)]
    tops = [TOP - 6] if len(upright) == 1 and len(across) < 2 else [TOP + 14 + 20 * row for row in range(8)]
    parts += [_upright(of, bound, tops[place % len(tops)]) for place, bound in enumerate(upright)]
    return "".join(parts)


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


def _across(of: Frame, bound: Bound, y_name: float) -> str:
    y = within(of.y, bound.value)
    line = element("path", d=f"M{number(LEFT)} {number(y)}H{number(WIDTH - RIGHT)}", class_="bound")
    key = element("path", d=f"M{number(WIDTH - RIGHT - 20)} {number(y_name - 4)}h20", class_="bound")
    name = label(WIDTH - RIGHT - 26, y_name, bound.label, text_anchor="end", class_="bound-name")
    return line + key + name


def _upright(of: Frame, bound: Bound, y_name: float) -> str:
    """Names of several stand one below the other, for they may be close together."""
    x = within(of.x, bound.value)
    line = element("path", d=f"M{number(x)} {number(TOP)}V{number(HEIGHT - BOTTOM)}", class_="bound")
    left, gap = x > (LEFT + WIDTH) / 2, 5 if y_name > TOP else 0
    anchor = "end" if left else None
    name = label(x - gap if left else x + gap, y_name, bound.label, text_anchor=anchor, class_="bound-name")
    return line + name


def within(of: Scale, value: float) -> float:
    low, high = sorted((of.start, of.end))
    return min(max(of.at(value), low), high)
