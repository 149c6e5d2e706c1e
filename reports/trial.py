"""Whether one rate keeps what is required, and how sure that is, from one repeat after another. Pure.

A requirement on a share of the requests is kept when Wilson's interval lies above the share that is needed,
and missed when it lies below it. Requests that queue behind one another are not independent, and near the
limit of a server no part of a run is independent of the next; whole runs of other draws are. So the interval
is that of the effective number of requests, by how far the repeats scatter (`ledgers.intervals`), and fewer
than four repeats show nothing. Means and rates have Student's interval between repeats. Looking again and
again until an interval happens to be on one side would be wrong more often than it says: the k-th look may be
wrong with a probability of α/(k(k + 1)), which sums to α over all of them.

A queue that grows keeps any limit until it has grown enough. So a rate is kept only if the requests of the
second half of the arrivals keep the requirement as well, and if it is as sure that the number in flight grew
in that half by no more than 1 % of what arrived in it; it is missed where it is sure that it grew by more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum, sqrt

import msgspec

from ledgers.intervals import Interval, effective_n, mean_interval, normal_quantile, wilson_share
from ledgers.metrics import Observations
from ledgers.requirements import Requirement, goods, judge, members
from ledgers.rows import Outcome
from reports.search import Verdict

LEAST_REPEATS = 4
MOST_GROWTH = 0.01  # of the arrivals, in the second half of them
RATES = ("goodput", "throughput")  # of which there is none without load
TOO_FEW = f"fewer than {LEAST_REPEATS} different runs"


class Repeat(msgspec.Struct, frozen=True):
    """What one run showed: of each requirement whether each request did its part, in order of arrival.

    Or its figure, where it is no matter of shares; None of one that is beyond all bounds. `growth` is of the
    number in flight in the second half of the arrivals, per arrival, `chance` its least standard deviation.
    """

    requests: int
    flags: list[bytes | None]
    values: list[float | None]
    growth: float
    chance: float = 0.0
    client_limited: bool = False


class Evidence(msgspec.Struct, frozen=True):
    """A requirement at one rate. Shares are of requests; a mean is in ms, a rate per second."""

    requirement: str
    needed: float
    value: float | None
    low: float | None
    high: float | None
    n: int
    worth: float | None
    second_half: float | None
    verdict: Verdict


class Candidate(msgspec.Struct, frozen=True):
    """A rate with its verdict and why. `growth` is of the number in flight, as a share of the arrivals.

    `lift` is the rate to which the load must be raised at least, where nothing but that is missing.
    """

    rate: float
    verdict: Verdict
    reason: str
    requests: int
    repeats: int
    looks: int
    growth: float
    evidence: list[Evidence]
    lift: float | None = None


def repeat_of(
    requirements: Sequence[Requirement],
    seen: Observations,
    t_obs_ns: int,
    *,
    lost: int = 0,
    client_limited: bool = False,
) -> Repeat:
    """One run as the requirements see it. InputError if one of them does not fit its requests.

    `lost` requests left no row: they are misses, of any class, and the last ones.
    """
    statuses = seen.statuses(t_obs_ns)
    figures = judge(requirements, seen, t_obs_ns, lost=lost)
    growth, chance = _growth(seen, statuses)
    return Repeat(
        requests=len(seen) + lost,
        flags=[_flags(requirement, seen, statuses, lost) for requirement in requirements],
        values=[judged.value for judged in figures],
        growth=growth,
        chance=chance,
        client_limited=client_limited,
    )


def _flags(requirement: Requirement, seen: Observations, statuses: list[Outcome], lost: int) -> bytes | None:
    if requirement.share is None:
        return None
    indices = members(requirement, seen)
    origins = seen.at("origin", indices)
    order = [i for _, i in sorted((origin or 0, i) for origin, i in zip(origins, indices, strict=True))]
    return bytes(goods(requirement, seen, statuses, order)) + bytes(lost)


def _growth(seen: Observations, statuses: list[Outcome]) -> tuple[float, float]:
    """By how much more were in flight at the last arrival than half-way, per request that arrived between.

    And the least that this can vary: two counts of a system with a server for everybody are Poisson.
    """
    arrivals = sorted(seen.known("origin", range(len(seen))))
    middle = len(arrivals) // 2
    if not middle:
        return 0.0, 0.0
    flight = seen.in_flight(statuses)
    half, end = flight.at(arrivals[middle - 1]), flight.at(arrivals[-1])
    between = len(arrivals) - middle
    return (end - half) / between, sqrt(end + half) / between


def trial(
    rate: float,
    requirements: Sequence[Requirement],
    confidence: float,
    most_requests: int,
    run: Callable[[range], Sequence[Repeat]],
    *,
    draws: bool = True,
) -> Candidate:
    """Twice as many repeats at each look, until there is a verdict or there are no more requests.

    `run` gives the repeats of these numbers. Where it does not draw, one shows what all would.
    """
    repeats: list[Repeat] = []
    look, wanted = 1, LEAST_REPEATS if draws else 1
    while True:
        repeats += run(range(len(repeats), wanted))
        found = verdict_of(rate, requirements, repeats, look, confidence)
        left = most_requests - found.requests
        more = min(len(repeats), left // max(1, repeats[0].requests))
        limited = any(repeat.client_limited for repeat in repeats)
        if found.verdict != "open" or not draws or more < 1 or limited:
            return found
        look, wanted = look + 1, len(repeats) + more


def verdict_of(
    rate: float, requirements: Sequence[Requirement], repeats: Sequence[Repeat], look: int, confidence: float
) -> Candidate:
    """The verdict on a rate at the `look`-th look, from all repeats so far."""
    alpha = (1 - confidence) / (look * (look + 1))
    sure = 1 - alpha / len(requirements)
    evidence = [_evidence(requirement, i, repeats, sure) for i, requirement in enumerate(requirements)]
    growth = fsum(repeat.growth for repeat in repeats) / len(repeats)
    verdict, reason = _verdict(evidence, repeats, growth, sure)
    requests = sum(repeat.requests for repeat in repeats)
    lift = None
    if reason in (each.requirement for each in evidence) and _growth_limits(repeats, sure)[0] <= MOST_GROWTH:
        lift = _lift(rate, requirements, evidence)
    return Candidate(rate, verdict, reason, requests, len(repeats), look, growth, evidence, lift)


def _lift(rate: float, requirements: Sequence[Requirement], evidence: Sequence[Evidence]) -> float | None:
    """Goodput and throughput grow at most in proportion to the load, and are never above it."""
    rates = []
    for requirement, each in zip(requirements, evidence, strict=True):
        if each.verdict == "kept":
            continue
        if requirement.metric not in RATES or each.value is None:
            return None
        rates.append(max(rate * (each.needed / each.value if each.value else 2.0), each.needed))
    return max(rates, default=None)


def _verdict(
    evidence: Sequence[Evidence], repeats: Sequence[Repeat], growth: float, sure: float
) -> tuple[Verdict, str]:
    if any(repeat.client_limited for repeat in repeats):
        return "open", "the load generator was the limit"
    if len(repeats) < LEAST_REPEATS:
        return "open", TOO_FEW
    if missed := [each for each in evidence if each.verdict == "missed"]:
        return "missed", missed[0].requirement
    low, high = _growth_limits(repeats, sure)
    if low > MOST_GROWTH:
        return "missed", f"the queue grows, by {growth:.1%} of the arrivals"
    if unsure := [each for each in evidence if each.verdict == "open"]:
        return "open", unsure[0].requirement
    if high > MOST_GROWTH:
        return "open", f"the number in flight may still grow, by up to {high:.1%} of the arrivals"
    return "kept", ""


def _growth_limits(repeats: Sequence[Repeat], sure: float) -> Interval:
    """Student's interval between repeats, and no shorter than chance has it.

    For a few repeats of whole numbers may happen to agree.
    """
    k, values = len(repeats), [repeat.growth for repeat in repeats]
    mean, (low, high) = fsum(values) / k, mean_interval(values, sure)
    chance = normal_quantile(sure) * sqrt(fsum(repeat.chance**2 for repeat in repeats)) / k
    return min(low, mean - chance), max(high, mean + chance)


def _evidence(requirement: Requirement, i: int, repeats: Sequence[Repeat], sure: float) -> Evidence:
    flags = [repeat.flags[i] for repeat in repeats]
    of_shares = [each for each in flags if each is not None]
    if requirement.share is None:
        return _of_values(requirement, [repeat.values[i] for repeat in repeats], repeats, sure)
    late = [each[len(each) // 2 :] for each in of_shares]
    needed = float(requirement.share)
    value, low, high, worth = _share(of_shares, sure)
    second_half, _, most_late, _ = _share(late, sure)
    late_missed = _side(None, most_late, needed, strict=False) == "missed"
    verdict = _side(low, high, needed, requirement.strict and not requirement.statistic)
    if verdict == "kept" and (second_half is None or second_half < needed):
        verdict = "open"
    return Evidence(
        requirement=requirement.text,
        needed=needed,
        value=value,
        low=low,
        high=high,
        n=sum(map(len, of_shares)),
        worth=worth,
        second_half=second_half,
        verdict="missed" if late_missed else verdict,
    )


def _share(
    flags: Sequence[bytes], sure: float
) -> tuple[float | None, float | None, float | None, float | None]:
    """The share of all, its limits, and how many independent requests they are worth, by repeats."""
    shares = [sum(each) / len(each) for each in flags if each]
    if not shares:
        return None, None, None, None
    n = sum(map(len, flags))
    share = sum(map(sum, flags)) / n
    if len(shares) < LEAST_REPEATS:
        return share, None, None, None
    worth = effective_n(shares, n, sure)
    return share, *wilson_share(share, worth, sure), worth


def _side(low: float | None, high: float | None, needed: float, strict: bool) -> Verdict:
    """Where an interval lies beside what is needed at least."""
    if low is not None and (low > needed if strict else low >= needed):
        return "kept"
    return "missed" if high is not None and high < needed else "open"


def _of_values(
    requirement: Requirement, values: Sequence[float | None], repeats: Sequence[Repeat], sure: float
) -> Evidence:
    """A mean, which has an upper limit, or a rate, which has a lower one, between repeats."""
    below = requirement.statistic == "mean"
    needed = float(requirement.limit) / (1e6 if below else 1)
    known = [value for value in values if value is not None]
    beyond = len(known) < len(values)  # a request never ended
    low, high = mean_interval(known, sure) if len(known) >= LEAST_REPEATS else (None, None)
    low = low and max(0.0, low)  # neither a latency nor a rate is below 0
    verdict: Verdict = "missed" if beyond else _side(low, high, needed, requirement.strict)
    if below and not beyond:
        verdict = _side(high and -high, low and -low, -needed, requirement.strict)
    return Evidence(
        requirement=requirement.text,
        needed=needed,
        value=fsum(known) / len(known) if known and not beyond else None,
        low=low,
        high=high,
        n=sum(repeat.requests for repeat in repeats),
        worth=None,
        second_half=None,
        verdict=verdict,
    )
