"""Which requests of a run are left out of its figures: those that arrive in its warm-up or its cool-down.

Pure. A run that begins empty is faster at first than it will be, and one that ends leaves its last requests
alone with the server. Requests are left out by their intended arrival, which no server can change.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import Literal

import msgspec

from ledgers.units import NS_PER_S, to_ns

Warmup = float | Literal["auto"] | None
MSER_BATCH = 5
LEAST_BATCHES = 10  # below which nothing settles that could be seen


class Trim(msgspec.Struct, kw_only=True):
    """Requests that arrive from `begin_s` on, and up to `end_s` where there is a cool-down, are kept.

    `settled` is None where the warm-up was given, and else whether the rule found an end of it.
    """

    begin_s: float
    end_s: float | None
    warmup: Warmup
    cooldown_s: float | None
    settled: bool | None = None
    left_out: int = 0

    @property
    def begin_ns(self) -> int:
        return round(self.begin_s * NS_PER_S)

    def keeps(self, arrival_ns: int | None) -> bool:
        arrival = arrival_ns or 0
        return self.begin_ns <= arrival and (self.end_s is None or arrival <= round(self.end_s * NS_PER_S))


def trim(
    warmup: Warmup,
    cooldown_s: float | None,
    last_arrival_ns: int,
    arrivals_ns: Sequence[int] = (),
    latencies_ns: Sequence[int] = (),
) -> Trim:
    """What the settings come to; `auto` looks at the latencies of requests in order of their arrivals."""
    begin_ns, settled = 0, None
    if warmup == "auto":
        cut = mser5(latencies_ns)
        settled = cut is not None
        begin_ns = arrivals_ns[cut] if cut else 0
    elif warmup:
        begin_ns = to_ns(warmup)
    return Trim(
        begin_s=begin_ns / NS_PER_S,
        end_s=(last_arrival_ns - to_ns(cooldown_s)) / NS_PER_S if cooldown_s else None,
        warmup=warmup,
        cooldown_s=cooldown_s,
        settled=settled,
    )


def mser5(values: Sequence[float]) -> int | None:
    """How many of the first values to leave out so that the mean of the rest is known best: MSER-5.

    Of batches of five, so many are left out that the rest's variance over its number is the smallest. K. P.
    White, Simulation 69 (1997), 323-334; in batches: White, Cobb & Spratt, Winter Simulation Conference 2000,
    755-760. None if that would be half of them or more, for then nothing has settled; or if they are few.
    """
    count = len(values) // MSER_BATCH
    if count < LEAST_BATCHES:
        return None
    means = [fsum(values[i * MSER_BATCH : (i + 1) * MSER_BATCH]) / MSER_BATCH for i in range(count)]
    best, least = count, float("inf")
    mean = squares = 0.0
    for kept, value in enumerate(reversed(means), 1):  # Welford's sums, from the end
        step = value - mean
        mean += step / kept
        squares += step * (value - mean)
        if kept >= LEAST_BATCHES // 2 and (error := squares / kept**2) <= least:
            best, least = count - kept, error
    return best * MSER_BATCH if best < count // 2 else None
