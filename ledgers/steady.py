"""Whether a run was steady, its queue grew, or it was overloaded, with the evidence.

Pure: knows instants in ns and how many were in flight. A trend is judged by batch means: the arrivals are cut
into ten slices of time, and the slope is the mean of the steps from one slice's mean number in flight to the
next. A line fitted by ordinary least squares would be no use: at its limit and above, a queue is a random
walk, around which the usual interval finds trends that are none (Durlauf & Phillips, Econometrica 56 (1988),
1333-1354). So the interval is the one that is right for a random walk with a drift. In a steady queue a rise
is followed by a fall, and the interval is wider than it need be; it is never too narrow.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from itertools import pairwise
from math import sqrt
from typing import Literal

import msgspec

from ledgers.concurrency import InFlight
from ledgers.intervals import LEAST_IN_BATCH, mean_interval
from ledgers.units import NS_PER_S

StabilityVerdict = Literal["steady", "growing", "overload", "undetermined"]
SLICES = 10
NEIGHBOURS = 1.5
"""Means of a random walk over slices of length d step by a variance of 2/3·d and a covariance of 1/6·d with
the next step, so that the mean step varies as 2/3 + 2·1/6 = 1: 1.5 times as much as of independent ones."""
FILLERS = 20  # of the first requests: until they have left, a run fills up
PILES_UP = 0.05  # of what arrives: what a steady run may be shown not to exceed
GOES_ON = 0.25  # of the whole slope, that the last third must have


class Stability(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on the arrivals from `begin_s` to `end_s`, with 95 % limits of the slope.

    `share` is the slope over the rate of arrivals: what of them piles up. `rho` is what was asked of the
    hardware over what it can do, where it is known.
    """

    verdict: StabilityVerdict
    slope_per_s: float | None = None
    low: float | None = None
    high: float | None = None
    share: float | None = None
    last_third_per_s: float | None = None
    rho: float | None = None
    begin_s: float
    end_s: float
    reason: str


def filled_ns(stays: Iterable[tuple[int, int]], begin_ns: int, end_ns: int) -> int:
    """When a run that began empty has filled up: the first requests have left, or half of it is over.

    `stays` are from when to when requests were in flight. Until then the number in flight grows in any run.
    """
    first = nsmallest(FILLERS, (stay for stay in stays if stay[0] >= begin_ns))
    return min(max((left for _, left in first), default=begin_ns), (begin_ns + end_ns) // 2)


def stability(flight: InFlight, begin_ns: int, end_ns: int, *, rho: float | None = None) -> Stability:
    """The verdict on what was in flight while requests arrived.

    Overload: the slope's interval is above 0, and the last third has a quarter of it or more, so it goes on.
    Growing: above 0, and it does not go on. Steady: not above 0, and at most 5 % of what arrives could pile
    up. Else the run is too short to tell.
    """
    arrived = flight.arrived(begin_ns, end_ns)
    span_s = (end_ns - begin_ns) / NS_PER_S
    begin_s, end_s = begin_ns / NS_PER_S, end_ns / NS_PER_S
    if arrived < SLICES * LEAST_IN_BATCH or span_s <= 0:
        reason = f"{arrived} arrivals are too few to tell"
        return Stability(verdict="undetermined", rho=rho, begin_s=begin_s, end_s=end_s, reason=reason)
    steps = _steps_per_s(flight, begin_ns, end_ns)
    slope, (low, high) = sum(steps) / len(steps), mean_interval(steps)
    half = sqrt(NEIGHBOURS) * (high - low) / 2
    low, high = slope - half, slope + half
    late = steps[-(len(steps) // 3) :]
    late_slope, rate = sum(late) / len(late), arrived / span_s
    verdict, reason = _verdict(slope, low, high / rate, late_slope)
    return Stability(
        verdict=verdict,
        slope_per_s=slope,
        low=low,
        high=high,
        share=slope / rate,
        last_third_per_s=late_slope,
        rho=rho,
        begin_s=begin_s,
        end_s=end_s,
        reason=reason,
    )


def _steps_per_s(flight: InFlight, begin_ns: int, end_ns: int) -> list[float]:
    """From the mean number in flight of each slice to that of the next, over the time between."""
    edges = [begin_ns + (end_ns - begin_ns) * i // SLICES for i in range(SLICES + 1)]
    means = [flight.mean(begin, end) or 0.0 for begin, end in pairwise(edges)]
    return [(after - before) * SLICES * NS_PER_S / (end_ns - begin_ns) for before, after in pairwise(means)]


def _verdict(slope: float, low: float, most: float, late: float) -> tuple[StabilityVerdict, str]:
    if low > 0:
        if late >= GOES_ON * slope:
            return "overload", "more arrives than leaves, to the end"
        return "growing", "the number in flight grew, but not to the end"
    if most <= PILES_UP:
        return "steady", f"at most {max(most, 0):.1%} of what arrives could pile up"
    return (
        "undetermined",
        f"swings too far, or is too short, to tell: up to {most:.0%} of what arrives could pile up",
    )
