"""What a trace is like: how many requests, of which lengths, when, and how much of their prompts they share.

Pure. All figures are exact, over what `ledgers.describer` has taken of the rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from math import ceil, sqrt
from typing import TYPE_CHECKING

import msgspec

from ledgers.distributions import PERCENTILES, rank
from ledgers.units import NS_PER_S

if TYPE_CHECKING:
    from ledgers.intake import Time
    from ledgers.spilling import Ascending

PARTS = 60  # in which arrivals over time are shown


class Lengths(msgspec.Struct, frozen=True):
    """Figures in tokens over `n` requests; percentiles are nearest-rank."""

    mean: float
    min: int
    p50: int
    p90: int
    p95: int
    p99: int
    max: int
    n: int


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What `trace describe` tells. None stands for what is not known.

    `cv` is the coefficient of variation of the gaps between arrivals: their standard deviation (over all n
    gaps, not n - 1) by their mean. `mean_rate_rps` is what loading stretches to a rate: (n - 1) / duration.
    `first_time` and `last_time` are texts where the format has dates, else numbers in the trace's own
    origin and unit. `prefix_reuse` is the share of prompt tokens in blocks that have come before.
    """

    format: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    duration_s: float | None
    mean_rate_rps: float | None
    cv: float | None
    prompt_percentiles: Lengths | None
    output_percentiles: Lengths | None
    sessions: int | None
    prefix_reuse: float | None
    first_time: str | msgspec.Raw | None
    last_time: str | msgspec.Raw | None
    out_of_order: int
    clock_resets: int
    skipped: dict[str, int]
    notes: list[str]


class Arrivals:
    """Ascending times: their number, what their gaps vary by, and how many came when."""

    def __init__(self, times: Ascending | Sequence[Time] = ()) -> None:
        self.count = len(times)
        self.first: Time = next(iter(times), 0)
        self.last = self.first
        self._times = times
        self._squares: Time = 0  # of the gaps
        for before, self.last in pairwise(times):
            self._squares += (self.last - before) ** 2

    @property
    def span(self) -> Time:
        return self.last - self.first

    @property
    def rate(self) -> float | None:
        """(n - 1) / span, per second; None without a span."""
        return float((self.count - 1) * NS_PER_S / Fraction(self.span)) if self.span else None

    @property
    def cv(self) -> float | None:
        """Of the gaps; None with fewer than two, or if all are 0."""
        if self.count < 3 or not self.span:
            return None
        return _cv(self.count - 1, self.span, self._squares)

    def over_time(self) -> list[int]:
        """How many arrive in each of PARTS equal parts of a span above 0, the very last in the last one."""
        first, span, counts = self.first, self.span, [0] * (PARTS + 1)
        for time in self._times:
            counts[(time - first) * PARTS // span] += 1
        return [*counts[: PARTS - 1], counts[PARTS - 1] + counts[PARTS]]

    def busiest_rate(self, window_s: float) -> float:
        """The highest rate, per second, over any stretch as long as the window."""
        window_ns = ceil(window_s * NS_PER_S)
        begins = iter(self._times)
        begin, most, within = next(begins, 0), 0, 0
        for time in self._times:
            within += 1
            while time - begin >= window_ns:
                within -= 1
                begin = next(begins)
            most = max(most, within)
        return most * NS_PER_S / window_ns


def lengths(counts: Counter[int]) -> Lengths | None:
    """Figures of values, each with how often it comes; None without any."""
    n = counts.total()
    if not n:
        return None
    ordered = sorted(counts)
    reached = list(accumulate(counts[value] for value in ordered))
    ranks = [rank(percent, n) for percent in PERCENTILES]
    p50, p90, p95, p99 = (ordered[bisect_left(reached, place)] for place in ranks)
    return Lengths(weighted(counts) / n, ordered[0], p50, p90, p95, p99, ordered[-1], n)


def weighted(counts: Counter[int], power: int = 1) -> int:
    """The sum of all values, or of their powers."""
    return sum(count * value**power for value, count in counts.items())


def _cv(n: int, total: Time, squares: Time) -> float:
    # The mean of squares less the square of the mean, in integers: floats would lose all of a small spread.
    return sqrt(n * Fraction(squares) / Fraction(total) ** 2 - 1)
