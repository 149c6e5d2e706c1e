"""Where a curve over offered load bends: the load with the most power.

Pure. Power is throughput over response time (L. Kleinrock, ICC 1979, 43.1): below the knee more load buys
throughput for little delay, above it delay for little throughput. It has no constant to choose, and theory
says where it lies: at a utilization of 1/2 for M/M/1, of 2 − √2 = 0.586 for M/D/1. The response time is
L/X, Little's law over the whole window, so that requests which had not ended by its end count as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

Side = Literal["inside", "first", "last"]


class Knee(NamedTuple):
    """Which of the loads it is. If that is the first or the last, the knee may lie beyond it."""

    place: int
    side: Side


def power(throughput_rps: float | None, concurrency_mean: float | None) -> float | None:
    """X over W = L/X; None where nothing completed or nothing was there."""
    return throughput_rps**2 / concurrency_mean if throughput_rps and concurrency_mean else None


def knee(powers: Sequence[float | None]) -> Knee | None:
    """The load with the most power, of ascending ones; None of fewer than three that have any."""
    known = [(value, -index) for index, value in enumerate(powers) if value is not None]
    if len(known) < 3:
        return None
    index = -max(known)[1]
    return Knee(index, "first" if index == 0 else "last" if index == len(powers) - 1 else "inside")
