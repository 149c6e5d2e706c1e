"""What many things were at over time: layers of equal intervals, one upon the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from reports.charts.frame import HEIGHT, WIDTH, Frame, around, bound_lines, clipped, frame, legend, swatch
from reports.charts.shapes import TIME, Axis, Bound, Chart, Table
from reports.charts.svg import element, label, number, picture
from reports.charts.thinning import evenly
from reports.numbers import figure

MOST_TABLED = 40
LETTER, LEAST_ROOM = 7.2, 17.0  # px of a name that is written into its layer


class Layer(NamedTuple):
    """A value for each interval. `kind`: the phase that gives it its colour, as in a timeline."""

    name: str
    kind: str
    values: Sequence[float]


def stacked(
    title: str,
    description: str,
    layers: Sequence[Layer],
    end: float,
    *,
    x: Axis = TIME,
    y: Axis,
    bounds: Sequence[Bound] = (),
    note: str = "",
) -> Chart:
    """From the bottom to the top in the order given; intervals go from 0 to `end`."""
    heights = list(_heights(layers))
    of = frame(x, y, [0.0, end, *(b.value for b in bounds if b.axis == "x")], [0.0, *heights[-1]])
    drawn = [
        _layer(of, layer, lower, upper, end)
        for layer, lower, upper in zip(layers, heights, heights[1:], strict=False)
    ]
    names = [
        _name(of, layer.name, lower, upper, end)
        for layer, lower, upper in zip(layers, heights, heights[1:], strict=False)
    ]
    inside = [clipped(of, *drawn), around(of), *names, bound_lines(of, bounds)]
    image = picture(title, description, WIDTH, HEIGHT, *inside)
    keys = [(swatch(_key(layer.kind)), layer.name) for layer in reversed(layers)]
    return Chart(title, description, legend(keys) + image, _table(layers, end, x), note)


def _heights(layers: Sequence[Layer]) -> Iterator[list[float]]:
    """The edges of the layers: the ground, and of each its upper one."""
    count = len(layers[0].values)
    return accumulate(
        (layer.values for layer in layers),
        lambda below, values: [low + value for low, value in zip(below, values, strict=True)],
        initial=[0.0] * count,
    )


def _layer(of: Frame, layer: Layer, lower: Sequence[float], upper: Sequence[float], end: float) -> str:
    there = _edge(of, upper, end)
    back = list(reversed(_edge(of, lower, end)))
    d = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in there + back) + "Z"
    return element("path", d=d, class_=f"phase layer {layer.kind}")


def _edge(of: Frame, values: Sequence[float], end: float) -> list[tuple[float, float]]:
    width = end / len(values)
    places = ((place, of.y.at(value)) for place, value in enumerate(values))
    return [(of.x.at(width * side), y) for place, y in places for side in (place, place + 1)]


def _name(of: Frame, name: str, lower: Sequence[float], upper: Sequence[float], end: float) -> str:
    """Written where the layer is thickest over the whole length of the name; left out if it is too thin."""
    width = of.x.at(end / len(lower)) - of.x.at(0)
    span = min(len(lower), int(LETTER * len(name) / width) + 2)
    found = []
    for place in range(len(lower) - span + 1):
        bottom = of.y.at(max(lower[place : place + span]))
        top = of.y.at(min(upper[place : place + span]))
        found.append((bottom - top, -place, (bottom + top) / 2))
    room, place, middle = max(found)
    if room < LEAST_ROOM:
        return ""
    x = of.x.at(0) + width * (span / 2 - place)
    return label(x, middle + 4, name, text_anchor="middle", class_="band-name")


def _table(layers: Sequence[Layer], end: float, x: Axis) -> Table:
    count = len(layers[0].values)
    body = [
        [figure(end * (place + 0.5) / count), *(figure(layer.values[place]) for layer in layers)]
        for place in evenly(count, MOST_TABLED)
    ]
    return Table([f"{x.name} around, {x.unit}", *(layer.name for layer in layers)], body)


def _key(kind: str) -> str:
    return element("rect", x=2, y=1, width=24, height=10, class_=f"phase {kind}")
