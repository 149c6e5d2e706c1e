"""Confidence intervals: of shares, of means between repeats, and of percentiles.

Values in, (low, high) out; None is a limit that the sample cannot give. The first half is for independent
values. Latencies of one run are not: who queues behind a slow request is slow as well, so intervals that take
them for independent are too narrow. The second half takes values in order of arrival and judges by batches of
them (batch means: A. M. Law, Simulation Modeling and Analysis, 5th ed. 2015, 9.5.3), each so long that what
happens in one says little of the next.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import ceil, cos, floor, fsum, inf, pi, sin, sqrt, tan
from statistics import NormalDist
from typing import TypeVar

import msgspec

from ledgers.distributions import Percent, rank
from ledgers.units import exact

CONFIDENCE = 0.95
BATCHES = 20
"""Schmeiser (Operations Research 30, 1982): more than 30 gain little, fewer than 10 make intervals long."""
LEAST_BATCHES = 5
LEAST_IN_BATCH = 5
MOST_CORRELATED = 0.9
_MOST_DEGREES = 1_000  # of freedom; from here on Student's quantile shrinks by 0.12 % more

T = TypeVar("T")
Interval = tuple[float, float]
Limits = tuple[float | None, float | None]


class Interval95(msgspec.Struct, frozen=True):
    """What stands in a summary: limits of 95 %, and how many independent values the sample is worth."""

    low: float | None
    high: float | None
    effective_n: float | None = None


# Independent values


def wilson(successes: int, n: int, confidence: float = CONFIDENCE) -> Interval:
    """The score interval of a share; (0, 1) of nothing. E. B. Wilson, JASA 22 (1927), 209-212.

    It stays within 0 and 1, and has a length where none or all succeeded.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}")
    return wilson_share(successes / n, n, confidence) if n else (0.0, 1.0)


def wilson_share(share: float, n: float, confidence: float = CONFIDENCE) -> Interval:
    """The same of a share in a sample that is worth `n` values, not a whole number perhaps."""
    z = normal_quantile(confidence)
    scale = 1 + z * z / n
    centre = (share + z * z / (2 * n)) / scale
    half = z / scale * sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (max(0.0, centre - half) if share > 0 else 0.0), (min(1.0, centre + half) if share < 1 else 1.0)


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Student's interval of a mean, of what independent repeats came to. ValueError of fewer than two.

    Student, Biometrika 6 (1908), 1-25.
    """
    n, mean = len(values), fsum(values) / len(values) if values else 0.0
    if n < 2:
        raise ValueError(f"an interval of a mean needs two values or more, not {n}")
    half = student_quantile(n - 1, confidence) * sqrt(_variance(values) / n)
    return mean - half, mean + half


def percentile_ranks(
    n: int, percent: Percent, confidence: float = CONFIDENCE
) -> tuple[int | None, int | None]:
    """Which of n ascending values the limits of a percentile are, from 1; None where n is too small for one.

    The largest l with P(B < l) ≤ α/2 and the smallest u with P(B ≥ u) ≤ α/2, for B of Bin(n, p): how many of
    n independent values lie below the percentile, whatever their distribution. So no draws are needed, and
    the confidence is at least what is asked for; a bootstrap would name the largest value of too
    small a sample. H. A. David & H. N. Nagaraja, Order Statistics, 3rd ed. 2003, 7.1.
    """
    return _percentile_ranks(n, float(exact(percent)) / 100, confidence)


@lru_cache(maxsize=256)
def _percentile_ranks(n: int, p: float, confidence: float) -> tuple[int | None, int | None]:
    if n < 1 or not 0 < p < 1:
        return None, None
    alone = (1 - confidence) / 2
    first, weights = _binomial_weights(n, p)
    least = alone * fsum(weights)
    low, below = first, 0.0
    for weight in weights:  # B < low has probability `below`
        below += weight
        if below > least:
            break
        low += 1
    high, above = first + len(weights), 0.0
    for weight in reversed(weights):
        above += weight
        if above > least:
            break
        high -= 1
    return low or None, high if high <= n else None


def _binomial_weights(n: int, p: float) -> tuple[int, list[float]]:
    """Bin(n, p) but for a factor, wherever it is not next to nothing, and where that begins."""
    mode, odds = min(n, int((n + 1) * p)), p / (1 - p)
    down, k, weight = [], mode, 1.0
    while k > 0 and weight > 1e-18:
        weight *= k / ((n - k + 1) * odds)
        k -= 1
        down.append(weight)
    up, first, k, weight = [1.0], k, mode, 1.0
    while k < n and weight > 1e-18:
        weight *= (n - k) * odds / (k + 1)
        k += 1
        up.append(weight)
    return first, [*reversed(down), *up]


# Values in order of arrival


def batches_for(n: int) -> int:
    """Into how many batches so many values go; 0 if they are too few to say anything."""
    count = min(BATCHES, n // LEAST_IN_BATCH)
    return count if count >= LEAST_BATCHES else 0


def batched(values: Sequence[T]) -> list[Sequence[T]]:
    """The values in consecutive batches, as equal as can be; none if they are too few."""
    n, count = len(values), batches_for(len(values))
    return [values[i * n // count : (i + 1) * n // count] for i in range(count)]


def batch_mean_interval(means: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Student's interval of the mean, from the means of consecutive batches.

    Wider where the batches still depend on one another (`carried_over`).
    """
    centre = fsum(means) / len(means)
    half = student_quantile(len(means) - 1, confidence) * sqrt(
        _variance(means) * carried_over(means) / len(means)
    )
    return centre - half, centre + half


def carried_over(means: Sequence[float]) -> float:
    """How many times the variance of the mean is what it would be if the batches were independent: 1 or more.

    (1 + r)/(1 − r) with r the correlation between a batch and the next, where that is beyond chance (5 %), as
    if each had its share of the one before: the correction of ASAP3 (N. M. Steiger et al., ACM TOMACS 15
    (2005), 39-73) in its plainest form.
    """
    k, centre = len(means), fsum(means) / len(means)
    total = fsum((mean - centre) ** 2 for mean in means)
    if not total:
        return 1.0
    r = fsum((a - centre) * (b - centre) for a, b in pairwise(means)) / total
    r = min(r, MOST_CORRELATED)
    return (1 + r) / (1 - r) if r > 1.645 / sqrt(k) else 1.0


def effective_n(shares: Sequence[float], n: int, confidence: float = CONFIDENCE) -> float:
    """How many independent values a sample of n is worth for a share, from its shares in the batches.

    n over the design effect, which is how far the batches scatter against what independent values would do,
    and at least 1; and over (t/z)², for the scatter is known from a few batches only. L. Kish, Survey
    Sampling (1965), 8.2; E. L. Korn & B. I. Graubard, Survey Methodology 24 (1998), 193-201.
    """
    k, share = len(shares), fsum(shares) / len(shares)
    alone = share * (1 - share)
    found = _variance(shares) * carried_over(shares) * (n / k) / alone if alone else 1.0
    return n / (max(1.0, found) * _for_few(k, confidence))


def _for_few(batches: int, confidence: float) -> float:
    """(t/z)²: how many times wider a scatter must be taken that so many batches tell."""
    return (student_quantile(batches - 1, confidence) / normal_quantile(confidence)) ** 2


def share_at(share: float, n: int, worth: float, confidence: float) -> Interval:
    """Wilson's interval of a share of n values, of which the effective size at 95 % is known."""
    k = batches_for(n)
    return wilson_share(share, worth * _for_few(k, CONFIDENCE) / _for_few(k, confidence), confidence)


def share_of_batches(flags: Sequence[int], confidence: float = CONFIDENCE) -> Interval95 | None:
    """Wilson's interval of a share, from 0s and 1s in order of arrival; None of too few."""
    n, shares = len(flags), [sum(batch) / len(batch) for batch in batched(flags)]
    if not shares:
        return None
    worth = effective_n(shares, n, confidence)
    return Interval95(*wilson_share(sum(flags) / n, worth, confidence), worth)


def percentile_of_batches(
    ordered: Sequence[float],
    batches: Sequence[Sequence[float]],
    percent: Percent,
    confidence: float = CONFIDENCE,
    *,
    most: float = inf,
) -> Interval95:
    """The interval of a percentile, from all values in ascending order and each batch of them likewise.

    The ranks are those of a sample of effective size, stretched to this one: limits for the share that lies
    below the percentile, read off as values (R. S. Woodruff, JASA 47 (1952), 635-646). `most` bounds the
    effective size.
    """
    n = len(ordered)
    middle = ordered[rank(percent, n) - 1]
    shares = [bisect_right(batch, middle) / len(batch) for batch in batches]
    worth = min(most, effective_n(shares, n, confidence))
    whole = max(1, floor(worth))
    low, high = percentile_ranks(whole, percent, confidence)
    return Interval95(
        ordered[max(1, low * n // whole) - 1] if low else None,
        ordered[min(n, ceil(high * n / whole)) - 1] if high else None,
        worth,
    )


# Quantiles


@lru_cache(maxsize=64)
def normal_quantile(confidence: float) -> float:
    """z, between −z and z of which a standard normal value lies with this probability."""
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence of {confidence} is not between 0 and 1")
    return NormalDist().inv_cdf((1 + confidence) / 2)


@lru_cache(maxsize=256)
def student_quantile(degrees: int, confidence: float) -> float:
    """t, between −t and t of which Student's t of so many degrees of freedom lies with this probability.

    By bisection of its distribution, which for whole degrees is a finite sum (Abramowitz & Stegun, 26.7.3
    and 26.7.4). Of more than 1,000 degrees, what it is for 1,000.
    """
    if degrees < 1 or not 0 < confidence < 1:
        raise ValueError(f"no t of {degrees} degrees of freedom at a confidence of {confidence}")
    degrees = min(degrees, _MOST_DEGREES)
    low, high = 0.0, pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if _student_within(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return tan(high) * sqrt(degrees)


def _student_within(angle: float, degrees: int) -> float:
    """P(|T| ≤ t), with t = √ν·tan(angle)."""
    odd = degrees % 2
    square = cos(angle) ** 2
    term = cos(angle) if odd else 1.0
    total = 0.0
    for k in range(2 + odd, degrees + 1, 2):
        total += term
        term *= square * (k - 1) / k
    return (angle + sin(angle) * total) * 2 / pi if odd else sin(angle) * total


def _variance(values: Sequence[float]) -> float:
    centre = fsum(values) / len(values)
    return fsum((value - centre) ** 2 for value in values) / (len(values) - 1)
