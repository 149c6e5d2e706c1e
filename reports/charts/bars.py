"""Horizontal bars, one or more for each label."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

from reports.charts.frame import COLORS, RIGHT, WIDTH, legend, swatch
from reports.charts.scales import Scale, scale, ticks
from reports.charts.shapes import Axis, Bound, Chart, Table
from reports.charts.svg import element, label, number, picture
from reports.charts.tables import figure

THICK, GAP, TOP, BOTTOM = 16.0, 12.0, 26.0, 44.0
LETTER, MOST_LETTERS = 7.0, 26
MOST_LABELS = 60


class Group(NamedTuple):
    """The values of one colour, one for each label; None is not known. `spread`: their low and high."""

    name: str
    values: Sequence[float | None]
    spread: Sequence[tuple[float, float] | None] = ()


def bars(
    title: str,
    description: str,
    labels: Sequence[str],
    groups: Sequence[Group],
    *,
    x: Axis,
    bounds: Sequence[Bound] = (),
    table: Table | None = None,
    note: str = "",
) -> Chart:
    """Each bar has its value written at its end. Only the first labels are drawn if there are too many."""
    table = table or _table(labels, groups, x)
    if len(labels) > MOST_LABELS:
        note = f"{note} The first {MOST_LABELS} of {len(labels):,} are drawn.".strip()
        labels = labels[:MOST_LABELS]
    left = 14 + LETTER * min(MOST_LETTERS, max(map(len, labels), default=0))
    deep = THICK * len(groups) + GAP
    height = TOP + deep * len(labels) + BOTTOM
    of = scale(x, _ends(groups, bounds), left, WIDTH - RIGHT - 44)
    parts = [_axis(of, x, height)]
    for place, name in enumerate(labels):
        top = TOP + deep * place + GAP / 2
        parts.append(label(left - 8, top + THICK * len(groups) / 2 + 4, _short(name), text_anchor="end"))
        parts += [_bar(of, group, place, top + THICK * i, i) for i, group in enumerate(groups)]
    parts += [_bound(of, bound, height) for bound in bounds]
    keys = [(swatch(_key(i % COLORS + 1)), group.name) for i, group in enumerate(groups)]
    return Chart(
        title,
        description,
        legend(keys) + picture(title, description, WIDTH, height, *parts, kind="bars"),
        table,
        note,
    )


def _ends(groups: Sequence[Group], bounds: Sequence[Bound]) -> list[float]:
    values = [value for group in groups for value in group.values if value is not None]
    values += [end for group in groups for pair in group.spread if pair for end in pair]
    return [0.0, *values, *(bound.value for bound in bounds)]


def _axis(of: Scale, axis: Axis, height: float) -> str:
    bottom = height - BOTTOM
    parts = []
    for tick in ticks(of):
        x = of.at(tick.value)
        parts.append(element("path", d=f"M{number(x)} {number(TOP)}V{number(bottom)}", class_="grid"))
        parts.append(label(x, bottom + 18, tick.label, text_anchor="middle"))
    parts.append(label(WIDTH - RIGHT, height - 6, axis.label, text_anchor="end", class_="axis-name"))
    return "".join(parts)


def _bar(of: Scale, group: Group, place: int, y: float, color: int) -> str:
    value = group.values[place]
    if value is None or not isfinite(value):
        return label(of.at(0) + 4, y + 12, "-")
    zero, end = of.at(0), of.at(value)
    box = element(
        "rect",
        x=min(zero, end),
        y=y,
        width=abs(end - zero),
        height=THICK - 2,
        class_=f"bar s{color % COLORS + 1}",
    )
    spread = group.spread[place] if group.spread else None
    whisker, out = "", max(zero, end)
    if spread:
        low, high, middle = of.at(spread[0]), of.at(spread[1]), y + THICK / 2 - 1
        d = f"M{number(low)} {number(middle)}H{number(high)}m0-4v8M{number(low)} {number(middle - 4)}v8"
        whisker, out = element("path", d=d, class_="whisker"), max(out, high)
    return box + whisker + label(out + 5, y + 12, figure(value), class_="value")


def _bound(of: Scale, bound: Bound, height: float) -> str:
    x = of.at(bound.value)
    line = element("path", d=f"M{number(x)} {number(TOP)}V{number(height - BOTTOM)}", class_="bound")
    return line + label(x, TOP - 8, bound.label, text_anchor="middle", class_="bound-name")


def _table(labels: Sequence[str], groups: Sequence[Group], x: Axis) -> Table:
    rows = [[name, *(figure(group.values[i]) for group in groups)] for i, name in enumerate(labels)]
    return Table(["", *(group.name or x.label for group in groups)], rows)


def _short(name: str) -> str:
    return (
        name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS // 2 - 1]}…{name[-MOST_LETTERS // 2 :]}"
    )


def _key(color: int) -> str:
    return element("rect", x=4, y=0, width=20, height=12, class_=f"bar s{color}")
