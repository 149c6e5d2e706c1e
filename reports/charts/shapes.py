"""The nouns of charts: axes, series, bounds, tables, and the chart that comes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

ScaleKind = Literal["linear", "log", "percentile"]
Style = Literal["line", "dashed", "step", "dots", "area"]


class Table(NamedTuple):
    """Numbers as they are shown."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


class Chart(NamedTuple):
    """A finding, its picture (markup that is safe as it stands), and the same for those who cannot see it."""

    title: str
    description: str
    svg: str
    table: Table | None = None
    note: str = ""


class Axis(NamedTuple):
    """What is along a side. On a percentile axis values are quantiles from 0 to 1. `whole`: a count."""

    name: str
    unit: str = ""
    scale: ScaleKind = "linear"
    low: float | None = None
    high: float | None = None
    whole: bool = False

    @property
    def label(self) -> str:
        return f"{self.name}, {self.unit}" if self.unit else self.name


TIME = Axis("time", "s")


class Series(NamedTuple):
    """Points in ascending order of x. A y that is not a number is a gap.

    `spread`: low and high of each point, drawn as whiskers. `color`: 1 to 6; its place among the series if 0.
    """

    name: str
    points: Sequence[tuple[float, float]]
    style: Style = "line"
    spread: Sequence[tuple[float, float] | None] = ()
    color: int = 0


class Bound(NamedTuple):
    """A line across the plot, at a value of y (or of x), with its label."""

    label: str
    value: float
    axis: Literal["x", "y"] = "y"


class Band(NamedTuple):
    """A shaded stretch of x."""

    label: str
    low: float
    high: float
