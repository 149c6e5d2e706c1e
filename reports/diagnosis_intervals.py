"""How sure a difference is: intervals for shares and for means of requests that are not independent. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import sqrt
from statistics import NormalDist, fmean, variance
from typing import NamedTuple

CONFIDENCE = 0.95
BATCHES = 8
_T = 2.365  # Student's t: two-sided 95 %, BATCHES - 1 degrees of freedom
LEAST_COMPARED = 2 * BATCHES
RISE = 0.1  # of the baseline, from which on a figure is up
STEADY = 0.1  # of the baseline, within which the whole interval of a steady figure lies


def wilson(successes: int, n: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Score interval for a share. E. B. Wilson, JASA 22 (1927), 209-212."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, spread = successes / n, z * z / n
    middle = share + spread / 2
    half = z * sqrt(share * (1 - share) / n + spread / (4 * n))
    return (middle - half) / (1 + spread), (middle + half) / (1 + spread)


class Change(NamedTuple):
    """A mean before and after, and the interval of after − before; `paired` by request id or not."""

    before: float
    after: float
    low: float
    high: float
    n: int
    paired: bool

    @property
    def up(self) -> bool:
        return self.low > 0 and self.after - self.before >= RISE * self.before

    @property
    def steady(self) -> bool:
        return -STEADY * self.before <= self.low and self.high <= STEADY * self.before


def change(before: Mapping[str, float], after: Mapping[str, float]) -> Change | None:
    """From values by request id, in order of arrival; None if there are too few.

    Neighbours share a queue, so the interval is over the means of consecutive batches, not over requests.
    Runs of one ledger are compared request by request, which leaves out how requests differ from each other.
    """
    common = [id for id in before if id in after]
    if len(common) >= max(LEAST_COMPARED, 0.9 * max(len(before), len(after))):
        differences = batch_means([after[id] - before[id] for id in common])
        middle = fmean(after[id] - before[id] for id in common)
        half = _T * sqrt(variance(differences) / BATCHES)
        one_mean, other_mean = (fmean(side[id] for id in common) for side in (before, after))
        return Change(one_mean, other_mean, middle - half, middle + half, len(common), paired=True)
    if min(len(before), len(after)) < LEAST_COMPARED:
        return None
    one, other = (list(side.values()) for side in (before, after))
    half = _T * sqrt(sum(variance(batch_means(side)) for side in (one, other)) / BATCHES)
    middle = fmean(other) - fmean(one)
    n = min(len(one), len(other))
    return Change(fmean(one), fmean(other), middle - half, middle + half, n, paired=False)


def batch_means(values: Sequence[float]) -> list[float]:
    """Of BATCHES consecutive parts, as equal as can be."""
    edges = [len(values) * place // BATCHES for place in range(BATCHES + 1)]
    return [fmean(values[begin:end]) for begin, end in pairwise(edges)]
