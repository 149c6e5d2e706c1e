"""Verdicts on queues whose truth is known: how often they are right, and how often wrong."""

from __future__ import annotations

from collections import Counter
from heapq import heapify, heapreplace
from math import log
from random import Random

import msgspec
import pytest

from ledgers.concurrency import InFlight
from ledgers.rows import RequestRow
from ledgers.settings import Hardware
from ledgers.steady import Stability, filled_ns, stability
from ledgers.work import Work

S = 1_000_000_000
SEEDS = 100


def queue(random: Random, rates: list[float], servers: int, *, fixed: bool) -> list[tuple[int, int]]:
    """From when to when each request was in an M/D/c or M/M/c queue, at a load per server for each of them.

    A service takes 1 s on average.
    """
    free, stays, now = [0.0] * servers, [], 0.0
    heapify(free)
    for rho in rates:
        now -= log(1 - random.random()) / (rho * servers)
        service = 1.0 if fixed else -log(1 - random.random())
        left = max(free[0], now) + service
        heapreplace(free, left)
        stays.append((round(now * S), round(left * S)))
    return stays


def verdict(stays: list[tuple[int, int]], begin_ns: int = 0) -> Stability:
    last = stays[-1][0]
    flight = InFlight((entered for entered, _ in stays), (left for _, left in stays))
    return stability(flight, filled_ns(stays, begin_ns, last), last)


def verdicts(rates: list[float], servers: int, *, fixed: bool) -> Counter[str]:
    """Over so many seeded queues."""
    return Counter(verdict(queue(Random(seed), rates, servers, fixed=fixed)).verdict for seed in range(SEEDS))


@pytest.mark.parametrize(
    ("rho", "servers", "n"), [(0.5, 1, 500), (0.8, 1, 1_500), (0.9, 1, 4_000), (0.6, 32, 2_000)]
)
@pytest.mark.parametrize("fixed", [True, False])
def test_a_steady_queue_is_called_so(rho: float, servers: int, n: int, *, fixed: bool) -> None:
    """In 85 % of the runs at least; at most 2 % are said to grow or to be overloaded."""
    found = verdicts([rho] * n, servers, fixed=fixed)
    assert found["steady"] >= 0.85 * SEEDS
    assert found["growing"] + found["overload"] <= 0.02 * SEEDS


@pytest.mark.parametrize(("rho", "n"), [(0.9, 300), (0.95, 300), (0.95, 1_000)])
def test_a_short_run_of_a_busy_queue_raises_no_alarm(rho: float, n: int) -> None:
    """Its number in flight wanders far; that is rarely taken for growth, in at most 4 % of the runs."""
    found = verdicts([rho] * n, 1, fixed=False)
    assert found["growing"] + found["overload"] <= 0.04 * SEEDS


@pytest.mark.parametrize(("rho", "servers", "n"), [(1.3, 1, 1_000), (1.3, 32, 1_000), (1.05, 1, 12_000)])
@pytest.mark.parametrize("fixed", [True, False])
def test_an_overloaded_queue_is_called_so(rho: float, servers: int, n: int, *, fixed: bool) -> None:
    """In 75 % of the runs at least, of 1.3 in 97 %; and none is ever called steady."""
    found = verdicts([rho] * n, servers, fixed=fixed)
    assert found["overload"] >= (0.97 if rho > 1.1 else 0.75) * SEEDS
    assert found["steady"] == 0


def test_too_few_requests_to_see_a_slight_overload_are_no_steady_run() -> None:
    """4,000 requests at 1.05: 190 pile up, and a random walk strays by 60 to 90. At most 4 % are wrong."""
    found = verdicts([1.05] * 4_000, 1, fixed=False)
    assert found["steady"] <= 0.04 * SEEDS
    assert found["overload"] >= 0.4 * SEEDS


def test_a_burst_that_drains_is_no_overload() -> None:
    """A load of 0.5 with a stretch of 1.5 in it: the queue is as short after it as before."""
    found = verdicts([0.5] * 1_200 + [1.5] * 600 + [0.5] * 2_200, 1, fixed=False)
    assert found["overload"] + found["growing"] == 0


def test_growth_that_does_not_go_on_is_told_from_overload() -> None:
    """In flight grows for 600 of 1,000 s, and then stays where it is."""
    stays = [(i * S, i * S + min(i, 400) * S // 2) for i in range(1_000)]
    found = verdict(stays)
    assert found.verdict == "growing"
    assert found.last_third_per_s == pytest.approx(0)
    assert found.low is not None
    assert found.low > 0


def test_filling_up_is_not_growth() -> None:
    """A request every second, each for 100 s: 100 in flight after 100 s, and ever after."""
    found = verdict([(i * S, (i + 100) * S) for i in range(1_000)])
    assert found.verdict == "steady"
    assert found.begin_s == pytest.approx(119)  # the twentieth has left
    assert found.slope_per_s == pytest.approx(0, abs=0.002)


def test_the_slope_is_what_piles_up() -> None:
    """Two requests arrive per second and one leaves: +1 per second, half of what arrives."""
    found = verdict([(i * S // 2, i * S + S // 2) for i in range(2_000)])
    assert found.verdict == "overload"
    assert (found.slope_per_s, found.share) == pytest.approx((1.0, 0.5), rel=0.01)
    assert found.low == pytest.approx(1.0, rel=0.02)


def test_too_few_arrivals_have_no_verdict() -> None:
    found = verdict([(i * S, i * S + 1) for i in range(20)])
    assert (found.verdict, found.slope_per_s) == ("undetermined", None)
    assert verdict([(0, S)] * 100).verdict == "undetermined"  # all at one instant


def test_rho_is_what_is_asked_over_what_the_hardware_can_do() -> None:
    """3 slots emit 30 tokens per second: 11 requests of 12 tokens in 5 s ask for 24 of them."""
    work = Work(Hardware(), "continuous")
    for i in range(11):
        work.add(RequestRow(id=f"R{i}", prompt_tokens=24, output_tokens=12, outcome="completed"))
    work.add(RequestRow(id="X", prompt_tokens=24, output_tokens=12, outcome="rejected"))
    assert work.rho(5 * S) == pytest.approx(0.8)
    assert work.rho(0) is None
    assert Work(None, None).rho(5 * S) is None


def test_rho_of_one_at_a_time_is_that_of_the_whole_server() -> None:
    """24 prompt tokens take a tick of 100 ms, 12 tokens 11 more: 1.2 s each; two come in a second."""
    work = Work(msgspec.structs.replace(Hardware(), tick_s=0.1, prefill_tokens_per_tick=24), "immediate")
    for i in range(11):
        work.add(RequestRow(id=f"R{i}", prompt_tokens=24, output_tokens=12, outcome="completed"))
    assert work.rho(5 * S) == pytest.approx(2.4)
