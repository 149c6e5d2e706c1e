"""How many requests were in flight, and Little's law with the reasons why it does or does not apply.

Pure: knows instants in ns, and nothing of rows.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

TOLERANCE = 0.05  # of L, that edge effects may make up


class InFlight:
    """When requests were in flight: queue, prefill and decode together, from arrival to leaving."""

    def __init__(self, starts: Iterable[int], ends: Iterable[int]) -> None:
        """As many ends as starts, in whatever order; none is before its start."""
        self._arrivals = array("q", sorted(starts))
        self._departures = array("q", sorted(ends))

    def at(self, time_ns: int) -> int:
        """How many were in flight at an instant; one that leaves then has left, one that arrives is here."""
        return bisect_right(self._arrivals, time_ns) - bisect_right(self._departures, time_ns)

    def arrived(self, begin_ns: int, end_ns: int) -> int:
        """How many came after an instant and up to another."""
        return bisect_right(self._arrivals, end_ns) - bisect_right(self._arrivals, begin_ns)

    def rising(self) -> Callable[[int], int]:
        """As `at`, for instants none of which is before the last one asked for: many cost little."""
        arrivals, departures = self._arrivals, self._departures
        arrived = left = 0

        def at(time_ns: int) -> int:
            nonlocal arrived, left
            while arrived < len(arrivals) and arrivals[arrived] <= time_ns:
                arrived += 1
            while left < len(departures) and departures[left] <= time_ns:
                left += 1
            return arrived - left

        return at

    def mean(self, begin_ns: int, end_ns: int) -> float | None:
        """The time average over an interval; None if it is empty."""
        if end_ns <= begin_ns:
            return None
        arrived, left = (_time_after(times, begin_ns, end_ns) for times in (self._arrivals, self._departures))
        return (arrived - left) / (end_ns - begin_ns)

    def peak(self, begin_ns: int | None = None, end_ns: int | None = None) -> int:
        """The most at once, in an interval perhaps; of one instant a departure counts before an arrival."""
        if begin_ns is not None and end_ns is not None:
            inside = self._arrivals[
                bisect_right(self._arrivals, begin_ns) : bisect_right(self._arrivals, end_ns)
            ]
            return max(map(self.at, [begin_ns, *inside]))
        most = left = 0
        for arrived, time in enumerate(self._arrivals, 1):
            while left < arrived and self._departures[left] <= time:
                left += 1
            most = max(most, arrived - left)
        return most


def _time_after(times: array[int], begin_ns: int, end_ns: int) -> int:
    """What passes of an interval after each of ascending `times`, summed."""
    before, until = bisect_right(times, begin_ns), bisect_left(times, end_ns)
    return (until - before) * end_ns - sum(memoryview(times)[before:until]) + before * (end_ns - begin_ns)


class LittlesLaw(msgspec.Struct, frozen=True):
    """L against X·W, X = completed/T_obs (req/s), W = their mean E2E (s), and why it applies or does not."""

    concurrency_mean: float
    throughput_rps: float
    e2e_mean_s: float | None
    product: float | None
    applies: bool
    in_flight_at_end: int
    reasons: list[str]


def littles_law(
    flight: InFlight,
    t_obs_ns: int,
    last_arrival_ns: int,
    e2e_ns: Sequence[int],
    others: Mapping[str, int],
    *,
    begin_ns: int = 0,
) -> LittlesLaw | None:
    """Compare L with X·W over the window [begin, T_obs]; None if it is empty.

    `e2e_ns` are the completed requests'; `others` counts, by outcome, those in flight that did not complete.
    Times in flight add up to L·T_obs, those of the completed to X·W·T_obs; so what separates the two is the
    time of the others. The law applies if the two are within 5 %. That they are says nothing of whether a
    queue grew, which is for `ledgers.steady` to judge: in a run that began and ended empty they are equal,
    whatever went on between. J. D. C. Little, A proof for the queuing formula L = λW, Operations Research 9
    (1961), 383-387.
    """
    mean = flight.mean(begin_ns, t_obs_ns)
    if mean is None:
        return None
    product = sum(e2e_ns) / (t_obs_ns - begin_ns)
    close = abs(mean - product) <= TOLERANCE * mean
    return LittlesLaw(
        concurrency_mean=mean,
        throughput_rps=len(e2e_ns) * 1e9 / (t_obs_ns - begin_ns),
        e2e_mean_s=sum(e2e_ns) / len(e2e_ns) / 1e9 if e2e_ns else None,
        product=product if e2e_ns else None,
        applies=bool(close and e2e_ns),
        in_flight_at_end=others.get("unfinished", 0),
        reasons=[_halves(flight, begin_ns, last_arrival_ns), _edges(mean, product, others)],
    )


def _halves(flight: InFlight, begin_ns: int, last_arrival_ns: int) -> str:
    middle = (begin_ns + last_arrival_ns) // 2
    first, second = flight.mean(begin_ns, middle), flight.mean(middle, last_arrival_ns)
    if first is None or second is None:
        return "all arrived at one instant"
    return f"{first:.2f} in flight in the first half of the arrivals, {second:.2f} in the second"


def _edges(mean: float, product: float, others: Mapping[str, int]) -> str:
    rest = ", ".join(f"{count} {outcome}" for outcome, count in others.items())
    if not rest:
        return "no edge effects: everything in flight in the window completed in it"
    share = (mean - product) / mean if mean else 0.0
    return f"edge effects: {rest}; {share:.0%} of the time in flight was theirs"
