"""Arrival processes, and times stretched and replayed: exact, repeatable, starting at 0."""

from __future__ import annotations

import statistics
from fractions import Fraction
from itertools import pairwise

import pytest

from ledgers.arrivals import PROCESSES, Pacing, draw_arrivals, replay, stretch
from ledgers.errors import InputError

S = 1_000_000_000


def gaps_of(arrivals: list[int]) -> list[int]:
    return [after - before for before, after in pairwise(arrivals)]


def test_constant_arrivals_are_exact_multiples_of_the_gap() -> None:
    """At 3 req/s the gap is a third of a second, rounded once per arrival, so errors do not add up."""
    assert draw_arrivals("constant", 4, Fraction(3), seed=0) == [0, 333_333_333, 666_666_667, 1_000_000_000]


@pytest.mark.parametrize("process", PROCESSES)
def test_every_process_starts_at_zero_and_never_goes_back(process: str) -> None:
    arrivals = draw_arrivals(process, 200, Fraction(50), seed=3, burstiness=0.5)
    assert len(arrivals) == 200
    assert arrivals[0] == 0
    assert arrivals == sorted(arrivals)
    assert draw_arrivals(process, 1, Fraction(50), seed=3) == [0]


def test_a_seed_is_one_list_of_arrivals_and_another_seed_another() -> None:
    first, again = (draw_arrivals("poisson", 1000, Fraction(10), seed=7) for _ in range(2))
    assert first == again
    assert draw_arrivals("poisson", 1000, Fraction(10), seed=8) != first


def test_poisson_arrivals_have_the_rate_and_the_spread_of_a_poisson_process() -> None:
    """999 gaps at 10 req/s sum to 100 s within three sigma (3 * sqrt(1000) / 10 s), with a CV of 1."""
    arrivals = draw_arrivals("poisson", 1000, Fraction(10), seed=7)
    gaps = gaps_of(arrivals)
    assert abs(arrivals[-1] / S - 99.9) < 9.5
    assert statistics.pstdev(gaps) / statistics.mean(gaps) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(("burstiness", "spread"), [(0.25, 2.0), (1.0, 1.0), (4.0, 0.5)])
def test_burstiness_sets_the_spread_of_gamma_gaps_and_not_their_mean(
    burstiness: float, spread: float
) -> None:
    """A gamma distribution of shape k has a coefficient of variation of 1/sqrt(k)."""
    gaps = gaps_of(draw_arrivals("gamma", 20_000, Fraction(10), seed=1, burstiness=burstiness))
    assert statistics.mean(gaps) / S == pytest.approx(0.1, rel=0.05)
    assert statistics.pstdev(gaps) / statistics.mean(gaps) == pytest.approx(spread, rel=0.06)


def test_gamma_with_a_burstiness_of_one_is_poisson() -> None:
    poisson = draw_arrivals("poisson", 500, Fraction(4), seed=5)
    assert draw_arrivals("gamma", 500, Fraction(4), seed=5, burstiness=1.0) == poisson


def test_another_rate_stretches_the_same_draw() -> None:
    """Halving the rate doubles every arrival, up to the one rounding of each."""
    fast = draw_arrivals("gamma", 300, Fraction(8), seed=2, burstiness=0.3)
    slow = draw_arrivals("gamma", 300, Fraction(4), seed=2, burstiness=0.3)
    assert all(abs(after - 2 * before) <= 1 for before, after in zip(fast, slow, strict=True))


def test_stretched_times_span_one_gap_less_than_there_are_requests() -> None:
    """1000, 1002, 1006 s at 1 req/s span 2 s: 0, 2/3 and 2 s."""
    assert stretch([1000 * S, 1002 * S, 1006 * S], Fraction(1)) == [0, 666_666_667, 2 * S]


def test_replayed_times_are_divided_by_the_speed() -> None:
    times = [1000 * S, 1002 * S, 1006 * S]
    assert replay(times, Fraction(1)) == [0, 2 * S, 6 * S]
    assert replay(times, Fraction(2)) == [0, 1 * S, 3 * S]


def test_half_a_nanosecond_is_rounded_to_even() -> None:
    assert replay([0, 1, 3], Fraction(2)) == [0, 0, 2]


@pytest.mark.parametrize("times", [[5], [5, 5, 5]])
def test_times_without_a_span_all_arrive_at_once(times: list[int | Fraction]) -> None:
    assert stretch(times, Fraction(4)) == [0] * len(times)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"request_rate": Fraction(0)}, "request rate 0"),
        ({"request_rate": Fraction(-2)}, "request rate -2"),
        ({"speed": Fraction(0)}, "speed 0"),
        ({"speed": Fraction(2), "request_rate": Fraction(4)}, "speed"),
        ({"arrival": "poisson"}, "needs a request rate"),
        ({"arrival": "weekly", "request_rate": Fraction(4)}, "arrival weekly"),
        ({"burstiness": float("nan"), "arrival": "gamma", "request_rate": Fraction(4)}, "burstiness nan"),
        ({"burstiness": 0.0, "arrival": "gamma", "request_rate": Fraction(4)}, "burstiness 0"),
        ({"burstiness": 0.5, "arrival": "poisson", "request_rate": Fraction(4)}, "only gamma"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, object], fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        Pacing(**settings)  # type: ignore[arg-type]
