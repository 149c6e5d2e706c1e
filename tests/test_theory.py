"""Theory as a check: where a setting makes a formula exact, 100,000 simulated requests meet it.

A request of n tokens whose prompt fits into one tick holds its server for n ticks under
`immediate`, which has one server: the next prefill begins in the tick of the last token. Under
`chunked` it holds one of `decode_slots` servers for n + 1 ticks: the slot of a last token is free
in the tick after it. Both serve who came first.

Arrivals are Poisson, so the wait for the first tick at or after an arrival is Δt/2 on average. From
that tick on the mean wait for *one* server is Pollaczek's and Khinchine's, for ticks of any length:
let A be the work that comes in a tick. The work left at a tick, V' = (V + A − Δt)⁺, has the mean
λE[S²]/2(1 − ρ) − ρΔt/2, and the ρΔt/2 that it lacks is what a request waits for those who came
before it in its own tick. So no tick must be small.

Each comparison has a false alarm rate of 1 in 1,000 over seeds (an interval of 99.9 % from 40 batch
means); the seeds are fixed, so a test that passes goes on to. Each interval must also be narrow
enough to tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import comb, exp, lgamma, log, sqrt
from random import Random
from statistics import fmean, stdev
from typing import NamedTuple

import pytest

from ledgers import queueing
from ledgers.arrivals import draw_arrivals
from ledgers.rows import RequestRow, TickRow
from ledgers.settings import Hardware, SchedulerSettings
from ledgers.tick_runs import TickRun
from mock_server.leaps import LEAPERS
from mock_server.leaps.driver import leap

TICK_S = 0.01
REQUESTS = 104_000
WARM_UP = 4_000  # requests left out: the queue begins empty
BATCHES = 40
T_39 = 3.558  # Student's t with 39 degrees of freedom, 99.9 % two-sided
Lengths = Callable[[Random], int]


class Interval(NamedTuple):
    """The mean of what depends on its neighbours, by batch means."""

    mean: float
    half: float

    def holds(self, value: float) -> bool:
        return abs(value - self.mean) <= self.half


def batch_means(values: Sequence[float]) -> Interval:
    """Batches of 2,500 requests, many times as long as the queues here remember."""
    size = len(values) // BATCHES
    means = [fmean(values[k * size : (k + 1) * size]) for k in range(BATCHES)]
    return Interval(fmean(means), T_39 * stdev(means) / sqrt(BATCHES))


def hardware(slots: int = 1, prefill: int = 10**9) -> Hardware:
    return Hardware(TICK_S, prefill, slots, 10**9)


def planned(rate: float, output: Lengths, seed: int, prompt: Lengths | None = None) -> list[RequestRow]:
    random = Random(seed)
    arrivals = draw_arrivals("poisson", REQUESTS, Fraction(rate), seed)
    return [
        RequestRow(
            id=f"R{k:06}",
            arrival_ns=arrival,
            prompt_tokens=prompt(random) if prompt else 1,
            output_tokens=output(random),
        )
        for k, arrival in enumerate(arrivals)
    ]


def run(
    settings: SchedulerSettings, requests: list[RequestRow], on_tick: Callable[[TickRow], None] | None = None
) -> list[RequestRow]:
    """The rows in order of arrival, from the simulator that the commands use."""

    def add_ticks(run: TickRun) -> None:
        if on_tick:
            for row in run.rows():
                on_tick(row)

    ended = leap(settings, LEAPERS[settings.policy](settings), requests, on_ticks=on_tick and add_ticks)
    return sorted((row for row, _ in ended), key=lambda row: row.id)


def queue_delay_s(rows: list[RequestRow]) -> Interval:
    waits = (((row.prefill_start_ns or 0) - (row.arrival_ns or 0)) / 1e9 for row in rows[WARM_UP:])
    return batch_means(list(waits))


def always(length: int) -> Lengths:
    return lambda random: length


def either(short: int, long: int, share_long: float) -> Lengths:
    return lambda random: long if random.random() < share_long else short


def geometric(mean: int) -> Lengths:
    """The exponential distribution's counterpart in ticks: without memory, and 1 at least."""
    return lambda random: 1 + int(log(1 - random.random()) / log(1 - 1 / mean))


ONE_SERVER = SchedulerSettings(policy="immediate", hardware=hardware())


@pytest.mark.parametrize(("rho", "precision"), [(0.5, 0.06), (0.8, 0.1)])
def test_one_server_with_equal_requests_is_m_d_1(rho: float, precision: float) -> None:
    """W_q = ρ/(1 − ρ) · S/2, and Δt/2; M/M/1, twice as long, is excluded."""
    service_s = 3 * TICK_S
    rows = run(ONE_SERVER, planned(rho / service_s, always(3), seed=1))
    wait = queue_delay_s(rows)
    expected_s = rho / (1 - rho) * service_s / 2
    assert expected_s == pytest.approx(queueing.mg1_wait(rho / service_s, 1 / service_s, 0))
    assert wait.holds(expected_s + TICK_S / 2), wait
    assert wait.half < precision * expected_s
    assert not wait.holds(2 * expected_s + TICK_S / 2)
    assert rho > 0.5 or not wait.holds(expected_s), "the half tick before the first one shows"


@pytest.mark.parametrize(
    ("output", "mean", "square"),
    [
        (either(1, 10, 0.1), 1.9, 0.9 * 1 + 0.1 * 100),  # C_s² = 2.0
        (geometric(3), 3, 9 * (2 - 1 / 3)),  # C_s² = 2/3; 1, as in M/M/1, for many ticks
    ],
    ids=["two lengths", "geometric"],
)
def test_one_server_with_unequal_requests_is_m_g_1(output: Lengths, mean: float, square: float) -> None:
    """Pollaczek-Khinchine, and Δt/2: it is the variation of the lengths that makes others wait."""
    rho = 0.7
    rate = rho / (mean * TICK_S)
    rows = run(ONE_SERVER, planned(rate, output, seed=2))
    wait = queue_delay_s(rows)
    expected_s = rate * square * TICK_S**2 / (2 * (1 - rho))
    cv = sqrt(square / mean**2 - 1)
    assert expected_s == pytest.approx(queueing.mg1_wait(rate, 1 / (mean * TICK_S), cv))
    assert wait.holds(expected_s + TICK_S / 2), wait
    assert wait.half < 0.12 * expected_s
    assert not wait.holds(queueing.mg1_wait(rate, 1 / (mean * TICK_S), 0) + TICK_S / 2)


def test_prefill_is_a_server_of_its_own_under_continuous() -> None:
    """With B = 1 and slots enough prompts queue as M/G/1 for prefill, and nobody's TPOT moves."""
    chunk, rho = 100, 0.7
    lengths = either(chunk, 6 * chunk, 0.2)  # 1 or 6 ticks of prefill
    settings = SchedulerSettings(
        policy="continuous", max_batch=1, max_wait_ns=0, hardware=hardware(slots=100, prefill=chunk)
    )
    mean, square = 2.0, 0.8 * 1 + 0.2 * 36
    rate = rho / (mean * TICK_S)
    rows = run(settings, planned(rate, always(3), seed=3, prompt=lengths))
    wait = queue_delay_s(rows)
    expected_s = rate * square * TICK_S**2 / (2 * (1 - rho))
    assert wait.holds(expected_s + TICK_S / 2), wait
    assert wait.half < 0.15 * expected_s
    assert {(row.last_token_ns or 0) - (row.first_token_ns or 0) for row in rows} == {2 * 10**7}


SERVERS = 4
FOUR_SERVERS = SchedulerSettings(policy="chunked", hardware=hardware(slots=SERVERS))


def test_slots_with_equal_requests_are_m_d_c() -> None:
    """Crommelin (1932): who is in service now is gone one service time later, and nobody else is.

    So the number present follows N' = (N − c)⁺ + Poisson(λS), here in ticks as in continuous time.
    """
    rho, service_s = 0.8, 5 * TICK_S
    rate = rho * SERVERS / service_s
    wait = queue_delay_s(run(FOUR_SERVERS, planned(rate, always(4), seed=4)))
    coming = poisson(rho * SERVERS)
    chain = stationary(
        [(n,) for n in range(150)],
        lambda state: [((max(0, state[0] - SERVERS) + k,), chance) for k, chance in coming],
    )
    expected_s = waiting(chain) / rate
    assert wait.holds(expected_s + TICK_S / 2), wait
    assert wait.half < 0.12 * expected_s
    erlang_s = queueing.mmc_wait(rate, 1 / service_s, SERVERS)
    assert not wait.holds(erlang_s + TICK_S / 2), "equal lengths wait about half as long"


def test_slots_with_memoryless_requests_are_m_m_c() -> None:
    """Against the exact chain in ticks, of which Erlang's C is the limit for many ticks per request."""
    rho, mean = 0.8, 8
    rate = rho * SERVERS / ((mean + 1) * TICK_S)
    wait = queue_delay_s(run(FOUR_SERVERS, planned(rate, geometric(mean), seed=5)))
    expected_s = geometric_wait(rho, mean) * TICK_S
    assert wait.holds(expected_s + TICK_S / 2), wait
    assert wait.half < 0.12 * expected_s


def test_the_chain_in_ticks_has_erlangs_c_as_its_limit() -> None:
    """W_q of M/M/4 with ρ = 0.8 is 0.7455 service times (C = 0.5964, from the tables)."""
    assert geometric_wait(0.8, 4_000) / 4_001 == pytest.approx(0.5964 / (4 * 0.2), rel=1e-3)
    assert queueing.mmc_wait(3.2, 1, 4) == pytest.approx(0.5964 / (4 * 0.2), rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "rate"),
    [(ONE_SERVER, 42.0), (FOUR_SERVERS, 110.0)],
    ids=["one server", "four slots"],
)
def test_littles_law_holds_and_its_edges_add_up(settings: SchedulerSettings, rate: float) -> None:
    """L from the ticks, λ and W from the rows.

    Over the whole run, which begins and ends empty, as an identity in integers: a tick for each
    request in each tick's row, and the time before its first tick, are all the time that requests
    were there. Between two instants L·T differs from the time of those who came between by its
    edges: what was left of those there before, less what remains of those still there. That is
    exact as well, and in a long steady state next to nothing.
    """
    ticks: list[TickRow] = []
    rows = run(settings, planned(rate, either(1, 10, 0.1), seed=6), ticks.append)
    tick_ns = settings.hardware.tick_ns
    present = [tick.queue + tick.prefill + tick.ready for tick in ticks]
    spans = [(row.arrival_ns or 0, row.end_ns or 0) for row in rows]
    before_first = sum(-arrival % tick_ns for arrival, _ in spans)
    assert sum(present) * tick_ns + before_first == sum(end - arrival for arrival, end in spans)

    first, last = len(ticks) // 10, len(ticks) * 9 // 10
    begin, until = first * tick_ns, last * tick_ns
    inside = [(arrival, end) for arrival, end in spans if begin < arrival <= until]
    left_before = sum(max(0, end - begin) for arrival, end in spans if arrival <= begin)
    left_after = sum(max(0, end - until) for arrival, end in inside)
    half_ticks = sum(-arrival % tick_ns for arrival, _ in inside)
    area = sum(present[first:last]) * tick_ns + half_ticks
    assert area == sum(end - arrival for arrival, end in inside) + left_before - left_after
    in_flight = area / (until - begin)
    rate_and_time = len(inside) / (until - begin) * fmean(end - arrival for arrival, end in inside)
    assert in_flight == pytest.approx(rate_and_time, rel=1e-3)


# Exact queues in ticks, by their Markov chains. A state begins with the number present.

State = tuple[int, ...]
Moves = list[tuple[State, float]]


def poisson(mean: float) -> list[tuple[int, float]]:
    chances = [(k, exp(k * log(mean) - mean - lgamma(k + 1))) for k in range(60)]
    return [(k, chance) for k, chance in chances if chance > 1e-15]


def stationary(states: list[State], moves: Callable[[State], Moves]) -> dict[State, float]:
    """By the elimination of Grassmann, Taksar & Heyman (1985). Moves to other states are left out."""
    place = {state: k for k, state in enumerate(states)}
    matrix: list[dict[int, float]] = [{} for _ in states]
    for state, row in zip(states, matrix, strict=True):
        for target, chance in moves(state):
            if target in place:
                row[place[target]] = row.get(place[target], 0) + chance
    for n in range(len(states) - 1, 0, -1):
        below = {j: chance for j, chance in matrix[n].items() if j < n}
        down = sum(below.values())
        for row in matrix[:n]:
            if n in row:
                row[n] /= down
                for j, chance in below.items():
                    row[j] = row.get(j, 0) + row[n] * chance
    weights = [1.0]
    for n in range(1, len(states)):
        weights.append(sum(weight * matrix[k].get(n, 0) for k, weight in enumerate(weights)))
    total = sum(weights)
    return {state: weight / total for state, weight in zip(states, weights, strict=True)}


def waiting(chain: dict[State, float]) -> float:
    """Mean number that wait, of those present."""
    return sum(chance * max(0, state[0] - SERVERS) for state, chance in chain.items())


def geometric_wait(rho: float, mean: int) -> float:
    """In ticks, under `chunked`: a tick of prefill, then each tick's token is the last with chance 1/mean.

    The state is (present, those of them whose tick of prefill this is).
    """
    per_tick = rho * SERVERS / (mean + 1)
    coming, last = poisson(per_tick), 1 / mean

    def moves(state: State) -> Moves:
        present, fresh = state
        busy = min(present, SERVERS)
        result = []
        for gone in range(busy - fresh + 1):
            share = comb(busy - fresh, gone) * last**gone * (1 - last) ** (busy - fresh - gone)
            for k, chance in coming:
                now = present - gone + k
                result.append(((now, min(now, SERVERS) - busy + gone), share * chance))
        return result

    states = [(n, fresh) for n in range(120) for fresh in range(min(n, SERVERS) + 1)]
    return waiting(stationary(states, moves)) / per_tick
