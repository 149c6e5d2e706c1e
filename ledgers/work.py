"""What requests ask of a modelled server, and its load ρ by resource: the one rule, which knows the policy.

Pure. A bound: a policy that leaves slots idle, or a KV budget, reaches its limit at a load below 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import sqrt

from ledgers.metrics import NEVER_IN_FLIGHT
from ledgers.rows import RequestRow
from ledgers.settings import Hardware
from ledgers.units import NS_PER_S, ceil_div


class Asked:
    """Mean and spread of what requests ask of one resource, in units that take `unit_s` of all of it."""

    def __init__(self, unit_s: Fraction) -> None:
        self.unit_s = unit_s
        self.n = self._sum = self._squares = 0

    def add(self, units: int, requests: int = 1) -> None:
        """What each of so many requests asks."""
        self.n += requests
        self._sum += units * requests
        self._squares += units * units * requests

    @property
    def mean_s(self) -> float | None:
        return float(self._sum * self.unit_s / self.n) if self.n else None

    @property
    def cv(self) -> float:
        """Coefficient of variation; in integers until the root, so that equal demands have 0."""
        spread = self.n * self._squares - self._sum * self._sum
        return sqrt(Fraction(spread, self._sum * self._sum)) if self._sum else 0.0


def resources(hardware: Hardware, policy: str | None = None) -> dict[str, Asked]:
    """What can be asked for: prompt tokens of prefill, and output tokens of all decode slots together.

    Under `immediate` the server is one, from prefill to the last token: ticks are asked of it.
    """
    tick_s = Fraction(hardware.tick_ns, NS_PER_S)
    if policy == "immediate":
        return {"the server": Asked(tick_s)}
    decode = Asked(tick_s / hardware.decode_slots)
    return {"prefill": Asked(tick_s / hardware.prefill_tokens_per_tick), "decode": decode}


def _units(hardware: Hardware, policy: str | None, prompt: int, output: int) -> tuple[int, ...]:
    """What a request asks of each resource."""
    if policy == "immediate":
        return (ceil_div(prompt, hardware.prefill_tokens_per_tick) + output - 1,)
    return prompt, output


def loads(rate: float | None, asked: Mapping[str, Asked]) -> dict[str, float]:
    """ρ by resource: what arrives per second, of what can be done per second."""
    if rate is None:
        return {}
    return {name: rate * of.mean_s for name, of in asked.items() if of.mean_s is not None}


class Work:
    """What the requests of a run ask of its hardware; nothing where that is not known."""

    def __init__(self, hardware: Hardware | None, policy: str | None) -> None:
        self._hardware, self._policy = hardware, policy
        self.asked = resources(hardware, policy) if hardware else {}

    def add(self, row: RequestRow) -> None:
        if self._hardware is None or row.outcome in NEVER_IN_FLIGHT:
            return
        each = _units(self._hardware, self._policy, row.prompt_tokens, row.output_tokens)
        for asked, units in zip(self.asked.values(), each, strict=True):
            asked.add(units)

    def rho(self, span_ns: int) -> float | None:
        """ρ of what is asked for most, at the rate of n − 1 requests in the arrivals' span."""
        n = max((of.n for of in self.asked.values()), default=0)
        rate = (n - 1) * NS_PER_S / span_ns if span_ns > 0 and n > 1 else None
        return max(loads(rate, self.asked).values(), default=None)
