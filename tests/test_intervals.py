"""Intervals against published values, and how often they hold the truth over many seeded samples."""

from __future__ import annotations

from collections.abc import Callable
from math import comb, log
from random import Random
from statistics import NormalDist

import pytest

from ledgers.intervals import (
    batch_mean_interval,
    batched,
    mean_interval,
    percentile_of_batches,
    percentile_ranks,
    share_of_batches,
    student_quantile,
    wilson,
)

SAMPLES = 400


def covered(holds: Callable[[Random], bool]) -> float:
    """In what share of so many seeded samples it holds."""
    return sum(holds(Random(seed)) for seed in range(SAMPLES)) / SAMPLES


def inside(limits: tuple[float | None, float | None], truth: float) -> bool:
    low, high = limits
    return (low is None or low <= truth) and (high is None or truth <= high)


def percentile_interval(ordered: list[float], percent: float) -> tuple[float | None, float | None]:
    """The exact interval of independent values: two of the values themselves."""
    low, high = percentile_ranks(len(ordered), percent)
    return ordered[low - 1] if low else None, ordered[high - 1] if high else None


def exponential(random: Random, n: int) -> list[float]:
    return [-log(1 - random.random()) for _ in range(n)]


def autoregressive(random: Random, n: int, carried: float) -> list[float]:
    """Standard normal values, each of which has `carried` of the one before."""
    values = [random.gauss(0, 1)]
    for _ in range(n - 1):
        values.append(carried * values[-1] + random.gauss(0, (1 - carried**2) ** 0.5))
    return values


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_as_newcombe_printed_it(successes: int, n: int, low: float, high: float) -> None:
    """R. G. Newcombe, Statistics in Medicine 17 (1998), table I, method 3."""
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


def test_wilson_of_none_and_of_all_has_a_length_and_an_end() -> None:
    assert wilson(20, 20) == pytest.approx((1 - 0.1611, 1.0), abs=5e-5)
    assert (wilson(0, 20)[0], wilson(20, 20)[1]) == (0.0, 1.0)
    assert wilson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="3 successes of 2"):
        wilson(3, 2)


@pytest.mark.parametrize(
    ("degrees", "confidence", "t"),
    [
        (1, 0.95, 12.706),
        (2, 0.95, 4.303),
        (3, 0.90, 2.353),
        (4, 0.99, 4.604),
        (9, 0.95, 2.262),
        (10, 0.95, 2.228),
        (19, 0.95, 2.093),
        (30, 0.99, 2.750),
        (120, 0.95, 1.980),
        (1_000, 0.95, 1.962),
    ],
)
def test_students_quantile_as_tables_have_it(degrees: int, confidence: float, t: float) -> None:
    assert student_quantile(degrees, confidence) == pytest.approx(t, abs=5e-4)


@pytest.mark.parametrize(
    ("n", "percent", "ranks"),
    [
        (5, 50, (None, None)),
        (6, 50, (1, 6)),
        (10, 50, (2, 9)),
        (20, 50, (6, 15)),
        (100, 50, (40, 61)),
        (367, 99, (359, None)),
        (368, 99, (360, 368)),
    ],
)
def test_ranks_of_percentiles_as_tables_have_them(
    n: int, percent: int, ranks: tuple[int | None, int | None]
) -> None:
    """Of the median they are those of the sign test; 0.99^367 > 0.025 > 0.99^368, so p99 needs 368 values."""
    assert percentile_ranks(n, percent) == ranks


@pytest.mark.parametrize("n", [1, 2, 7, 50, 300])
@pytest.mark.parametrize("percent", [0.5, 25, 50, 90, 99])
def test_ranks_of_percentiles_are_the_innermost_that_hold(n: int, percent: float) -> None:
    """By the binomial distribution, term by term: one rank further in would leave out more than 2.5 %."""

    def below(k: int) -> float:
        p = percent / 100
        return sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k))

    low, high = percentile_ranks(n, percent)
    assert below(low or 0) <= 0.025 < below((low or 0) + 1)
    if high is None:
        assert 1 - below(n) > 0.025
    else:
        assert 1 - below(high) <= 0.025 < 1 - below(high - 1)


@pytest.mark.parametrize("percent", [50, 90, 95, 99])
def test_the_exact_interval_of_a_percentile_holds_the_truth(percent: int) -> None:
    """Of 1,000 exponential values, as often as is said, or a little more often."""
    truth = -log(1 - percent / 100)
    share = covered(
        lambda random: inside(percentile_interval(sorted(exponential(random, 1_000)), percent), truth)
    )
    assert 0.93 <= share <= 0.99


@pytest.mark.parametrize("n", [5, 20])
def test_students_interval_holds_the_mean_of_few_repeats(n: int) -> None:
    def holds(random: Random) -> bool:
        return inside(mean_interval([random.gauss(10, 3) for _ in range(n)]), 10)

    assert 0.92 <= covered(holds) <= 0.98


def test_an_interval_of_a_mean_needs_two_values() -> None:
    with pytest.raises(ValueError, match="needs two values or more, not 1"):
        mean_interval([1.0])


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_wilsons_interval_holds_the_share(share: float) -> None:
    def holds(random: Random) -> bool:
        return inside(wilson(sum(random.random() < share for _ in range(500)), 500), share)

    assert 0.92 <= covered(holds) <= 0.98


def batch_means(values: list[float]) -> list[float]:
    return [sum(batch) / len(batch) for batch in batched(values)]


@pytest.mark.parametrize("carried", [0.0, 0.8])
def test_batch_means_hold_the_mean_of_what_hangs_together(carried: float) -> None:
    def holds(random: Random) -> bool:
        return inside(batch_mean_interval(batch_means(autoregressive(random, 1_000, carried))), 0)

    assert 0.92 <= covered(holds) <= 0.98


@pytest.mark.parametrize("carried", [0.0, 0.8])
@pytest.mark.parametrize("percent", [50, 90, 95])
def test_percentiles_in_order_of_arrival_hold_the_truth(percent: int, carried: float) -> None:
    """Values that hang together as those that do not; the exact interval is too narrow for the former."""
    truth = NormalDist().inv_cdf(percent / 100)
    naive = []

    def holds(random: Random) -> bool:
        values = autoregressive(random, 1_000, carried)
        ordered = sorted(values)
        found = percentile_of_batches(ordered, [sorted(batch) for batch in batched(values)], percent)
        naive.append(inside(percentile_interval(ordered, percent), truth))
        return inside((found.low, found.high), truth)

    assert 0.92 <= covered(holds) <= 0.99
    assert (sum(naive) / SAMPLES > 0.9) is (carried == 0)


@pytest.mark.parametrize("carried", [0.0, 0.8])
def test_attainment_in_order_of_arrival_holds_the_share(carried: float) -> None:
    """A bound of 1 is met by Φ(1) of the values."""
    truth = NormalDist().cdf(1)

    def holds(random: Random) -> bool:
        found = share_of_batches([value <= 1 for value in autoregressive(random, 1_000, carried)])
        return found is not None and inside((found.low, found.high), truth)

    assert 0.92 <= covered(holds) <= 0.99


def test_too_few_values_have_no_interval() -> None:
    """Fewer than five batches of five do not say how batches scatter; from there on it counts as a guess."""
    assert share_of_batches([1] * 24) is None
    found = share_of_batches([1] * 25)
    assert found is not None
    assert found.high == 1.0
    assert 0 < (found.low or 0) < wilson(25, 25)[0]
