"""What is measured: the workloads, by scenario. How long they take is for the caller to say."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from benchmarks.workload import Workload, evenly
from ledgers.units import NS_PER_MS, NS_PER_S, to_ns

TTFT_MS, GAP_MS = 100, 20
LAG_RATE, LAG_TOKENS = 50, 16
MOST_TOKENS_PER_S = 25_000  # offered where cost is measured, so that tokens arrive one by one for all clients
ALL = ("tokentick", "C, epoll", "aiohttp")
WORKERS = {count: f"tokentick --workers {count}" for count in (1, 2)}


@dataclass(frozen=True)
class Setting:
    """A workload for some of the clients; the label says what sets it apart in its scenario."""

    scenario: str
    label: str
    workload: Workload
    clients: tuple[str, ...] = ALL
    watch_memory: bool = False


@dataclass(frozen=True)
class Length:
    """How long everything takes: what a run lasts, tokens per stream, the fewest tokens to divide by."""

    seconds: float
    tokens: int
    fewest_tokens: int


FULL = Length(seconds=10, tokens=128, fewest_tokens=15_000)
QUICK = Length(seconds=2, tokens=64, fewest_tokens=3_000)


def start_up(length: Length) -> list[Setting]:
    """One request: what a client costs before it has measured anything."""
    return [Setting("start-up", "1 request", Workload(arrivals_ns=[0], tokens=2, rate=1))]


def staggered(length: Length) -> list[Setting]:
    """Streams that begin one after another, so many in flight at a time."""
    return [
        Setting("staggered", f"{streams:,}", _in_flight(streams, length, record_tokens=True))
        for streams in (300, 1000)
    ]


def lock_step(length: Length) -> list[Setting]:
    """The worst for a client: all requests leave at once, all tokens arrive at once."""
    workload = Workload(
        arrivals_ns=[0] * 1000, tokens=length.tokens, ttft_ms=TTFT_MS, gap_ms=GAP_MS, align_ms=GAP_MS,
        record_tokens=True,
    )  # fmt: skip
    return [Setting("lock-step", "1,000", workload)]


def send_lag(length: Length) -> list[Setting]:
    """How late requests leave."""
    count = round(LAG_RATE * length.seconds)
    draws = random.Random(1)
    gaps = [draws.expovariate(LAG_RATE) for _ in range(count)]
    poisson = [round(sum(gaps[: i + 1]) * NS_PER_S) for i in range(count)]
    bursts = [i // LAG_RATE * NS_PER_S for i in range(count)]
    kinds = {
        "constant": Workload(arrivals_ns=evenly(count, LAG_RATE), rate=LAG_RATE, tokens=LAG_TOKENS),
        "Poisson": Workload(arrivals_ns=poisson, tokens=LAG_TOKENS),
        f"bursts of {LAG_RATE}": Workload(arrivals_ns=bursts, tokens=LAG_TOKENS),
    }
    return [Setting("send-lag", label, workload) for label, workload in kinds.items()]


def cost(length: Length) -> list[Setting]:
    """CPU over streams that are in flight together."""
    return [
        Setting("cost", f"{streams:,}", _together(streams, length), watch_memory=streams == 1000)
        for streams in (10, 30, 100, 300, 1000, 2000, 4000)
    ]


def coalesced(length: Length) -> list[Setting]:
    """CPU over the tokens that arrive in one read."""
    return [
        Setting("coalesced", str(number), _together(300, length, coalesce=number)) for number in (1, 2, 4, 16)
    ]


def no_gap(length: Length) -> list[Setting]:
    """CPU when tokens come as fast as server and client together can."""
    streams = 100
    workload = Workload(
        arrivals_ns=evenly(streams, NS_PER_MS), rate=NS_PER_MS, tokens=length.tokens * 16, gap_ms=0
    )
    return [Setting("no-gap", f"{streams} streams, no gap", workload)]


def workers(length: Length) -> list[Setting]:
    """One process that sends against two."""
    return [Setting("workers", "1,000", _in_flight(1000, length), tuple(WORKERS.values()))]


SCENARIOS: dict[str, Callable[[Length], list[Setting]]] = {
    "start-up": start_up,
    "staggered": staggered,
    "lock-step": lock_step,
    "send-lag": send_lag,
    "cost": cost,
    "coalesced": coalesced,
    "no-gap": no_gap,
    "workers": workers,
}


def _in_flight(streams: int, length: Length, *, record_tokens: bool = False) -> Workload:
    """A rate at which so many streams are in flight by Little's law, once the first of them end."""
    rate = streams / (TTFT_MS / 1000 + (length.tokens - 1) * GAP_MS / 1000)
    return Workload(
        arrivals_ns=evenly(round(rate * length.seconds), rate),
        rate=rate,
        tokens=length.tokens,
        ttft_ms=TTFT_MS,
        gap_ms=GAP_MS,
        record_tokens=record_tokens,
    )


def _together(streams: int, length: Length, coalesce: int = 1) -> Workload:
    """Rounds of streams that begin within a second and then are all in flight.

    Streams are equally long whatever their number: what a request costs is spread over as many tokens.
    """
    gap_s = max(GAP_MS / 1000, streams / MOST_TOKENS_PER_S)
    round_s = 1 + TTFT_MS / 1000 + length.tokens * gap_s
    enough = ceil(length.fewest_tokens / (streams * length.tokens))
    rounds = max(enough, round(length.seconds / round_s), 1)
    return Workload(
        arrivals_ns=[to_ns(turn * round_s) + at for turn in range(rounds) for at in evenly(streams, streams)],
        rate=streams if rounds == 1 else None,
        tokens=length.tokens,
        ttft_ms=TTFT_MS,
        gap_ms=gap_s * 1000,
        coalesce=coalesce,
    )
