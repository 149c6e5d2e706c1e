"""Which rate to try next, and what the verdicts so far amount to. Pure: knows rates and verdicts only.

Bisection, but without taking for granted that what is missed at one rate is missed at every higher one: rates
below and above the answer are tried as well, and a miss below it moves the answer down. A rate whose verdict
stays open counts for neither side, so the answer can be a pair of rates with an open question between them.

A throughput is required of a load that can have it: below that rate it is missed, and so are lower ones. Such
a rate has a `lift`, the rate to which the load must be raised for it. From the lowest on these are followed
to the first rate that is kept; what lacks load below that one is no miss of the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import ceil, log10, sqrt
from typing import Literal

import msgspec

from reports.grid import DIGITS, rounded

Verdict = Literal["kept", "missed", "open"]
Verdicts = Mapping[Fraction, Verdict]
Lifts = Mapping[Fraction, Fraction]
CHECKS_BELOW = (Fraction(9, 10), Fraction(3, 4), Fraction(1, 2))
CHECKS_ABOVE = (Fraction(11, 10), Fraction(5, 4), Fraction(3, 2))
MOST_RATES = 60


class Answer(msgspec.Struct, frozen=True):
    """`rate` is the highest that was kept with none below it that was not, `missed` the lowest missed.

    `found`: the two are as close as was asked. `never`: not even the lowest rate was kept. `always`: the
    highest was. `open`: too few requests to tell. `underloaded` are rates below all that is kept, which lack
    the load for what is required.
    """

    verdict: Literal["found", "never", "always", "open"]
    rate: float | None
    missed: float | None
    open: list[float]
    kept_above: list[float]
    underloaded: list[float] = []


def next_rate(
    verdicts: Verdicts, low: Fraction, high: Fraction, resolution: float, lifts: Lifts | None = None
) -> Fraction | None:
    """The next rate to try between the two; None if there is nothing more to learn."""
    lifts, digits = lifts or {}, digits_for(resolution)
    for end in (low, high):
        if end not in verdicts:
            return end
    if len(verdicts) >= MOST_RATES:
        return None
    if lifted := _lifted(verdicts, low, high, lifts, digits):
        return lifted
    lacking = underloaded(verdicts, lifts)
    sides: Verdicts = {**verdicts, **dict.fromkeys(lacking, "kept")}  # the limit lies above them
    return _between(sides, resolution, digits) or _check(sides, max([low, *lacking]), high, digits)


def _lifted(verdicts: Verdicts, low: Fraction, high: Fraction, lifts: Lifts, digits: int) -> Fraction | None:
    """The first rate not tried yet to which those from the lowest on say that the load must be raised."""
    rate = low
    while rate in lifts and rate < high:
        rate = max(rounded(float(lifts[rate]), digits), rate * Fraction(1001, 1000))
        if rate not in verdicts:
            return rate if rate < high else None
    return None


def underloaded(verdicts: Verdicts, lifts: Lifts) -> list[Fraction]:
    """The rates that lack load, in order, below the first that is kept."""
    first = min((rate for rate, verdict in verdicts.items() if verdict == "kept"), default=None)
    return sorted(rate for rate in lifts if first is None or rate < first)


def digits_for(resolution: float) -> int:
    """Of a rate, so that neighbours are at most half the resolution apart."""
    return max(DIGITS, ceil(1 + log10(2 / resolution)))


def _between(verdicts: Verdicts, resolution: float, digits: int) -> Fraction | None:
    """The middle of the gap above the highest kept, else of that below the lowest missed, if too wide."""
    kept, missed = highest_kept(verdicts), lowest_missed(verdicts)
    gaps = []
    if kept is not None:
        gaps.append((kept, min((rate for rate in verdicts if rate > kept), default=kept)))
    if missed is not None:
        gaps.append((max((rate for rate in verdicts if rate < missed), default=missed), missed))
    for below, above in gaps:
        middle = rounded(sqrt(below * above), digits)
        if above / below > 1 + resolution and middle not in verdicts and below < middle < above:
            return middle
    return None


def _check(verdicts: Verdicts, low: Fraction, high: Fraction, digits: int) -> Fraction | None:
    """A rate further away on either side, to see that it is as it seems."""
    kept, missed = highest_kept(verdicts), lowest_missed(verdicts)
    wanted = [kept * factor for factor in CHECKS_BELOW] if kept is not None else []
    wanted += [missed * factor for factor in CHECKS_ABOVE] if missed is not None else []
    for rate in (rounded(float(each), digits) for each in wanted):
        if low < rate < high and not _tried_nearby(verdicts, rate):
            return rate
    return None


def _tried_nearby(verdicts: Verdicts, rate: Fraction) -> bool:
    return any(Fraction(95, 100) < tried / rate < Fraction(105, 100) for tried in verdicts)


def highest_kept(verdicts: Verdicts) -> Fraction | None:
    """Of those below the lowest that was not kept."""
    limit = min((rate for rate, verdict in verdicts.items() if verdict != "kept"), default=None)
    kept = (rate for rate, verdict in verdicts.items() if verdict == "kept")
    return max((rate for rate in kept if limit is None or rate < limit), default=None)


def lowest_missed(verdicts: Verdicts) -> Fraction | None:
    return min((rate for rate, verdict in verdicts.items() if verdict == "missed"), default=None)


def answer(verdicts: Verdicts, resolution: float, lifts: Lifts | None = None) -> Answer:
    """What the verdicts amount to, once there is no further rate to try."""
    lacking = underloaded(verdicts, lifts or {})
    others = {rate: verdict for rate, verdict in verdicts.items() if rate not in lacking}
    kept, missed = highest_kept(others), lowest_missed(others)
    opens = [rate for rate, verdict in (verdicts if kept is None else others).items() if verdict == "open"]
    unknown = sorted(map(float, opens))
    all_kept = [rate for rate, verdict in verdicts.items() if verdict == "kept"]
    above = sorted(float(rate) for rate in all_kept if kept is None or rate > kept)
    if kept is None:
        below = any(missed is None or rate < missed for rate in opens)
        word: Literal["found", "never", "always", "open"] = "open" if below else "never"
    elif missed is None:
        word = "open" if unknown else "always"
    else:
        word = "found" if missed / kept <= 1 + resolution else "open"
    rate, failed = (None if found is None else float(found) for found in (kept, missed))
    return Answer(word, rate, failed, unknown, above, [float(rate) for rate in lacking])
