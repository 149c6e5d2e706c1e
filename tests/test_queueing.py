"""The formulas against worked examples of the textbooks they come from, and against each other."""

from __future__ import annotations

from collections.abc import Callable
from math import factorial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgers import queueing as q

loads = st.floats(0.01, 0.97)


def test_mm1_with_two_thirds_load() -> None:
    """λ = 2, μ = 3 (a stock exercise): W = 1, W_q = 2/3, L = 2, L_q = 4/3."""
    assert q.utilization(2, 3) == pytest.approx(2 / 3)
    assert q.mm1_time(2, 3) == pytest.approx(1)
    assert q.mm1_wait(2, 3) == pytest.approx(2 / 3)
    assert q.mm1_number(2, 3) == pytest.approx(2)
    assert q.mm1_queue_length(2, 3) == pytest.approx(4 / 3)


def test_mm1_p99_is_ln_100_times_the_mean() -> None:
    assert q.mm1_percentile(8, 10) == pytest.approx(4.605170186 * 0.5)
    assert q.mm1_percentile(8, 10, 50) == pytest.approx(0.6931471806 * 0.5)
    assert q.mm1_percentile(8, 10, 0) == 0


def test_required_service_rate_gives_the_target() -> None:
    """10 requests a second in 200 ms on average need a server of 15 a second."""
    assert q.required_service_rate(10, 0.2) == pytest.approx(15)
    assert q.mm1_time(10, q.required_service_rate(10, 0.2)) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("arrival_rate", "servers", "wait_probability"),
    [
        (2, 3, 4 / 9),  # Gross: c = 3, a = 2: L_q = 8/9, so C = L_q (1 − ρ)/ρ = 4/9
        (8, 10, 0.4092),  # published Erlang C tables, 8 erlangs
        (0.5, 1, 0.5),  # with one server, the load itself
    ],
)
def test_erlang_c_of_the_tables(arrival_rate: float, servers: int, wait_probability: float) -> None:
    assert q.erlang_c(arrival_rate, 1, servers) == pytest.approx(wait_probability, abs=5e-5)


@given(loads, st.integers(1, 20))
def test_erlang_c_equals_the_sum_it_is_defined_by(rho: float, servers: int) -> None:
    a = rho * servers
    queued = a**servers / factorial(servers) / (1 - rho)
    assert q.erlang_c(a, 1, servers) == pytest.approx(
        queued / (sum(a**k / factorial(k) for k in range(servers)) + queued)
    )


def test_erlang_c_of_many_servers_does_not_overflow() -> None:
    assert 0 < q.erlang_c(990, 1, 1_000) < 1


@given(loads)
def test_one_server_and_exponential_service_are_special_cases(rho: float) -> None:
    """M/M/1 is M/M/c with c = 1, and M/G/1 with C_s = 1; M/D/1 waits half as long."""
    assert q.mmc_wait(rho, 1, 1) == pytest.approx(q.mm1_wait(rho, 1))
    assert q.mg1_wait(rho, 1, 1) == pytest.approx(q.mm1_wait(rho, 1))
    assert q.mg1_wait(rho, 1, 0) == pytest.approx(q.mm1_wait(rho, 1) / 2)
    assert q.mg1_time(rho, 1, 1) == pytest.approx(q.mm1_time(rho, 1))


@given(loads)
def test_littles_law_joins_numbers_and_times(rho: float) -> None:
    assert q.littles_law(rho, q.mm1_time(rho, 1)) == pytest.approx(q.mm1_number(rho, 1))
    assert q.littles_law(rho, q.mm1_wait(rho, 1)) == pytest.approx(q.mm1_queue_length(rho, 1))


def test_mmc_wait_of_two_servers() -> None:
    """λ = 1, μ = 1, c = 2: C = 1/3, W_q = 1/3 (Gross: ρ²/(μ(1 − ρ²)))."""
    assert q.mmc_wait(1, 1, 2) == pytest.approx(1 / 3)


def test_pollaczek_khinchine_with_high_variation() -> None:
    """λ = 0.8, μ = 1, C_s = 2: 4 · (1 + 4)/2 = 10."""
    assert q.mg1_wait(0.8, 1, 2) == pytest.approx(10)


def test_latency_arithmetic() -> None:
    """A request at 1 s with tokens from 1.5 s to 2.5 s, eleven of them."""
    assert q.ttft(1.5, 1) == 0.5
    assert q.tpot(1.5, 2.5, 11) == pytest.approx(0.1)
    assert q.e2e(2.5, 1) == 1.5
    assert q.e2e_of(0.5, 0.1, 11) == pytest.approx(1.5)
    assert q.tpot(1.5, 1.5, 1) == q.tpot(1.5, 1.5, 0) == 0


def test_throughput_and_goodput_count_both_bounds_together() -> None:
    """Of three completed, one breaks the TTFT bound and another the TPOT bound; a fourth never completed."""
    requests = [(0.1, 0.05), (0.3, 0.05), (0.1, 0.2)]
    assert q.goodput_ratio(requests, 0.2, 0.1, scheduled=4) == 0.25
    assert q.goodput(requests, 0.2, 0.1, window=2) == 0.5
    assert q.goodput(requests, 0.3, 0.2, window=2) == 1.5
    assert q.request_throughput(3, 2) == 1.5
    assert q.token_throughput(30, 2) == 15


def test_demand_batch_and_kv() -> None:
    """1,000 prompt tokens at 10 µs and 100 at 1 ms; 16 sequences of 1,000 tokens of 128 KiB at 1 TB/s."""
    demand = q.service_demand(1_000, 100, 10e-6, 1e-3)
    assert demand == pytest.approx(0.11)
    assert q.service_rate([demand, demand * 3]) == pytest.approx(1 / 0.22)
    assert q.batch_utilization([3, 0, 1, 2], 3) == 0.5
    kv_bytes = q.kv_bytes_per_step(16, 131_072, 1_000)
    assert kv_bytes == 2_097_152_000
    assert q.kv_step_s(kv_bytes, 1e12) == pytest.approx(2.097152e-3)
    assert q.tpot_estimate(1e-3, 2.1e-3) == 2.1e-3


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: q.mm1_time(3, 3), "grows without bound"),
        (lambda: q.mm1_wait(4, 3), "grows without bound"),
        (lambda: q.mm1_number(-1, 3), "arrival_rate is -1"),
        (lambda: q.mm1_queue_length(1, 0), "service_rate is 0"),
        (lambda: q.mm1_percentile(1, 2, 100), "percent is 100"),
        (lambda: q.erlang_c(1, 1, 0), "servers is 0"),
        (lambda: q.erlang_c(1, 1, 1.5), "servers is 1.5, not a whole number"),  # type: ignore[arg-type]
        (lambda: q.mmc_wait(1, 1, 2.5), "servers is 2.5, not a whole number"),  # type: ignore[arg-type]
        (lambda: q.mmc_wait(3, 1, 3), "grows without bound"),
        (lambda: q.mg1_wait(0.5, 1, -1), "service_cv is -1"),
        (lambda: q.required_service_rate(1, 0), "mean_time is 0"),
        (lambda: q.littles_law(1, -1), "mean_time is -1"),
        (lambda: q.utilization(float("nan"), 1), "arrival_rate is nan"),
        (lambda: q.ttft(1, 2), "first token"),
        (lambda: q.e2e(1, 2), "last token"),
        (lambda: q.tpot(2, 1, 3), "last token"),
        (lambda: q.tpot(1, 2, -1), "tokens is -1"),
        (lambda: q.e2e_of(1, 1, 0), "tokens is 0"),
        (lambda: q.request_throughput(1, 0), "window is 0"),
        (lambda: q.token_throughput(-1, 1), "tokens is -1"),
        (lambda: q.goodput([], 1, 1, 0), "window is 0"),
        (lambda: q.goodput_ratio([(0, 0)] * 2, 1, 1, 1), "2 requests met"),
        (lambda: q.service_demand(-1, 1, 1, 1), "prompt_tokens is -1"),
        (lambda: q.service_rate([]), "no demands"),
        (lambda: q.service_rate([0]), "mean demand is 0"),
        (lambda: q.batch_utilization([4], 3), "4 sequences"),
        (lambda: q.batch_utilization([], 3), "no ticks"),
        (lambda: q.kv_step_s(1, 0), "bandwidth_bytes_per_s is 0"),
        (lambda: q.kv_bytes_per_step(1, -2, 1), "bytes_per_token is -2"),
        (lambda: q.tpot_estimate(float("inf"), 1), "compute is inf"),
    ],
)
def test_bad_input_says_why(call: Callable[[], float], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        call()
