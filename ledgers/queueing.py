"""The formulas the field uses, as plain functions: latency arithmetic, KV traffic, queues in steady state.

Pure arithmetic on floats. Any consistent unit of time will do, where no unit is named: rates are per that
unit. Bad inputs (negative, a load of 1 or more, no servers) raise ValueError with the reason.

Sources: L. Kleinrock, Queueing Systems I (Wiley 1975); D. Gross et al., Fundamentals of Queueing Theory
(Wiley, 4th ed. 2008); named at each function as Kleinrock and Gross.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite, log

# Latency and throughput of requests


def ttft(first_token: float, arrival: float) -> float:
    """First token − intended arrival."""
    return _not_before(first_token, arrival, "first token", "arrival")


def tpot(first_token: float, last_token: float, tokens: int) -> float:
    """(c − f)/(n − 1), the mean time per token after the first; 0 for n ≤ 1."""
    _at_least("tokens", tokens, 0)
    decode = _not_before(last_token, first_token, "last token", "first token")
    return decode / (tokens - 1) if tokens > 1 else 0.0


def e2e(last_token: float, arrival: float) -> float:
    """Last token − intended arrival."""
    return _not_before(last_token, arrival, "last token", "arrival")


def e2e_of(ttft: float, tpot: float, tokens: int) -> float:
    """TTFT + (n − 1)·TPOT for n ≥ 1 tokens."""
    _at_least("ttft", ttft, 0)
    _at_least("tpot", tpot, 0)
    _at_least("tokens", tokens, 1)
    return ttft + (tokens - 1) * tpot


def request_throughput(completed: int, window: float) -> float:
    """Completed requests / T_obs."""
    _at_least("completed", completed, 0)
    return completed / _above("window", window, 0)


def token_throughput(tokens: int, window: float) -> float:
    """Output tokens of completed requests / T_obs."""
    _at_least("tokens", tokens, 0)
    return tokens / _above("window", window, 0)


def goodput_ratio(
    requests: Iterable[tuple[float, float]], ttft_bound: float, tpot_bound: float, scheduled: int
) -> float:
    """The share of `scheduled` requests that completed within both bounds.

    `requests` are the completed ones' (TTFT, TPOT). Both bounds must hold together for a request, as in
    DistServe (Zhong et al., OSDI 2024); the product of two single shares would be another figure.
    """
    _above("scheduled", scheduled, 0)
    met = _met(requests, ttft_bound, tpot_bound)
    if met > scheduled:
        raise ValueError(f"{met} requests met the bounds, of {scheduled} scheduled")
    return met / scheduled


def goodput(
    requests: Iterable[tuple[float, float]], ttft_bound: float, tpot_bound: float, window: float
) -> float:
    """Requests that completed within both bounds / T_obs; `requests` as in `goodput_ratio`."""
    return _met(requests, ttft_bound, tpot_bound) / _above("window", window, 0)


def _met(requests: Iterable[tuple[float, float]], ttft_bound: float, tpot_bound: float) -> int:
    _at_least("ttft_bound", ttft_bound, 0)
    _at_least("tpot_bound", tpot_bound, 0)
    return sum(ttft <= ttft_bound and tpot <= tpot_bound for ttft, tpot in requests)


# Work, batches and KV traffic


def service_demand(
    prompt_tokens: float, output_tokens: float, prefill_cost: float, decode_cost: float
) -> float:
    """N_in·c_prefill + N_out·c_decode: the time a request asks of the server, the costs per token."""
    for name, value in (("prompt_tokens", prompt_tokens), ("output_tokens", output_tokens)):
        _at_least(name, value, 0)
    for name, value in (("prefill_cost", prefill_cost), ("decode_cost", decode_cost)):
        _at_least(name, value, 0)
    return prompt_tokens * prefill_cost + output_tokens * decode_cost


def service_rate(demands: Sequence[float]) -> float:
    """μ ≈ 1/mean demand."""
    if not demands:
        raise ValueError("no demands, so no service rate")
    for demand in demands:
        _at_least("demand", demand, 0)
    return 1 / _above("mean demand", sum(demands) / len(demands), 0)


def batch_utilization(advanced: Sequence[int], slots: int) -> float:
    """Σ b_t/(T·B_max) over T ticks, b_t sequences advancing in tick t."""
    _at_least("slots", slots, 1)
    if not advanced:
        raise ValueError("no ticks, so no utilization")
    for count in advanced:
        if not 0 <= count <= slots:
            raise ValueError(f"{count} sequences advanced in a tick of {slots} slots")
    return sum(advanced) / (len(advanced) * slots)


def kv_bytes_per_step(batch: float, bytes_per_token: float, mean_cached_tokens: float) -> float:
    """Bytes of KV cache that a decode step reads: active batch × bytes per token × mean cached tokens."""
    _at_least("batch", batch, 0)
    _at_least("bytes_per_token", bytes_per_token, 0)
    _at_least("mean_cached_tokens", mean_cached_tokens, 0)
    return batch * bytes_per_token * mean_cached_tokens


def kv_step_s(kv_bytes: float, bandwidth_bytes_per_s: float) -> float:
    """The least time of a decode step, in s, that reading the KV cache allows: bytes/bandwidth.

    The roofline of Williams, Waterman & Patterson, CACM 52 (2009), for the memory side alone.
    """
    _at_least("kv_bytes", kv_bytes, 0)
    return kv_bytes / _above("bandwidth_bytes_per_s", bandwidth_bytes_per_s, 0)


def tpot_estimate(compute: float, kv_step: float) -> float:
    """TPOT ≈ max(compute, KV step time): the slower of the two bounds a step."""
    _at_least("compute", compute, 0)
    _at_least("kv_step", kv_step, 0)
    return max(compute, kv_step)


# Queues in steady state


def littles_law(arrival_rate: float, mean_time: float) -> float:
    """L = λW: the mean number in a stable system. J. D. C. Little, Operations Research 9 (1961)."""
    _at_least("arrival_rate", arrival_rate, 0)
    _at_least("mean_time", mean_time, 0)
    return arrival_rate * mean_time


def utilization(arrival_rate: float, service_rate: float, servers: int = 1) -> float:
    """ρ = λ/(cμ), the offered load per server; 1 or more means that the queue grows without bound."""
    _at_least("arrival_rate", arrival_rate, 0)
    _above("service_rate", service_rate, 0)
    _at_least("servers", servers, 1)
    if servers % 1:
        raise ValueError(f"servers is {servers}, not a whole number")
    return arrival_rate / (servers * service_rate)


def mm1_time(arrival_rate: float, service_rate: float) -> float:
    """W = 1/(μ − λ), mean time in an M/M/1 system. Kleinrock, 3.2."""
    _stable(arrival_rate, service_rate)
    return 1 / (service_rate - arrival_rate)


def mm1_wait(arrival_rate: float, service_rate: float) -> float:
    """W_q = ρ/(μ − λ), mean time in the queue of an M/M/1 system. Kleinrock, 3.2."""
    return _stable(arrival_rate, service_rate) / (service_rate - arrival_rate)


def mm1_number(arrival_rate: float, service_rate: float) -> float:
    """L = ρ/(1 − ρ), mean number in an M/M/1 system. Kleinrock, 3.2."""
    rho = _stable(arrival_rate, service_rate)
    return rho / (1 - rho)


def mm1_queue_length(arrival_rate: float, service_rate: float) -> float:
    """L_q = ρ²/(1 − ρ), mean number waiting in an M/M/1 system. Kleinrock, 3.2."""
    rho = _stable(arrival_rate, service_rate)
    return rho * rho / (1 - rho)


def mm1_percentile(arrival_rate: float, service_rate: float, percent: float = 99) -> float:
    """The time in an M/M/1 (FIFO) system that `percent` of the requests stay below: −ln(1 − p/100)/(μ − λ).

    The tail is P(T > t) = e^−(μ − λ)t, so the P99 is ln(100) ≈ 4.6 times the mean. Kleinrock, 5.7.
    """
    if not 0 <= percent < 100:
        raise ValueError(f"percent is {percent}, not between 0 and below 100")
    return -log(1 - percent / 100) * mm1_time(arrival_rate, service_rate)


def required_service_rate(arrival_rate: float, mean_time: float) -> float:
    """μ = λ + 1/W, which gives an M/M/1 system the mean response time W. From W = 1/(μ − λ)."""
    _at_least("arrival_rate", arrival_rate, 0)
    return arrival_rate + 1 / _above("mean_time", mean_time, 0)


def erlang_c(arrival_rate: float, service_rate: float, servers: int) -> float:
    """The probability that a request must wait in an M/M/c system. Gross, 2.3 (Erlang's C formula).

    From Erlang's B by its recursion B_k = aB_{k−1}/(k + aB_{k−1}), a = λ/μ, which does not overflow:
    C = B/(1 − ρ(1 − B)).
    """
    rho = _stable(arrival_rate, service_rate, servers)
    offered = arrival_rate / service_rate
    blocked = 1.0
    for k in range(1, int(servers) + 1):
        blocked = offered * blocked / (k + offered * blocked)
    return blocked / (1 - rho * (1 - blocked))


def mmc_wait(arrival_rate: float, service_rate: float, servers: int) -> float:
    """W_q = C/(cμ − λ), mean time in the queue of an M/M/c system. Gross, 2.3."""
    return erlang_c(arrival_rate, service_rate, servers) / (servers * service_rate - arrival_rate)


def mg1_wait(arrival_rate: float, service_rate: float, service_cv: float) -> float:
    """W_q = ρ/(1 − ρ) · (1 + C_s²)/2 · 1/μ, mean time in the queue of an M/G/1 system.

    Pollaczek–Khinchine; C_s is the coefficient of variation of the service times: 1 gives M/M/1, 0 (M/D/1)
    half of its wait. Kleinrock, 5.6.
    """
    _at_least("service_cv", service_cv, 0)
    rho = _stable(arrival_rate, service_rate)
    return rho / (1 - rho) * (1 + service_cv**2) / 2 / service_rate


def mg1_time(arrival_rate: float, service_rate: float, service_cv: float) -> float:
    """W = W_q + 1/μ, mean time in an M/G/1 system."""
    return mg1_wait(arrival_rate, service_rate, service_cv) + 1 / service_rate


def _stable(arrival_rate: float, service_rate: float, servers: int = 1) -> float:
    rho = utilization(arrival_rate, service_rate, servers)
    if rho >= 1:
        raise ValueError(f"load ρ = {rho:g} is 1 or more: the queue grows without bound")
    return rho


def _at_least(name: str, value: float, least: float) -> float:
    if not (isfinite(value) and value >= least):
        raise ValueError(f"{name} is {value}, not a number of {least} or more")
    return value


def _above(name: str, value: float, bound: float) -> float:
    if not (isfinite(value) and value > bound):
        raise ValueError(f"{name} is {value}, not a number above {bound}")
    return value


def _not_before(later: float, earlier: float, later_name: str, earlier_name: str) -> float:
    if not (isfinite(later) and isfinite(earlier) and later >= earlier):
        raise ValueError(f"{later_name} at {later} is not after {earlier_name} at {earlier}")
    return later - earlier
