"""Intervals of effects: by hand, by tables, and by how often they hold the truth."""

from __future__ import annotations

from math import exp, log, sqrt
from random import Random

import pytest

from ledgers.distributions import nearest_rank
from reports.compare_effects import (
    NOTHING,
    Weighted,
    correlation,
    difference_of_shares,
    ratio_of_means,
    ratio_of_paired_percentiles,
    ratio_of_percentiles,
    repeats,
)

T4 = 2.776445  # Student's t, two-sided 95 %, 4 degrees of freedom (from tables)


def test_a_mean_of_pairs_has_the_interval_of_the_paired_differences() -> None:
    """Five batches, by hand: relative differences of 0.1 -+ 0.02 about each batch, to first order."""
    before = [[100.0] * 5] * 5
    after = [[100.0 * (1.1 + step)] * 5 for step in (-0.02, 0.01, 0.0, -0.01, 0.02)]
    low, high = ratio_of_means(before, after, 0.95, paired=True)
    moves = [step / 1.1 for step in (-0.02, 0.01, 0.0, -0.01, 0.02)]
    half = T4 * sqrt(sum(move * move for move in moves) / 4 / 5)
    assert (log(low), log(high)) == pytest.approx((log(1.1) - half, log(1.1) + half), rel=1e-5)


def test_what_pairs_have_in_common_cancels_out() -> None:
    """Every request is 20 % slower, whatever it is: that is known exactly, and without pairs it is not."""
    random = Random(1)
    before = [[random.expovariate(0.01) + 1 for _ in range(30)] for _ in range(20)]
    after = [[1.2 * value for value in batch] for batch in before]
    assert ratio_of_means(before, after, 0.95, paired=True) == pytest.approx((1.2, 1.2))
    assert ratio_of_paired_percentiles(before, after, 90, 0.95) == pytest.approx((1.2, 1.2))
    apart = ratio_of_means(before, after, 0.95, paired=False)
    assert apart[0] is not None
    assert apart[0] < 1.15


def test_shares_have_newcombes_interval() -> None:
    """60 and 80 of 100, in batches that do not scatter, by hand: Wilson's limits, squared and added.

    Of 20 batches the scatter itself is not known exactly: the sample counts as 100 / (t/z)^2 values.
    """
    before, after = [[1.0, 1.0, 1.0, 0.0, 0.0]] * 20, [[1.0, 1.0, 1.0, 1.0, 0.0]] * 20
    z, t19 = 1.959964, 2.093024
    n = 100 / (t19 / z) ** 2
    limits = []
    for share in (0.6, 0.8):
        half = z * sqrt(share * (1 - share) / n + z * z / (4 * n * n))
        limits.append([(share + z * z / (2 * n) + sign * half) / (1 + z * z / n) for sign in (-1, 1)])
    (p_low, p_high), (q_low, q_high) = limits
    low, high = difference_of_shares(before, after, 0.95, paired=False)
    assert low == pytest.approx(0.2 - sqrt((0.8 - q_low) ** 2 + (p_high - 0.6) ** 2), abs=1e-5)
    assert high == pytest.approx(0.2 + sqrt((q_high - 0.8) ** 2 + (0.6 - p_low) ** 2), abs=1e-5)


def test_a_share_of_none_on_both_sides_still_has_a_width() -> None:
    """No error in 100 requests does not say that there are none in 1,000."""
    none = [[0.0] * 5] * 20
    low, high = difference_of_shares(none, none, 0.95, paired=True)
    assert low < -0.03
    assert high > 0.03


def test_intervals_of_paired_shares_hold_the_truth_where_batches_have_a_lot_of_their_own() -> None:
    """Each batch of a run has a bad or a good time, apart from the other run's; its requests are the same.

    So single requests go together and batches do not. Of 300 pairs, at least 92 % hold the true 0.
    """
    held = 0
    for seed in range(300):
        random = Random(seed)
        one, other = [], []
        for _ in range(20):
            p, q = (random.choice((0.5, 0.9)) for _ in range(2))
            hard = [random.random() for _ in range(20)]
            one.append([float(each < p) for each in hard])
            other.append([float(each < q) for each in hard])
        low, high = difference_of_shares(one, other, 0.95, paired=True)
        held += low <= 0 <= high
    assert held >= 0.92 * 300


def test_percentiles_of_small_samples_are_left_open() -> None:
    """The 99th percentile of 100 values may be anything above: no upper limit, on either side no limits."""
    values = [[float(10 * i + j) for j in range(5)] for i in range(1, 21)]
    assert ratio_of_percentiles(values, values, 99, 0.95) == NOTHING
    assert ratio_of_paired_percentiles(values, values, 99, 0.95) == NOTHING


def test_a_weighted_percentile_is_that_of_the_repeated_values() -> None:
    """Against the nearest rank of all values written out as often as they count."""
    random = Random(3)
    batches = [[float(random.randint(1, 30)) for _ in range(random.randint(1, 9))] for _ in range(12)]
    for percent in (50, 90, 95, 99):
        weighted = Weighted(batches, percent)
        for _ in range(50):
            weights = [random.choice((0, 0, 1, 2, 3)) for _ in batches]
            weights[0] += 1
            written = [v for batch, weight in zip(batches, weights, strict=True) for v in batch * weight]
            assert weighted.value(weights) == nearest_rank(sorted(written), percent)


def test_repeats_have_students_interval() -> None:
    """Three and three runs by hand, unpaired with 2 degrees of freedom, and in pairs."""
    t2 = 4.302653
    low, high = repeats([0.1, 0.2, 0.3], [0.2, 0.3, 0.4], 0.95, paired=False, scale="difference")
    half = t2 * sqrt(0.01 / 3 + 0.01 / 3)
    assert (low, high) == pytest.approx((0.1 - half, 0.1 + half))
    low, high = repeats([0.1, 0.2, 0.3], [0.2, 0.3, 0.4], 0.95, paired=True, scale="difference")
    assert (low, high) == pytest.approx((0.1, 0.1))
    low, high = repeats([90, 100, 110], [180, 200, 220], 0.95, paired=False, scale="ratio")
    half = t2 * sqrt(2 * 0.01 / 3)
    assert (low, high) == pytest.approx((2 * exp(-half), 2 * exp(half)))


def test_what_does_not_vary_is_not_correlated() -> None:
    assert correlation([1, 1, 1], [0, 1, 0]) == 0
    assert correlation([0, 1, 0, 1], [0, 1, 0, 1]) == pytest.approx(1)


@pytest.mark.parametrize("paired", [True, False])
def test_intervals_of_percentiles_hold_the_truth_in_a_busy_queue(paired: bool) -> None:
    """100 pairs of runs of one queue at 70 %: a difference in p90 is seen in at most 10 of them at 95 %.

    The intervals go by the effective size, so that waits which belong together do not count as many.
    """
    random, shown = Random(11), 0
    find = ratio_of_paired_percentiles if paired else ratio_of_percentiles
    for _ in range(100):
        one, other = _queues(random, 1_000, same_arrivals=paired)
        low, high = find(one, other, 90, 0.95)
        shown += bool((low and low > 1) or (high and high < 1))
    assert shown <= 10


def _queues(random: Random, count: int, *, same_arrivals: bool) -> list[list[list[float]]]:
    """Times in two queues with service times of their own, in 20 batches; arrivals may be in common."""
    gaps = [random.expovariate(0.7) for _ in range(count)]
    sides = []
    for _ in range(2):
        if not same_arrivals:
            gaps = [random.expovariate(0.7) for _ in range(count)]
        wait, times = 0.0, []
        for gap in gaps:
            service = random.expovariate(1)
            times.append(wait + service)
            wait = max(0.0, wait + service - gap)
        sides.append([times[i : i + count // 20] for i in range(0, count, count // 20)])
    return sides
