"""When requests arrive: a trace's times replayed or stretched, or an arrival process drawn from a seed.

Pure. Every list starts at 0, never decreases, and is computed exactly and rounded once, half to even. What is
drawn starts with an arrival at 0: the gaps after it are the process's own, and none of them is cut.
A new process is a function that draws gaps, and a line in PROCESSES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, chain, islice
from math import ceil
from random import Random
from typing import Literal, NamedTuple

from ledgers import draws
from ledgers.columns import Column
from ledgers.errors import InputError
from ledgers.profile import Profile
from ledgers.units import NS_PER_S

Rate = Fraction | Literal["inf"]
Gap = Callable[[Random, float], float]
_PARTS = 2**40  # of a mean gap, to which a draw is rounded


class Process(NamedTuple):
    """Draws a gap between two arrivals, with a mean of 1, from (random, burstiness).

    `rescaled`: n requests are stretched until the one after them would come at n mean gaps, exactly. Poisson
    arrivals vary in their number; these do not over the whole, and less and less the longer one counts.
    """

    draw_gap: Gap
    has_burstiness: bool = False
    rescaled: bool = False


def _constant(random: Random, burstiness: float) -> float:
    return 1


def _poisson(random: Random, burstiness: float) -> float:
    return draws.exponential(random)


def _gamma(random: Random, burstiness: float) -> float:
    """Gaps with a coefficient of variation of 1/sqrt(burstiness): burstier than Poisson below 1."""
    if burstiness == 1:
        return draws.exponential(random)
    return draws.gamma(random, burstiness) / burstiness


PROCESSES: dict[str, Process] = {
    "constant": Process(_constant),
    "poisson": Process(_poisson),
    "gamma": Process(_gamma, has_burstiness=True),
    "rescaled": Process(_gamma, has_burstiness=True, rescaled=True),
}


def usual_process(burstiness: float) -> str:
    """What arrivals are where no process is named, as in vLLM's benchmark, but not rescaled."""
    return "poisson" if burstiness == 1 else "gamma"


@dataclass(frozen=True)
class Pacing:
    """How requests are spread over time. InputError if the settings contradict each other.

    `request_rate` is in requests per second, `stages` is one that changes; without either a trace's own times
    are divided by `speed`. `arrival` names a process, whose gaps depend on `burstiness` and `seed`; in stages
    it is the usual one if none is named.
    """

    request_rate: Rate | None = None
    speed: Fraction = Fraction(1)
    arrival: str | None = None
    burstiness: float = 1.0
    seed: int = 0
    stages: Profile | None = None

    def __post_init__(self) -> None:
        rate = self.request_rate
        if rate is not None and rate != "inf" and rate <= 0:
            raise InputError(f"request rate {float(rate):g}: must be above 0")
        if self.stages and rate is not None:
            raise InputError("--stages and --request-rate: both say how often requests arrive, so give one")
        if self.speed <= 0:
            raise InputError(f"speed {float(self.speed):g}: must be above 0")
        if self.speed != 1 and (rate or self.process):
            rate_or_stages = (
                "the stages set" if self.stages else "the request rate (a preset has one too) sets"
            )
            raise InputError(f"speed scales a trace's own times, but here {rate_or_stages} them")
        if self.arrival is not None and self.arrival not in PROCESSES:
            raise InputError(f"arrival {self.arrival}: known are {', '.join(PROCESSES)}")
        if self.arrival is not None and rate is None and self.stages is None:
            raise InputError(f"arrival {self.arrival}: needs a request rate, or stages")
        if not 0.001 <= self.burstiness <= 1e6:
            raise InputError(f"burstiness {self.burstiness:g}: must be from 0.001 to 1,000,000")
        if self.burstiness != 1 and not (self.process and PROCESSES[self.process].has_burstiness):
            shaped = " and ".join(name for name, process in PROCESSES.items() if process.has_burstiness)
            raise InputError(f"burstiness {self.burstiness:g}: only {shaped} arrivals have one")

    @property
    def process(self) -> str | None:
        """The process that draws the arrivals, if they are drawn."""
        return self.arrival or (usual_process(self.burstiness) if self.stages else None)


def draw_arrivals(
    process: str, count: int, rate: Fraction, seed: int, burstiness: float = 1.0
) -> Sequence[int]:
    """`count` arrivals in ns of a process with `rate` requests per second on average.

    The same seed gives the same arrivals on any machine, and another rate the same pattern, stretched. Unless
    the process is rescaled, the number of arrivals in a time is not forced to its mean: a short draw has a
    rate of its own.
    """
    ns_per_gap = NS_PER_S / rate
    positions = _positions(process, count, Fraction(count), seed, burstiness)
    return Column(round(position * ns_per_gap) for position in islice(positions, count))


def draw_in_stages(
    process: str, most: int, stages: Profile, seed: int, burstiness: float = 1.0
) -> tuple[Sequence[int], bool]:
    """Up to `most` arrivals in ns before the stages end, and whether there would have been more.

    Gaps are drawn with a mean of 1, and pass as fast as the rate is high. A rescaled process has as many
    requests as the stages make on average, rounded up, and the one after them would come when these end.
    """
    span = min(stages.requests, Fraction(most))
    count = ceil(span) if PROCESSES[process].rescaled else most
    arrivals = Column(stages.times_ns(_positions(process, count, span, seed, burstiness)))
    return arrivals[:most], len(arrivals) > most


def _positions(process: str, count: int, span: Fraction, seed: int, burstiness: float) -> Iterator[Fraction]:
    """Of `count` arrivals and the one after them, in mean gaps from the first. `span`: of it, if rescaled."""
    draw_gap, _, rescaled = PROCESSES[process]
    random = Random(f"{seed}:arrivals")
    gaps = (round(draw_gap(random, burstiness) * _PARTS) for _ in range(count))
    sums = accumulate(gaps, initial=0)
    if not rescaled:
        return (Fraction(parts, _PARTS) for parts in sums)
    *before, last = sums
    scale = span / (last or 1)  # a burst may have no length at all
    return chain((parts * scale for parts in before), [span])


def stretch(times: Sequence[int | Fraction], rate: Fraction) -> Sequence[int]:
    """Times in order, in any unit, stretched so that n requests span (n - 1) / rate seconds.

    a_i = (t_i - t_1) / (t_n - t_1) * (n - 1) / rate; all 0 when the times have no span.
    """
    span = times[-1] - times[0]
    if not span:
        return Column([0] * len(times))
    return _scaled(times, Fraction((len(times) - 1) * NS_PER_S) / rate / span)


def replay(times_ns: Sequence[int | Fraction], speed: Fraction) -> Sequence[int]:
    """Times in order, from the first one, `speed` times as fast."""
    return _scaled(times_ns, 1 / speed)


def _scaled(times: Sequence[int | Fraction], scale: Fraction) -> Sequence[int]:
    first = times[0]
    if scale == 1:
        return Column(round(time - first) for time in times)
    return Column(round((time - first) * scale) for time in times)
