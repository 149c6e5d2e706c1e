"""Arrival processes, rates that change, times stretched and replayed: they are what they say, from a seed.

Bounds on what is drawn are four standard errors, or for Kolmogorov-Smirnov 1.95 / sqrt(n), which a right
process exceeds with a probability of 0.1 %. Seeds are fixed, so a test passes always or never.
"""

from __future__ import annotations

import json
import math
import statistics
from bisect import bisect_left
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgers import draws
from ledgers.arrivals import PROCESSES, Pacing, draw_arrivals, draw_in_stages, replay, stretch
from ledgers.errors import InputError
from ledgers.ledger import Ledger
from ledgers.load import cut_to_duration, load_ledger, make_ledger
from ledgers.profile import Profile, Stage, parse_stages
from tests.conftest import MockServer, refused, tokentick

S = 1_000_000_000
DRAWS = 20_000
SHAPES = [("poisson", 1.0), ("gamma", 0.25), ("gamma", 0.5), ("gamma", 4.0)]
BUSY = "50:40,50-300:60,0:20,300-10:40,10:60"
"""Areas of 2,000, 10,500, 0, 6,200 and 600 requests, within 220 s."""
BUSY_REQUESTS = (2_000, 10_500, 0, 6_200, 600)
BUSY_ENDS_S = (40, 100, 120, 160, 220)


def gaps_of(arrivals: Sequence[float]) -> list[float]:
    return [after - before for before, after in pairwise(arrivals)]


def ks_distance(samples: Sequence[float], cdf: Callable[[float], float]) -> float:
    """The largest distance between the samples' own distribution function and another."""
    n = len(samples)
    at = [cdf(sample) for sample in sorted(samples)]
    return max(max((i + 1) / n - value, value - i / n) for i, value in enumerate(at))


def ks_limit(n: int) -> float:
    return 1.95 / math.sqrt(n)


def gamma_cdf(shape: float) -> Callable[[float], float]:
    """Of the gamma distribution with mean 1, by the series of the incomplete gamma function."""

    def cdf(x: float) -> float:
        y = shape * x
        if y <= 0:
            return 0.0
        term = total = math.exp(shape * math.log(y) - y - math.lgamma(shape + 1))
        k = shape
        while term > 1e-17 * total:
            k += 1
            term *= y / k
            total += term
        return min(total, 1.0)

    return cdf


def counts(arrivals: Sequence[int], window_ns: int) -> list[int]:
    """How many arrive in each whole window from 0 to the last arrival."""
    edges = range(0, arrivals[-1] + 1, window_ns)
    return [bisect_left(arrivals, end) - bisect_left(arrivals, begin) for begin, end in pairwise(edges)]


def dispersion(numbers: Sequence[int]) -> float:
    """The index of dispersion: variance / mean."""
    return statistics.variance(numbers) / statistics.mean(numbers)


def busy_area(seconds: float) -> float:
    """The requests that the stages of BUSY make until then: their rates, integrated by hand."""
    s = seconds
    if s < 40:
        return 50 * s
    if s < 100:
        return 2_000 + 50 * (s - 40) + 250 / 60 * (s - 40) ** 2 / 2
    if s < 120:
        return 12_500
    if s < 160:
        return 12_500 + 300 * (s - 120) - 290 / 40 * (s - 120) ** 2 / 2
    return 18_700 + 10 * (s - 160)


def in_stages(process: str, stages: str, seed: int = 0, burstiness: float = 1.0) -> list[int]:
    return draw_in_stages(process, 10**6, parse_stages(stages), seed, burstiness)[0]


# --- processes at one rate


def test_constant_arrivals_are_exact_multiples_of_the_gap() -> None:
    """At 3 req/s the gap is a third of a second, rounded once per arrival, so errors do not add up."""
    assert draw_arrivals("constant", 4, Fraction(3), seed=0) == [0, 333_333_333, 666_666_667, 1_000_000_000]


@pytest.mark.parametrize("process", PROCESSES)
def test_every_process_starts_at_zero_and_never_goes_back(process: str) -> None:
    shape = 0.5 if PROCESSES[process].has_burstiness else 1.0
    arrivals = draw_arrivals(process, 200, Fraction(50), seed=3, burstiness=shape)
    assert len(arrivals) == 200
    assert arrivals[0] == 0
    assert arrivals == sorted(arrivals)
    assert draw_arrivals(process, 1, Fraction(50), seed=3) == [0]


@pytest.mark.parametrize("process", ["poisson", "gamma", "rescaled"])
def test_a_seed_is_one_list_of_arrivals_and_another_seed_another(process: str) -> None:
    first, again = (draw_arrivals(process, 1000, Fraction(10), seed=7) for _ in range(2))
    assert first == again
    assert draw_arrivals(process, 1000, Fraction(10), seed=8) != first
    assert in_stages(process, BUSY, seed=7) == in_stages(process, BUSY, seed=7) != in_stages(process, BUSY)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("process", "shape"), SHAPES)
def test_gaps_have_the_mean_and_the_spread_of_the_process(process: str, shape: float, seed: int) -> None:
    """A gamma distribution of shape k has a coefficient of variation c of 1/sqrt(k).

    The standard error of a mean is c / sqrt(n); that of c, as a share of it, sqrt((1 + 1/k) / 2n) (delta
    method, from the moments of the gamma distribution).
    """
    gaps = gaps_of(draw_arrivals(process, DRAWS + 1, Fraction(10), seed=seed, burstiness=shape))
    spread = 1 / math.sqrt(shape)
    assert statistics.mean(gaps) / S == pytest.approx(0.1, rel=4 * spread / math.sqrt(DRAWS))
    error = math.sqrt((1 + 1 / shape) / (2 * DRAWS))
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(spread, rel=4 * error)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("process", "shape"), SHAPES)
def test_gaps_are_distributed_as_the_process_says(process: str, shape: float, seed: int) -> None:
    """Kolmogorov-Smirnov; the test tells a shape that is a tenth off."""
    gaps = gaps_of(draw_arrivals(process, DRAWS + 1, Fraction(10), seed=seed, burstiness=shape))
    in_means = [gap / S * 10 for gap in gaps]
    assert ks_distance(in_means, gamma_cdf(shape)) < ks_limit(DRAWS)
    assert ks_distance(in_means, gamma_cdf(shape * 1.1)) > ks_limit(DRAWS)


@pytest.mark.parametrize("gaps", [1, 5, 50, 500])
def test_poisson_counts_have_an_index_of_dispersion_of_one_over_any_window(gaps: int) -> None:
    """The variance of m Poisson counts with mean w has a relative error of sqrt((2 + 1/w) / m)."""
    windows = counts(draw_arrivals("poisson", 5 * DRAWS, Fraction(10), seed=3), gaps * S // 10)
    assert dispersion(windows) == pytest.approx(1, rel=4 * math.sqrt((2 + 1 / gaps) / len(windows)))


@pytest.mark.parametrize("shape", [0.25, 0.5, 4.0])
def test_gamma_counts_are_as_dispersed_as_renewal_theory_says(shape: float) -> None:
    """Over w mean gaps, many of them, the index is c^2 + (1 - c^4) / 6w for gamma gaps (Cox, 1962).

    c^2 = 1 / k. The variance of m counts that are nearly normal has a relative error of sqrt(2 / m).
    """
    windows = counts(draw_arrivals("gamma", 5 * DRAWS, Fraction(10), 3, shape), 50 * S // 10)
    theory = 1 / shape + (1 - 1 / shape**2) / (6 * 50)
    assert dispersion(windows) == pytest.approx(theory, rel=4 * math.sqrt(2 / len(windows)))


def test_constant_arrivals_have_no_dispersion() -> None:
    """A window of 10.5 gaps has 10 or 11 of them: a variance of a quarter, over 10.5."""
    arrivals = draw_arrivals("constant", 5000, Fraction(10), seed=0)
    assert set(counts(arrivals, S)) == {10}
    assert dispersion(counts(arrivals, S * 105 // 100)) == pytest.approx(0.25 / 10.5, rel=0.01)


def test_gamma_with_a_burstiness_of_one_is_poisson() -> None:
    poisson = draw_arrivals("poisson", 500, Fraction(4), seed=5)
    assert draw_arrivals("gamma", 500, Fraction(4), seed=5, burstiness=1.0) == poisson


def test_another_rate_stretches_the_same_draw() -> None:
    """Halving the rate doubles every arrival, up to the one rounding of each."""
    fast = draw_arrivals("gamma", 300, Fraction(8), seed=2, burstiness=0.3)
    slow = draw_arrivals("gamma", 300, Fraction(4), seed=2, burstiness=0.3)
    assert all(abs(after - 2 * before) <= 1 for before, after in zip(fast, slow, strict=True))


# --- the fixed count of vLLM's benchmark


def test_rescaled_arrivals_are_the_poisson_draw_stretched() -> None:
    """By one factor: n requests and the one after them take n / rate exactly, whatever the seed drew."""
    rescaled = draw_arrivals("rescaled", 300, Fraction(4), seed=5)
    poisson = draw_arrivals("poisson", 301, Fraction(4), seed=5)
    factor = Fraction(300 * S, 4) / poisson[-1]
    assert all(abs(a - b * factor) <= 2 for a, b in zip(rescaled, poisson, strict=False))


@pytest.mark.parametrize("seed", [1, 2])
def test_rescaled_arrivals_lie_like_uniform_numbers_in_order(seed: int) -> None:
    """Poisson arrivals under the condition of their number are just that; on (0, n / rate) here."""
    arrivals = draw_arrivals("rescaled", DRAWS + 1, Fraction(10), seed)
    in_span = [arrival / S * 10 / (DRAWS + 1) for arrival in arrivals[1:]]
    assert ks_distance(in_span, lambda share: share) < ks_limit(DRAWS)


def test_rescaled_arrivals_are_not_poisson_and_poisson_arrivals_are_not_rescaled() -> None:
    """Of 200 in 20 s, the first 10 s have 100 on average: variance 100 for Poisson, 50 for a fixed count.

    A variance of 400 counts has a relative error of sqrt(2 / 399), and 200 Poisson requests take 20 s only
    within sqrt(200) / 10 s.
    """
    error = math.sqrt(2 / 399)
    draw = {
        name: [draw_arrivals(name, 200, Fraction(10), seed) for seed in range(400)]
        for name in ("poisson", "rescaled")
    }
    halves = {name: [bisect_left(arrivals, 10 * S) for arrivals in drawn] for name, drawn in draw.items()}
    # The request at 0 is in every count: 199 others, in (0, 20) s with a fixed count.
    assert statistics.variance(halves["poisson"]) / 100 == pytest.approx(1, rel=4 * error)
    assert statistics.variance(halves["rescaled"]) / (199 / 4) == pytest.approx(1, rel=4 * error)
    assert all(arrivals[-1] < 20 * S for arrivals in draw["rescaled"])
    spans = [arrivals[-1] / S for arrivals in draw["poisson"]]
    assert statistics.mean(spans) == pytest.approx(19.9, abs=4 * math.sqrt(199) / 10 / math.sqrt(400))
    assert statistics.stdev(spans) == pytest.approx(math.sqrt(199) / 10, rel=4 * error)


def test_a_burst_without_a_span_cannot_be_stretched() -> None:
    """At the smallest burstiness nearly all gaps are 0; a seed whose gaps all are leaves all at 0."""
    drawn = [draw_arrivals("rescaled", 3, Fraction(1), seed, burstiness=0.001) for seed in range(20)]
    assert [0, 0, 0] in drawn
    assert all(arrivals[-1] <= 3 * S for arrivals in drawn)


# --- rates that change


def test_constant_arrivals_in_steps_are_where_the_rates_put_them() -> None:
    """5 req/s for 1 s, a pause of 2 s, 10 req/s for 0.5 s; the beginning of a stage is in it, not its end."""
    ms = [arrival / 1_000_000 for arrival in in_stages("constant", "5:1,0:2,10:0.5")]
    assert ms == [0, 200, 400, 600, 800, 3000, 3100, 3200, 3300, 3400]


def test_constant_arrivals_in_ramps_are_at_the_roots() -> None:
    """From 0 to 10 req/s in 10 s the kth comes at sqrt(2k) s; back to 0 at 10 - sqrt(100 - 2k) s."""
    with localcontext(prec=50):
        up = [round((2 * Decimal(k)).sqrt() * S) for k in range(50)]
        down = [round((10 - (100 - 2 * Decimal(k)).sqrt()) * S) for k in range(50)]
    assert in_stages("constant", "0-10:10") == up
    assert in_stages("constant", "10-0:10") == down
    assert in_stages("constant", "0-10:10,10-0:10") == up + [10 * S + at for at in down]


@pytest.mark.parametrize(("process", "shape"), SHAPES)
def test_gaps_in_stages_are_those_of_the_process_in_the_area_under_the_rates(
    process: str, shape: float
) -> None:
    """The time-rescaling theorem, by Kolmogorov-Smirnov: for Poisson arrivals these gaps are Exp(1)."""
    areas = [busy_area(arrival / S) for arrival in in_stages(process, BUSY, 5, shape)]
    gaps = gaps_of(areas)
    assert ks_distance(gaps, gamma_cdf(shape)) < ks_limit(len(gaps))
    error = 1 / math.sqrt(shape * len(gaps))
    assert statistics.mean(gaps) == pytest.approx(1, rel=4 * error)


def test_every_stage_has_the_requests_that_its_area_says() -> None:
    """Poisson counts: within four roots of the area of each stage, one more in the first, none in a pause."""
    arrivals = in_stages("poisson", BUSY, seed=11)
    until = [bisect_left(arrivals, end * S) for end in (0, *BUSY_ENDS_S)]
    in_stage = [after - before for before, after in pairwise(until)]
    for number, area, first in zip(in_stage, BUSY_REQUESTS, (1, 0, 0, 0, 0), strict=True):
        assert abs(number - first - area) <= 4 * math.sqrt(area)
    assert until[-1] == len(arrivals)


def test_counts_follow_the_curve_of_a_ramp_and_vary_as_poisson_counts_do() -> None:
    """From 0 to 20 req/s in 10 s: 1 + t^2 until t on average, the first of them at 0.

    Over 400 seeds the mean count has a standard error of sqrt(t^2 / 400), its variance one of sqrt(2 / 399).
    """
    drawn = [in_stages("poisson", "0-20:10", seed) for seed in range(400)]
    for t in range(1, 11):
        numbers = [bisect_left(arrivals, t * S) - 1 for arrivals in drawn]
        assert statistics.mean(numbers) == pytest.approx(t * t, abs=4 * t / 20)
    assert statistics.variance(numbers) / 100 == pytest.approx(1, rel=4 * math.sqrt(2 / 399))


@pytest.mark.parametrize("stages", ["5:2,0:1,5-15:3", "10-0:8.01"])
def test_a_fixed_count_in_stages_is_their_area_rounded_up(stages: str) -> None:
    """10 + 0 + 30 requests, and 40.05."""
    expected = {"5:2,0:1,5-15:3": 40, "10-0:8.01": 41}[stages]
    assert len(in_stages("constant", stages)) == expected
    assert {len(in_stages("rescaled", stages, seed)) for seed in range(30)} == {expected}
    assert len({len(in_stages("poisson", stages, seed)) for seed in range(30)}) > 5


def test_one_stage_is_a_rate() -> None:
    """The same seed at 10 req/s and in a stage of it: the same arrivals, up to the end of the stage."""
    arrivals = draw_arrivals("poisson", 1000, Fraction(10), seed=4)
    until_30_s = [arrival for arrival in arrivals if arrival < 30 * S]
    assert in_stages("poisson", "10:30", seed=4) == until_30_s
    assert draw_in_stages("poisson", 50, parse_stages("10:30"), seed=4) == (arrivals[:50], True)
    assert draw_in_stages("poisson", 999, parse_stages("10:30"), seed=4) == (until_30_s, False)


RATES = st.fractions(min_value=0, max_value=1000, max_denominator=60)
SECONDS = st.fractions(min_value=Fraction(1, 1000), max_value=100, max_denominator=1000)
BUSY_STAGE = st.builds(Stage, RATES.filter(bool), RATES, SECONDS)
PROFILES = st.builds(
    lambda first, between, last: Profile((first, *between, last), ""),
    BUSY_STAGE,
    st.lists(st.builds(Stage, RATES, RATES, SECONDS), max_size=4),
    BUSY_STAGE,
)


@given(PROFILES, st.lists(st.fractions(min_value=0, max_value=1, max_denominator=10**6), max_size=30))
def test_any_stages_bring_every_position_to_the_moment_of_its_area(
    profile: Profile, shares: list[Fraction]
) -> None:
    """In order, in the stages, and within a nanosecond of where the area under the rates is the position."""
    positions = sorted(share * profile.requests for share in shares)
    times = list(profile.times_ns(positions))
    assert len(times) == sum(position < profile.requests for position in positions)
    assert times == sorted(times)
    for position, time_ns in zip(positions, times, strict=False):
        assert 0 <= time_ns <= profile.seconds * S
        assert (
            area_at(profile, Fraction(time_ns - 1, S))
            <= position
            <= area_at(profile, Fraction(time_ns + 1, S))
        )


def test_what_is_cut_off_a_root_does_not_carry_a_time_into_another_stage() -> None:
    """Stages that meet at half a nanosecond, and positions that differ by less than the root's resolution."""
    down, up = (
        Stage(Fraction(3), Fraction(1), Fraction(5, 2 * S)),
        Stage(Fraction(1), Fraction(3), Fraction(1)),
    )
    times = Profile((down, up), "").times_ns([down.requests - Fraction(1, 2**200), down.requests])
    assert list(times) == [2, 2]


def area_at(profile: Profile, seconds: Fraction) -> Fraction:
    """The area under the rates up to some time, as an exact sum of trapezoids."""
    area, begin = Fraction(0), Fraction(0)
    for first, last, length in profile.stages:
        within = min(max(seconds - begin, Fraction(0)), length)
        area += first * within + (last - first) / length * within**2 / 2
        begin += length
    return area


# --- the same everywhere


def test_the_logarithm_and_the_exponential_are_right_to_the_last_bits() -> None:
    """Within four units of the last place of the C library's, over all that is drawn."""
    random = Random(9)
    for _ in range(5_000):
        x = random.choice([1 - random.random(), 1 + random.random() * 1e-6, random.random() * 1e3])
        assert abs(draws.log(x) - math.log(x)) <= 4 * max(math.ulp(math.log(x)), math.ulp(1e-300))
        y = -random.choice([1e-9, 1.0, 40.0, 700.0]) * random.random()
        assert draws.exp(y) == pytest.approx(math.exp(y), rel=(4 + abs(y)) * 2**-52)
    assert (draws.log(1.0), draws.exp(0.0), draws.exp(-36_000.0)) == (0, 1, 0)


def test_poisson_arrivals_are_the_uniform_numbers_of_the_seed_inverted() -> None:
    """Worked out again with 40 digits from the one method of Random whose sequence Python promises."""
    random = Random("7:arrivals")
    at, expected = Decimal(0), [0]
    with localcontext(prec=40):
        for _ in range(499):
            at -= (1 - Decimal(random.random())).ln()
            expected.append(round(at / 10 * S))
    arrivals = draw_arrivals("poisson", 500, Fraction(10), seed=7)
    assert all(abs(arrival - wanted) <= 1 for arrival, wanted in zip(arrivals, expected, strict=True))


def test_a_seed_has_these_arrivals_on_every_machine() -> None:
    """Written down once: whoever gets others has another machine's arithmetic, or changed the draws."""
    assert draw_arrivals("poisson", 5, Fraction(10), seed=1) == [0, 3120202, 40803580, 244082838, 423475323]
    bursty = draw_arrivals("gamma", 5, Fraction(10), seed=1, burstiness=0.5)
    assert bursty == [0, 44474456, 57164187, 122254029, 235243889]
    even = draw_arrivals("gamma", 5, Fraction(10), seed=1, burstiness=4)
    assert even == [0, 96756398, 226122339, 299184798, 342263732]
    assert draw_arrivals("rescaled", 5, Fraction(10), seed=1) == [0, 3184879, 41649373, 249142284, 432253288]
    staged = in_stages("poisson", "1-3:1,0:1,3-1:2", seed=1)
    assert staged == [0, 30284846, 311194060, 2150729349, 2871504395, 3210286455, 3795682867]


# --- times stretched and replayed


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


# --- settings


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"request_rate": Fraction(0)}, "request rate 0"),
        ({"request_rate": Fraction(-2)}, "request rate -2"),
        ({"speed": Fraction(0)}, "speed 0"),
        ({"speed": Fraction(2), "request_rate": Fraction(4)}, "speed"),
        ({"speed": Fraction(2), "stages": parse_stages("5:1")}, "speed .* the stages set them"),
        ({"arrival": "poisson"}, "needs a request rate"),
        ({"arrival": "weekly", "request_rate": Fraction(4)}, "arrival weekly"),
        ({"burstiness": float("nan"), "arrival": "gamma", "request_rate": Fraction(4)}, "burstiness nan"),
        ({"burstiness": 0.0, "arrival": "gamma", "request_rate": Fraction(4)}, "burstiness 0"),
        ({"burstiness": 0.5, "arrival": "poisson", "request_rate": Fraction(4)}, "only gamma and rescaled"),
        ({"burstiness": 0.5, "arrival": "poisson", "stages": parse_stages("5:1")}, "only gamma and rescaled"),
        ({"request_rate": "inf", "stages": parse_stages("5:1")}, "--stages and --request-rate"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, object], fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        Pacing(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("5:30", [("5", "5", "30")]),
        ("5:30,5-50:60,50:30", [("5", "5", "30"), ("5", "50", "60"), ("50", "50", "30")]),
        (" 0.5-2.5:0.1 , 10/3:1e1", [("1/2", "5/2", "1/10"), ("10/3", "10/3", "10")]),
        ("1e-3-1E-2:1e-1", [("1/1000", "1/100", "1/10")]),
        ("0-5:1,0:2,0-0:3,5-0:1", [("0", "5", "1"), ("0", "0", "2"), ("0", "0", "3"), ("5", "0", "1")]),
    ],
)
def test_stages_are_read_exactly_as_written(text: str, stages: list[tuple[str, str, str]]) -> None:
    assert parse_stages(text).stages == tuple(Stage(*map(Fraction, stage)) for stage in stages)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "'' is not RATE:SECONDS or RATE-RATE:SECONDS"),
        ("5", "'5' is not"),
        ("5:1,,5:1", "'' is not"),
        ("5:1,x:2", "'x:2' is not"),
        ("5:0", "'5:0' is not"),
        ("5:-1", "'5:-1' is not"),
        ("-5:1", "'-5:1' is not"),
        ("5--6:1", "'5--6:1' is not"),
        ("1-2-3:1", "'1-2-3:1' is not"),
        ("5:1:1", "'5:1:1' is not"),
        ("inf:1", "'inf:1' is not"),
        ("nan-5:1", "'nan-5:1' is not"),
        ("1e10:1", "rates from 0 to 1,000,000,000 req/s"),
        ("5:1e999999999", "is not"),
        ("5:6e8,5:6e8", "they last 1.2e\\+09 s, more than 1,000,000,000"),
        ("0:5,5:5", "the first is a pause"),
        ("5:5,0:5", "the last is a pause"),
        ("0:5", "the first is a pause"),
    ],
)
def test_stages_that_mean_nothing_are_refused_with_the_word_that_is_wrong(text: str, fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        parse_stages(text)


# --- ledgers in stages


def lengths(tmp_path: Path, count: int) -> str:
    path = tmp_path / "lengths.csv"
    path.write_text("prompt_tokens,output_tokens\n" + "10,2\n" * count)
    return str(path)


def arrivals_of(ledger: Ledger) -> list[int | None]:
    return [row.arrival_ns for row in ledger.rows]


def test_requests_that_would_come_after_the_stages_are_left_out_and_counted(tmp_path: Path) -> None:
    """5 req/s for 2 s has room for 10 of 12."""
    ledger = load_ledger(lengths(tmp_path, 12), stages=parse_stages("5:2"), arrival="constant")
    assert arrivals_of(ledger) == [k * S // 5 for k in range(10)]
    assert ledger.notes == [
        "the last 2 of 12 requests left out: the stages end at 2 s",
        "constant arrivals in stages 5:2, drawn from seed 0: 5 req/s over 1.8 s",
    ]


def test_a_ledger_that_ends_before_the_stages_is_said_to(tmp_path: Path) -> None:
    """10 fill the stages exactly, and there is nothing to say; 4 of them end at 0.6 s."""
    stages = parse_stages("5:1,5:1")
    source = lengths(tmp_path, 10)
    few = load_ledger(source, stages=stages, arrival="constant", num_prompts=4)
    assert few.notes[0] == "the requests end at 0.6 of 2 s: there are 4, and the stages make about 10"
    assert len(load_ledger(source, stages=stages, arrival="constant").notes) == 1


def test_stages_draw_poisson_arrivals_for_any_ledger_if_no_process_is_named(tmp_path: Path) -> None:
    """For lengths, times and shapes alike; a burstiness makes them gamma arrivals."""
    stages = parse_stages("2-8:4")
    timed = tmp_path / "timed.csv"
    timed.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{9 * k},1,1\n" for k in range(50)))
    drawn = draw_in_stages("poisson", 10, stages, seed=3)[0]
    for source in (lengths(tmp_path, 50), str(timed), "toy"):
        ledger = load_ledger(source, stages=stages, seed=3, num_prompts=10)
        assert arrivals_of(ledger) == drawn
        assert "poisson arrivals in stages 2-8:4, drawn from seed 3" in ledger.notes[-1]
    assert "gamma arrivals" in load_ledger("toy", stages=stages, burstiness=0.5).notes[-1]


def test_made_requests_are_as_many_as_the_stages_draw() -> None:
    """And the lengths do not depend on how many there are."""
    stages = parse_stages("20:2,0:1,20-40:3")
    ledger = make_ledger(None, 50, 9, range_ratio=Fraction(1, 2), stages=stages, seed=6)
    assert arrivals_of(ledger) == draw_in_stages("poisson", 10**6, stages, seed=6)[0]
    assert len(ledger.notes) == 1
    fewer = make_ledger(30, 50, 9, range_ratio=Fraction(1, 2), stages=stages, seed=6)
    assert "there are 30, and the stages make about 130" in fewer.notes[0]
    assert [(row.prompt_tokens, row.arrival_ns) for row in fewer.rows] == [
        (row.prompt_tokens, row.arrival_ns) for row in ledger.rows[:30]
    ]


def test_a_duration_ends_stages_early() -> None:
    """And its note stands beside theirs."""
    ledger = make_ledger(None, 5, 5, arrival="constant", stages=parse_stages("10:3"))
    cut = cut_to_duration(ledger, Fraction(2))
    assert len(cut.rows) == 20
    assert cut.notes[-1] == "the last 10 of 30 requests left out: they arrive at 2 s or later"


def test_stages_do_not_fill_the_memory_by_a_slip_and_lengths_need_a_number() -> None:
    with pytest.raises(InputError, match=r"about 50,000,000 requests, so say how many \(--num-prompts\)"):
        make_ledger(None, 5, 5, stages=parse_stages("5e6:10"))
    assert len(make_ledger(3, 5, 5, stages=parse_stages("5e6:10")).rows) == 3
    with pytest.raises(InputError, match="only stages tell how many"):
        make_ledger(None, 5, 5, request_rate=Fraction(5))


# --- as a user says it


@pytest.mark.parametrize(
    "command",
    [["simulate"], ["run", "--base-url", "http://127.0.0.1:9"], ["agree"]],
    ids=lambda words: words[0],
)
def test_wrong_stages_end_every_command_with_one_line(command: list[str], tmp_path: Path) -> None:
    """What is wrong, and in which stage; nothing is left behind."""
    result = tokentick(*command, "toy", "--stages", "5:3,5-x:3", cwd=tmp_path)
    refused(result, 2, "--stages", "'5-x:3'", "RATE-RATE:SECONDS")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["toy", "--stages", "5:3", "--rate", "4"], "--stages and --request-rate"),
        (["toy", "--stages", "5:3", "--speed", "2"], "the stages set them"),
        (["--stages", "5:3"], "no LEDGER"),
        (["--random-input-len", "5", "--random-output-len", "5"], "--num-prompts"),
        (["toy", "--stages", "5:3", "--num-prompts", "0"], "--num-prompts"),
    ],
)
def test_what_stages_cannot_stand_beside_is_refused(words: list[str], fault: str, tmp_path: Path) -> None:
    refused(tokentick("simulate", *words, cwd=tmp_path), 2, fault)


def test_a_simulated_and_a_measured_run_have_the_same_stages(server: MockServer, tmp_path: Path) -> None:
    """The same flags plan the same requests, and these arrive when the stages say."""
    made = ["--random-input-len", "5", "--random-output-len", "2", "--seed", "4"]
    words = [*made, "--stages", "20:0.5,0:0.2,20-60:0.5", "--arrival", "rescaled", "--quiet"]
    runs = [tmp_path / name for name in ("simulated", "measured")]
    simulated = tokentick("simulate", *words, "--out", str(runs[0]), cwd=tmp_path)
    measured = tokentick("run", *words, "--base-url", server.url, "--out", str(runs[1]), cwd=tmp_path)
    assert (simulated.returncode, measured.returncode) == (0, 0), simulated.stderr + measured.stderr
    infos = [json.loads((run / "run.json").read_text()) for run in runs]
    assert infos[0]["ledger"] == infos[1]["ledger"]
    assert infos[0]["ledger"]["requests"] == 30  # 10, 0 and 20
    for run in runs:
        rows = [json.loads(line) for line in (run / "requests.jsonl").read_text().splitlines()]
        assert sorted(row["arrival_ns"] for row in rows) == in_stages("rescaled", "20:0.5,0:0.2,20-60:0.5", 4)
