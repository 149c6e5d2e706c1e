"""From values to places in a picture, and which values are written along an axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, floor, isfinite, log10
from typing import NamedTuple

from reports.charts.shapes import Axis, ScaleKind

STEPS = (1, 2, 2.5, 5, 10)
MOST_NINES = 7  # beyond, 1 - q is rounding
LARGE = 10_000


class Tick(NamedTuple):
    value: float
    label: str


class Scale(NamedTuple):
    """`low` and `high` are values, `start` and `end` where they are drawn. `whole`: ticks are integers."""

    kind: ScaleKind
    low: float
    high: float
    start: float
    end: float
    whole: bool = False

    def at(self, value: float) -> float:
        low, high = _bent(self.kind, self.low), _bent(self.kind, self.high)
        return self.start + (self.end - self.start) * (_bent(self.kind, value) - low) / (high - low)


def scale(axis: Axis, values: Iterable[float], start: float, end: float, *, ticks: int = 5) -> Scale:
    """One that shows all values, with round ends where the axis does not say."""
    drawable = [value for value in values if isfinite(value) and (axis.scale != "log" or value > 0)]
    low, high = min(drawable, default=float(axis.scale == "log")), max(drawable, default=10.0)
    if axis.scale == "percentile":
        last = max((value for value in drawable if value < 1), default=0.0)
        return Scale("percentile", 0.0, max(0.9, 1 - max((1 - last) / 2, 10**-MOST_NINES)), start, end)
    low = low if axis.low is None else axis.low
    high = high if axis.high is None else axis.high
    ends = _log_ends(low, high) if axis.scale == "log" else _linear_ends(low, high, ticks, whole=axis.whole)
    low = ends[0] if axis.low is None else axis.low
    high = ends[1] if axis.high is None else axis.high
    return Scale(axis.scale, low, high if high > low else low + 1, start, end, axis.whole)


def ticks(of: Scale, most: int = 5) -> list[Tick]:
    """The values to write along it, from low to high."""
    if of.kind == "percentile":
        return _percentile_ticks(of.high)
    if of.kind == "log":
        return _log_ticks(of.low, of.high, most)
    step = _step((of.high - of.low) / most, whole=of.whole)
    first, last = ceil(of.low / step - 1e-9), floor(of.high / step + 1e-9)
    return [Tick(i * step, written(i * step, step)) for i in range(first, last + 1)]


def written(value: float, step: float) -> str:
    """A tick's value with the decimals its step needs, and large ones in thousands and millions."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(size, LARGE):
            return f"{value / size:.2f}".rstrip("0").rstrip(".") + letter
    decimals = max(0, -floor(log10(step) + 1e-9)) if step > 0 else 0
    if step > 0 and round(step * 10**decimals, 6) % 1:  # 2.5 and 0.25
        decimals += 1
    return f"{value + 0.0:.{decimals}f}"


def _bent(kind: ScaleKind, value: float) -> float:
    if kind == "log":
        return log10(max(value, 1e-12))
    if kind == "percentile":
        return -log10(max(1 - value, 10**-MOST_NINES))
    return value


def _step(rough: float, *, whole: bool = False) -> float:
    rough = max(rough, 1.0) if whole else rough
    size = 10.0 ** floor(log10(rough)) if rough > 0 else 1.0
    steps = [step * size for step in STEPS if not whole or step * size % 1 == 0]
    return next(step for step in steps if step >= rough * (1 - 1e-9))


def _linear_ends(low: float, high: float, count: int, *, whole: bool) -> tuple[float, float]:
    """From zero where that is near, and on to the next tick."""
    if (low >= 0 and low < high * 0.7) or low == high:
        low = min(low, 0.0)
    if low == high:
        high = low + 1
    step = _step((high - low) / count, whole=whole)
    return floor(low / step + 1e-9) * step, ceil(high / step - 1e-9) * step


def _log_ends(low: float, high: float) -> tuple[float, float]:
    """To whole steps of 1, 2, 5."""
    return _log_step(low, down=True), _log_step(high * (1.001 if low == high else 1), down=False)


def _log_step(value: float, *, down: bool) -> float:
    size = 10.0 ** floor(log10(value) + 1e-9)
    steps: Sequence[float] = [size * step for step in (1, 2, 5, 10)]
    if down:
        return max(step for step in steps if step <= value * (1 + 1e-9))
    return min(step for step in steps if step >= value * (1 - 1e-9))


def _log_ticks(low: float, high: float, most: int) -> list[Tick]:
    first, last = floor(log10(low) + 1e-9), ceil(log10(high) - 1e-9)
    for per_decade in ((1, 2, 5), (1, 3), (1,)):
        found = [10.0**power * step for power in range(first, last + 1) for step in per_decade]
        found = [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if len(found) <= most + 1:
            break
    every = ceil(len(found) / (most + 1))
    return [Tick(value, written(value, value)) for value in found[::every]]


def _percentile_ticks(high: float) -> list[Tick]:
    found = [Tick(0.0, "0"), Tick(0.5, "50%"), Tick(0.9, "90%"), Tick(0.99, "99%")]
    found += [Tick(1 - 10.0**-nines, f"99.{'9' * (nines - 2)}%") for nines in range(3, MOST_NINES + 1)]
    return [tick for tick in found if tick.value <= high + 1e-12]
