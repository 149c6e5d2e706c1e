"""How sure a difference between two runs is, whose requests are not independent. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import sqrt
from statistics import fmean, variance
from typing import NamedTuple

from ledgers.intervals import CONFIDENCE, student_quantile

BATCHES = 8
_T = student_quantile(BATCHES - 1, CONFIDENCE)
LEAST_COMPARED = 2 * BATCHES
RISE = 0.1  # of the baseline, from which on a figure is up
STEADY = 0.1  # of the baseline, within which the whole interval of a steady figure lies


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
