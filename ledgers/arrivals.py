"""When requests arrive: a trace's times replayed or stretched, or an arrival process drawn from a seed.

Pure. Every list starts at 0, never decreases, and is computed exactly and rounded once, half to even.
A new process is a function that draws gaps, and a line in PROCESSES.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Literal

from ledgers.errors import InputError
from ledgers.units import NS_PER_S

Rate = Fraction | Literal["inf"]
Gap = Callable[[Random, float], float]


def _constant(random: Random, burstiness: float) -> float:
    return 1


def _poisson(random: Random, burstiness: float) -> float:
    return random.expovariate(1.0)


def _gamma(random: Random, burstiness: float) -> float:
    """Gaps with a coefficient of variation of 1/sqrt(burstiness): burstier than Poisson below 1."""
    return random.gammavariate(burstiness, 1 / burstiness)


PROCESSES: dict[str, Gap] = {"constant": _constant, "poisson": _poisson, "gamma": _gamma}
"""Each draws one gap between arrivals, with a mean of 1, from (random, burstiness)."""


@dataclass(frozen=True)
class Pacing:
    """How requests are spread over time. InputError if the settings contradict each other.

    `request_rate` is in requests per second; without it a trace's own times are divided by `speed`. `arrival`
    names a process, whose gaps depend on `burstiness` (gamma) and `seed`.
    """

    request_rate: Rate | None = None
    speed: Fraction = Fraction(1)
    arrival: str | None = None
    burstiness: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        rate = self.request_rate
        if rate is not None and rate != "inf" and rate <= 0:
            raise InputError(f"request rate {float(rate):g}: must be above 0")
        if self.speed <= 0:
            raise InputError(f"speed {float(self.speed):g}: must be above 0")
        if self.speed != 1 and (rate or self.arrival):
            raise InputError(
                "speed scales a trace's own times, but here the request rate sets them (a preset has one too)"
            )
        if self.arrival is not None and self.arrival not in PROCESSES:
            raise InputError(f"arrival {self.arrival}: known are {', '.join(PROCESSES)}")
        if self.arrival is not None and rate is None:
            raise InputError(f"arrival {self.arrival}: needs a request rate")
        if not 0.001 <= self.burstiness <= 1e6:
            raise InputError(f"burstiness {self.burstiness:g}: must be from 0.001 to 1,000,000")
        if self.burstiness != 1 and self.arrival != "gamma":
            raise InputError(f"burstiness {self.burstiness:g}: only gamma arrivals have one")


def draw_arrivals(process: str, count: int, rate: Fraction, seed: int, burstiness: float = 1.0) -> list[int]:
    """`count` arrivals in ns of a process with `rate` requests per second on average.

    The same seed gives the same arrivals on any machine, and another rate the same pattern, stretched. The
    number of arrivals in a time is not forced to its mean: a short draw has a rate of its own.
    """
    draw_gap = PROCESSES[process]
    random = Random(f"{seed}:arrivals")
    ns_per_gap = NS_PER_S / rate
    arrivals = [0]
    total = 0.0
    for _ in range(count - 1):
        total += draw_gap(random, burstiness)
        arrivals.append(round(Fraction(total) * ns_per_gap))
    return arrivals


def stretch(times: Sequence[int | Fraction], rate: Fraction) -> list[int]:
    """Times in order, in any unit, stretched so that n requests span (n - 1) / rate seconds.

    a_i = (t_i - t_1) / (t_n - t_1) * (n - 1) / rate; all 0 when the times have no span.
    """
    span = times[-1] - times[0]
    if not span:
        return [0] * len(times)
    return _scaled(times, Fraction((len(times) - 1) * NS_PER_S) / rate / span)


def replay(times_ns: Sequence[int | Fraction], speed: Fraction) -> list[int]:
    """Times in order, from the first one, `speed` times as fast."""
    return _scaled(times_ns, 1 / speed)


def _scaled(times: Sequence[int | Fraction], scale: Fraction) -> list[int]:
    return [round((time - times[0]) * scale) for time in times]
