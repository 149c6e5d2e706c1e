"""How far a figure of one side lies from that of another, with an interval. Pure: values in, an effect out.

Values of a run depend on one another: who queues behind a slow request is slow as well. So everything here
goes by batches of consecutive requests (or slices of time), as `ledgers.intervals` does. Runs of one ledger
are paired: their batches hold the same requests, and what these have in common cancels out.

- Means and rates: Student's interval from the linearized batch values, of the ratio on a log scale.
- Shares: Wilson's limits of each side at its effective size, combined by the square-and-add rule with the
  correlation of the paired batches, whose scatter makes the widths (R. G. Newcombe, Statistics in Medicine 17
  (1998), 873-890 and 2635-2650).
- Percentiles of separate ledgers: the order-statistic limits of each side, combined by the same rule on a log
  scale (G. Y. Zou & A. Donner, Statistics in Medicine 27 (2008), 1693-1702).
- Percentiles of pairs: the block bootstrap over request pairs. Of a tail only as many degrees of freedom are
  taken as it has independent values; its own percentiles would be too narrow there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import chain
from math import exp, fsum, log, sqrt
from operator import mul
from random import Random
from statistics import variance
from typing import Literal, NamedTuple

from ledgers.distributions import nearest_rank, rank
from ledgers.intervals import (
    Interval,
    Limits,
    carried_over,
    effective_n,
    percentile_of_batches,
    student_quantile,
    wilson_share,
)

Batches = Sequence[Sequence[float]]
Scale = Literal["ratio", "difference"]
DRAWS = 400
LEAST_TAIL = 2  # independent values beyond a percentile
NOTHING: Limits = (None, None)


class Effect(NamedTuple):
    """What became of a figure: `low` and `high` are limits of the ratio, or of the difference.

    `why` says why there are none. One of them is None where the sample cannot bound that side. `beyond`: how
    many independent values lie beyond a percentile, on the side that has fewer.
    """

    before: float
    after: float
    scale: Scale
    low: float | None = None
    high: float | None = None
    why: str | None = None
    paired: bool = False
    beyond: float | None = None

    @property
    def difference(self) -> float:
        return self.after - self.before

    @property
    def ratio(self) -> float | None:
        return self.after / self.before if self.before else None


# Means and rates


def ratio_of_means(before: Batches, after: Batches, confidence: float, *, paired: bool) -> Interval:
    """Limits of mean(after)/mean(before), both above 0, from their values by batch."""
    one, other = linearized(before), linearized(after)
    middle = log(_mean(after) / _mean(before))
    return _exp(student_difference(middle, one, other, confidence, paired=paired))


def linearized(batches: Batches) -> list[float]:
    """By how much each batch moves the mean, relative to it and times the number of batches."""
    mean, per_batch = _mean(batches), sum(map(len, batches)) / len(batches)
    return [(fsum(batch) - mean * len(batch)) / (per_batch * mean) for batch in batches]


def _mean(batches: Batches) -> float:
    return fsum(map(fsum, batches)) / sum(map(len, batches))


def student_difference(
    middle: float, one: Sequence[float], other: Sequence[float], confidence: float, *, paired: bool
) -> Interval:
    """Student's interval of other − one, or Welch's (Biometrika 34 (1947), 28-35) if they are not pairs."""
    if paired:
        spread = _variance_of_mean([after - before for before, after in zip(one, other, strict=True)])
        degrees = len(one) - 1
    else:
        parts = [(_variance_of_mean(side), len(side) - 1) for side in (one, other)]
        spread = fsum(part for part, _ in parts)
        squares = fsum(part * part / free for part, free in parts)
        degrees = int(spread * spread / squares) if squares else min(free for _, free in parts)
    half = student_quantile(max(1, degrees), confidence) * sqrt(spread)
    return middle - half, middle + half


def _variance_of_mean(batches: Sequence[float]) -> float:
    return variance(batches) * carried_over(batches) / len(batches)


def repeats(
    before: Sequence[float], after: Sequence[float], confidence: float, *, paired: bool, scale: Scale
) -> Interval:
    """Limits from what each of several runs came to: they are independent, whatever goes on within one."""
    means = fsum(before) / len(before), fsum(after) / len(after)
    by = means if scale == "ratio" else (1.0, 1.0)
    one, other = ([value / unit for value in side] for side, unit in zip((before, after), by, strict=True))
    if paired:
        spread = variance([b - a for a, b in zip(one, other, strict=True)]) / len(one)
        degrees = len(one) - 1
    else:
        parts = [variance(side) / len(side) for side in (one, other)]
        spread, degrees = fsum(parts), min(len(one), len(other)) - 1
    half = student_quantile(degrees, confidence) * sqrt(spread)
    if scale == "difference":
        return means[1] - means[0] - half, means[1] - means[0] + half
    middle = log(means[1] / means[0])
    return _exp((middle - half, middle + half))


# Shares


def difference_of_shares(before: Batches, after: Batches, confidence: float, *, paired: bool) -> Interval:
    """Limits of share(after) − share(before), from 0s and 1s by batch; of pairs, in the same order."""
    one, other = ([fsum(batch) / len(batch) for batch in side] for side in (before, after))
    return difference_of_limits(
        _mean(before),
        share_limits(before, confidence),
        _mean(after),
        share_limits(after, confidence),
        correlation(one, other) if paired else 0.0,
    )


def difference_of_limits(
    p: float, limits: Interval, q: float, q_limits: Interval, together: float = 0.0
) -> Interval:
    """Limits of q − p, from those of each at the same confidence, and how far the two go together."""
    (p_low, p_high), (q_low, q_high) = limits, q_limits
    return (
        q - p - _square_and_add(q - q_low, p_high - p, together),
        q - p + _square_and_add(q_high - q, p - p_low, together),
    )


def share_limits(flags: Batches, confidence: float) -> Interval:
    n = sum(map(len, flags))
    worth = effective_n([fsum(batch) / len(batch) for batch in flags], n, confidence)
    return wilson_share(_mean(flags), worth, confidence)


def _square_and_add(one: float, other: float, together: float) -> float:
    return sqrt(max(0.0, one * one + other * other - 2 * together * one * other))


def correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """0 where one of them does not vary."""
    x, y = fsum(one) / len(one), fsum(other) / len(other)
    together = fsum((a - x) * (b - y) for a, b in zip(one, other, strict=True))
    alone = fsum((a - x) ** 2 for a in one) * fsum((b - y) ** 2 for b in other)
    return together / sqrt(alone) if alone else 0.0


# Percentiles


def ratio_of_percentiles(before: Batches, after: Batches, percent: int, confidence: float) -> Limits:
    """Limits of the ratio of a percentile of two separate samples of values above 0."""
    sides = [_percentile(side, percent, confidence) for side in (before, after)]
    (p, p_low, p_high), (q, q_low, q_high) = sides
    middle = log(q / p)
    low = high = None
    if q_low is not None and p_high is not None:
        low = exp(middle - _square_and_add(log(q / q_low), log(p_high / p), 0.0))
    if q_high is not None and p_low is not None:
        high = exp(middle + _square_and_add(log(q_high / q), log(p / p_low), 0.0))
    return low, high


def _percentile(
    batches: Batches, percent: int, confidence: float
) -> tuple[float, float | None, float | None]:
    ordered = sorted(chain(*batches))
    found = percentile_of_batches(ordered, [sorted(batch) for batch in batches], percent, confidence)
    return nearest_rank(ordered, percent), found.low, found.high


def ratio_of_paired_percentiles(before: Batches, after: Batches, percent: int, confidence: float) -> Limits:
    """The same where batch k of both sides holds the same requests; none if the tail is too thin."""
    sides = [Weighted(side, percent) for side in (before, after)]
    tail = int(min(side.tail(confidence) for side in sides))
    if tail < LEAST_TAIL:
        return NOTHING
    count, uniform = len(before), Random(0).random
    ratios = []
    for _ in range(DRAWS):
        weights = [0] * count
        for _ in range(count):
            weights[int(uniform() * count)] += 1
        one, other = (side.value(weights) for side in sides)
        ratios.append(log(other / one))
    moves = [b - a for a, b in zip(*(side.below for side in sides), strict=True)]
    spread = variance(ratios) * count / (count - 1) * carried_over(moves)
    half = student_quantile(min(count, tail) - 1, confidence) * sqrt(spread)
    middle = log(sides[1].middle / sides[0].middle)
    return _exp((middle - half, middle + half))


def values_beyond(before: Batches, after: Batches, percent: int, confidence: float) -> float:
    """How many independent values lie beyond a percentile, of the side that has fewer."""
    return min(Weighted(side, percent).tail(confidence) for side in (before, after))


class Weighted:
    """A percentile of values of which each batch can count several times."""

    def __init__(self, batches: Batches, percent: int) -> None:
        self._batches = [sorted(batch) for batch in batches]
        self._sizes = [len(batch) for batch in batches]
        self._values = sorted(chain(*batches))
        self._percent = percent
        self._known: dict[int, list[int]] = {}
        self.middle = nearest_rank(self._values, percent)
        self.below = [bisect_right(batch, self.middle) / len(batch) for batch in self._batches]

    def value(self, weights: Sequence[int]) -> float:
        """By halving: a sum over the batches at each step, in place of one over all values."""
        wanted = rank(self._percent, sum(map(mul, weights, self._sizes)))
        low, high = 0, len(self._values) - 1
        while low < high:
            middle = (low + high) // 2
            if sum(map(mul, weights, self._reached(middle))) >= wanted:
                high = middle
            else:
                low = middle + 1
        return self._values[low]

    def _reached(self, index: int) -> list[int]:
        """How many values of each batch are no larger than this one."""
        if index not in self._known:
            self._known[index] = [bisect_right(batch, self._values[index]) for batch in self._batches]
        return self._known[index]

    def tail(self, confidence: float) -> float:
        """How many independent values lie beyond the percentile, on its shorter side."""
        worth = effective_n(self.below, len(self._values), confidence)
        return worth * min(self._percent, 100 - self._percent) / 100


def _exp(limits: Interval) -> Interval:
    return exp(limits[0]), exp(limits[1])
