"""How sure a difference between two runs is, whose requests are not independent. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from ledgers.intervals import CONFIDENCE, LEAST_BATCHES, LEAST_IN_BATCH, batched
from reports.compare_effects import student_difference

LEAST_COMPARED = LEAST_BATCHES * LEAST_IN_BATCH
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
        return _between(*([side[id] for id in common] for side in (before, after)), paired=True)
    if min(len(before), len(after)) < LEAST_COMPARED:
        return None
    return _between(*(list(side.values()) for side in (before, after)), paired=False)


def _between(one: Sequence[float], other: Sequence[float], *, paired: bool) -> Change:
    before, after = fmean(one), fmean(other)
    first, second = ([fmean(batch) for batch in batched(side)] for side in (one, other))
    low, high = student_difference(after - before, first, second, CONFIDENCE, paired=paired)
    return Change(before, after, low, high, min(len(one), len(other)), paired)
