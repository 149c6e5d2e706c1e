"""Percentiles by nearest rank over exact values, and Kaplan–Meier estimates where some were cut off.

Pure: knows durations in ns, and nothing of requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import fsum
from typing import TypeVar

import msgspec

from ledgers.units import NS_PER_MS, ceil_div, exact

PERCENTILES = (50, 90, 95, 99)
LEAST_AT_RISK = 5  # for a percentile that is estimated
Percent = int | float | str | Fraction
T = TypeVar("T", int, float)


def nearest_rank(values: Sequence[T], percent: Percent) -> T:
    """The ceil(p·n/100)-th smallest of ascending `values`, the rank in integers. p = 0 gives the smallest.

    Raises ValueError without values, or with a percentile outside 0 to 100.
    """
    if not values:
        raise ValueError("no values, so no percentile")
    return values[rank(percent, len(values)) - 1]


def rank(percent: Percent, n: int) -> int:
    """Which of n ascending values is the nearest-rank percentile, counted from 1."""
    p = exact(percent)
    if not 0 <= p <= 100:
        raise ValueError(f"percentile {percent} is not between 0 and 100")
    return max(1, ceil_div(p.numerator * n, p.denominator * 100))


def rests_on_largest(percent: Percent, n: int) -> bool:
    """Whether n samples are fewer than a percentile needs, n < 100/(100 − p), so that it is their maximum."""
    return n * (100 - exact(percent)) < 100


class Distribution(msgspec.Struct, frozen=True):
    """Exact figures in ms over `n` values; percentiles are nearest-rank."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float
    n: int

    def resting(self) -> list[str]:
        """The percentiles that rest on the largest sample."""
        return [f"p{p}" for p in PERCENTILES if rests_on_largest(p, self.n)]


def distribution(values_ns: Iterable[int] | Iterable[float]) -> Distribution | None:
    """The figures of values in ns; None if there are none."""
    ordered = sorted(values_ns)
    if not ordered:
        return None
    n = len(ordered)
    total = fsum(ordered) if isinstance(ordered[0], float) else sum(ordered)
    p50, p90, p95, p99, largest = (nearest_rank(ordered, p) / NS_PER_MS for p in (*PERCENTILES, 100))
    return Distribution(total / (n * NS_PER_MS), p50, p90, p95, p99, largest, n)


class Survival(msgspec.Struct, frozen=True):
    """Kaplan–Meier estimates in ms; None where too few were left, or the curve does not come down so far.

    `n` requests, of which `censored` had not got there when they were last seen.
    """

    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    n: int
    censored: int


def kaplan_meier(
    observed_ns: Iterable[int], censored_ns: Iterable[int], least_at_risk: int = LEAST_AT_RISK
) -> Survival | None:
    """Percentiles for all, from durations seen to their end and durations cut off (right-censored).

    The product-limit estimate S(t) = Π (1 − 1/r) over the ends, one by one, r being at risk before each; a
    cut-off at the same time as an end still counts as at risk. The p-th percentile is the first end with
    S ≤ 1 − p/100, which without censoring is the nearest rank. Kaplan & Meier, JASA 53 (1958), 457-481. The
    steps grow as fewer are left, up to the last, which brings the curve from anywhere to 0: a percentile
    that comes where r < `least_at_risk` is that of one or two requests, and None. None if there is nothing.
    """
    ends, cuts = sorted(observed_ns), sorted(censored_ns)
    n = len(ends) + len(cuts)
    if not n:
        return None
    found: list[float | None] = []
    survival, cut = 1.0, 0
    for number, time in enumerate(ends):
        while cut < len(cuts) and cuts[cut] < time:
            cut += 1
        at_risk = n - number - cut
        if at_risk < least_at_risk or len(found) == len(PERCENTILES):
            break
        survival *= 1 - 1 / at_risk
        # A product of n floats is off by about n·1e-16, far less than the 1/n between two ranks.
        while len(found) < len(PERCENTILES) and survival <= 1 - PERCENTILES[len(found)] / 100 + 1e-9:
            found.append(time / NS_PER_MS)
    found += [None] * (len(PERCENTILES) - len(found))
    p50, p90, p95, p99 = found
    return Survival(p50, p90, p95, p99, n, len(cuts))
