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
    """Mean and spread of what requests ask of one resource, in s of all of it."""

    def __init__(self) -> None:
        self.n = self._sum = self._squares = 0

    def add(self, ns: int) -> None:
        self.n, self._sum, self._squares = self.n + 1, self._sum + ns, self._squares + ns * ns

    @property
    def mean_s(self) -> float | None:
        return self._sum / self.n / NS_PER_S if self.n else None

    @property
    def cv(self) -> float:
        """Coefficient of variation; in integers until the root, so that equal demands have 0."""
        spread = self.n * self._squares - self._sum * self._sum
        return sqrt(Fraction(spread, self._sum * self._sum)) if self._sum else 0.0


def asked_ns(hardware: Hardware, policy: str | None, prompt: int, output: int) -> dict[str, int]:
    """How many ns of a whole resource a request takes: of prefill, and of all decode slots together.

    Under `immediate` the server is one, from prefill to the last token.
    """
    if policy == "immediate":
        prefill = ceil_div(prompt, hardware.prefill_tokens_per_tick)
        return {"the server": (prefill + output - 1) * hardware.tick_ns}
    decode = round(Fraction(output * hardware.tick_ns, hardware.decode_slots))
    tokens = Fraction(prompt * hardware.tick_ns, hardware.prefill_tokens_per_tick)
    return {"prefill": round(tokens), "decode": decode}


def loads(rate: float | None, asked: Mapping[str, Asked]) -> dict[str, float]:
    """ρ by resource: what arrives per second, of what can be done per second."""
    if rate is None:
        return {}
    return {name: rate * of.mean_s for name, of in asked.items() if of.mean_s is not None}


class Work:
    """What the requests of a run ask of its hardware; nothing where that is not known."""

    def __init__(self, hardware: Hardware | None, policy: str | None) -> None:
        self._hardware, self._policy = hardware, policy
        self.asked = {name: Asked() for name in asked_ns(hardware, policy, 1, 1)} if hardware else {}

    def add(self, row: RequestRow) -> None:
        if self._hardware is None or row.outcome in NEVER_IN_FLIGHT:
            return
        each = asked_ns(self._hardware, self._policy, row.prompt_tokens, row.output_tokens)
        for name, ns in each.items():
            self.asked[name].add(ns)

    def rho(self, span_ns: int) -> float | None:
        """ρ of what is asked for most, at the rate of n − 1 requests in the arrivals' span."""
        n = max((of.n for of in self.asked.values()), default=0)
        rate = (n - 1) * NS_PER_S / span_ns if span_ns > 0 and n > 1 else None
        return max(loads(rate, self.asked).values(), default=None)
