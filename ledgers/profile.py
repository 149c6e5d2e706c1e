"""Rates that change over time: stages of a constant rate or of a linear ramp, and the clock that they drive.

Pure. A process with a mean gap of 1, its times mapped through the inverse of the cumulated rate, becomes the
same process at these rates: exactly, and for any process (Çinlar's inversion).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import isqrt
from typing import NamedTuple

from ledgers.errors import InputError
from ledgers.formats.fields import shown
from ledgers.units import NS_PER_S, exact

MOST = 10**9
"""The highest rate in req/s, and the longest profile in seconds: 31 years."""
_ROOT_BITS = 64
_BETWEEN_RATES = re.compile(r"(?<![eE])-")  # not the minus of an exponent


class Stage(NamedTuple):
    """A rate in requests per second that changes linearly from `first` to `last`."""

    first: Fraction
    last: Fraction
    seconds: Fraction

    @property
    def requests(self) -> Fraction:
        """How many it makes on average: the area under its rate. A pause makes none."""
        return (self.first + self.last) / 2 * self.seconds


@dataclass(frozen=True)
class Profile:
    """Stages, one after another, and the words for them. InputError if they begin or end with a pause."""

    stages: tuple[Stage, ...]
    words: str

    def __post_init__(self) -> None:
        if self.seconds > MOST:
            raise InputError(f"--stages: they last {float(self.seconds):g} s, more than {MOST:,}")
        if not self.stages[0].requests:
            raise InputError("--stages: the first is a pause, but the first request arrives at 0")
        if not self.stages[-1].requests:
            raise InputError("--stages: the last is a pause, but no request follows it")

    @cached_property
    def seconds(self) -> Fraction:
        return sum((stage.seconds for stage in self.stages), Fraction(0))

    @cached_property
    def requests(self) -> Fraction:
        return sum((stage.requests for stage in self.stages), Fraction(0))

    def times_ns(self, positions: Iterable[Fraction]) -> Iterator[int]:
        """When so many requests have been made, for positions in order; up to the first past the last stage.

        A stage has its beginning and not its end, so a position between two stages is in the later one.
        """
        ahead = iter(self.stages)
        begin_s = end_s = since = until = Fraction(0)
        for position in positions:
            while position >= until:
                stage = next(ahead, None)
                if stage is None:
                    return
                begin_s, end_s = end_s, end_s + stage.seconds
                since, until = until, until + stage.requests
                seconds_into = _inverse(stage)
            yield round((begin_s + seconds_into(position - since)) * NS_PER_S)


def _inverse(stage: Stage) -> Callable[[Fraction], Fraction]:
    """From the requests that a stage has made to the seconds that it took."""
    if stage.first == stage.last:
        return lambda requests: requests / stage.first
    slope = (stage.last - stage.first) / stage.seconds
    since_zero = stage.first / slope  # a falling ramp will be at 0 only later: less than none
    sign = 1 if slope > 0 else -1

    def solve(requests: Fraction) -> Fraction:
        seconds = sign * _root(since_zero * since_zero + 2 * requests / slope) - since_zero
        return min(max(seconds, Fraction(0)), stage.seconds)  # whatever was cut off the root

    return solve


def _root(square: Fraction) -> Fraction:
    """The square root, cut off after 64 binary places: in seconds, far below a nanosecond."""
    return Fraction(isqrt((square.numerator << 2 * _ROOT_BITS) // square.denominator), 1 << _ROOT_BITS)


def parse_stages(text: str) -> Profile:
    """`5:30,5-50:60,50:30` is 5 req/s for 30 s, a ramp from 5 to 50 over 60 s, 50 for 30 s."""
    words = [word.strip() for word in text.split(",")]
    return Profile(tuple(_parse_stage(word) for word in words), ",".join(words))


def _parse_stage(word: str) -> Stage:
    rates, _, seconds = word.partition(":")
    ends = _BETWEEN_RATES.split(rates, maxsplit=1)
    try:
        stage = Stage(exact(ends[0]), exact(ends[-1]), exact(seconds))
    except ValueError:
        raise _unusable(word) from None
    if not (0 <= min(stage.first, stage.last) <= max(stage.first, stage.last) <= MOST and stage.seconds > 0):
        raise _unusable(word)
    return stage


def _unusable(word: str) -> InputError:
    rule = f"rates from 0 to {MOST:,} req/s and seconds above 0"
    return InputError(f"--stages: {shown(word)} is not RATE:SECONDS or RATE-RATE:SECONDS, with {rule}")
