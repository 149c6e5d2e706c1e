"""Drawn arrivals for requests, with the words on where they come from and what did not fit.

Pure. What a pacing draws does not depend on the requests, only on how many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from ledgers.arrivals import Pacing, draw_arrivals, draw_in_stages
from ledgers.columns import Column
from ledgers.errors import InputError
from ledgers.profile import Profile
from ledgers.units import NS_PER_S

MOST_IN_STAGES = 10_000_000  # where nobody said how many: a slip must not fill the memory


class Timing(NamedTuple):
    """The arrivals of the first requests, where they come from, and what else there is to say."""

    origin: str
    arrivals: Sequence[int]
    notes: Sequence[str] = ()


def draw_timing(process: str, count: int | None, pacing: Pacing) -> Timing:
    """The arrivals of `count` requests; None stands for as many as the stages hold."""
    rate = pacing.request_rate
    if pacing.stages is not None:
        return _in_stages(process, count, pacing.stages, pacing)
    assert count is not None
    if not isinstance(rate, Fraction):
        return at_once(count)
    drawn = draw_arrivals(process, count, rate, pacing.seed, pacing.burstiness)
    return Timing(f"{process} arrivals drawn from seed {pacing.seed}", drawn)


def at_once(count: int) -> Timing:
    return Timing("request rate inf", Column([0] * count))


def _in_stages(process: str, count: int | None, stages: Profile, pacing: Pacing) -> Timing:
    if count is None and stages.requests > MOST_IN_STAGES:
        raise InputError(f"--stages: they make {_average(stages)} requests, so say how many (--num-prompts)")
    most = MOST_IN_STAGES if count is None else count
    arrivals, more = draw_in_stages(process, most, stages, pacing.seed, pacing.burstiness)
    origin = f"{process} arrivals in stages {stages.words}, drawn from seed {pacing.seed}"
    return Timing(origin, arrivals, _misfit(count, arrivals, more, stages))


def _misfit(count: int | None, arrivals: Sequence[int], more: bool, stages: Profile) -> list[str]:
    """What is said if the requests end before the stages, or the stages before the requests."""
    made, end = len(arrivals), f"{float(stages.seconds):g} s"
    if more:
        until = f"the requests end at {arrivals[-1] / NS_PER_S:.4g} of {end}"
        return [f"{until}: there are {made}, and the stages make {_average(stages)}"]
    if count is not None and made < count:
        return [f"the last {count - made} of {count} requests left out: the stages end at {end}"]
    return []


def _average(stages: Profile) -> str:
    return f"about {float(stages.requests):,.0f}"
