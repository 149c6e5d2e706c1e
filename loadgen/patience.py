"""When a client gives up on a request, and when it tries again. Pure: times come in, decisions go out."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import msgspec

from ledgers.rows import Outcome
from ledgers.units import NS_PER_S

# What the usual SDKs do: half a second, doubled with each attempt up to eight, less up to a quarter.
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 8.0
_JITTER = 0.25
_LONGEST_RETRY_AFTER_S = 60.0
_RETRIED_STATUSES = frozenset({408, 409, 429})


class Limit(NamedTuple):
    """When a request ends if nothing more comes, how, and why."""

    at_ns: int
    outcome: Outcome
    why: str


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long a client waits, in s; None is for ever. Connecting has its own limit, in the transport.

    `first_token_s` and `request_s` count from when the request was sent off, `stall_s` from the last token.
    A share `cancel_rate` of the requests, drawn by `seed`, is given up `cancel_after_s` after the send.
    """

    first_token_s: float | None = None
    stall_s: float | None = None
    request_s: float | None = None
    cancel_rate: float = 0.0
    cancel_after_s: float = 0.0
    seed: int = 0

    def cancels(self, index: int) -> bool:
        """Whether the client of this request will give it up; depends on (seed, index) alone."""
        return self.cancel_rate > 0 and Random(f"cancel:{self.seed}:{index}").random() < self.cancel_rate

    def limit(self, started_ns: int, last_token_ns: int | None, cancels: bool) -> Limit | None:
        """The first limit that a request runs into as things stand."""
        limits = []
        if cancels:
            limits.append(_limit(started_ns, self.cancel_after_s, "cancelled", "given up after {:g} s"))
        if self.request_s is not None:
            why = "no end within --request-timeout {:g} s"
            limits.append(_limit(started_ns, self.request_s, "timeout", why))
        if last_token_ns is None and self.first_token_s is not None:
            why = "no token within --first-token-timeout {:g} s"
            limits.append(_limit(started_ns, self.first_token_s, "timeout", why))
        if last_token_ns is not None and self.stall_s is not None:
            why = "no further token within --stall-timeout {:g} s"
            limits.append(_limit(last_token_ns, self.stall_s, "timeout", why))
        return min(limits, default=None)


def _limit(from_ns: int, seconds: float, outcome: Outcome, why: str) -> Limit:
    return Limit(from_ns + round(seconds * NS_PER_S), outcome, why.format(seconds))


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """What clients do that try again, up to `most` times: extra traffic, drawn by `seed`."""

    most: int = 0
    seed: int = 0

    def wanted(self, attempt: int, outcome: Outcome | None, status: int | None, began: bool) -> bool:
        """Whether attempt `attempt` (0 is the first) is followed by another.

        As SDKs do: not once an answer has begun, and not after a refusal that would only be repeated.
        """
        if attempt >= self.most or began:
            return False
        if outcome == "http_error":
            return status is not None and (status in _RETRIED_STATUSES or status >= 500)
        return outcome in ("connect_error", "timeout")

    def wait_s(self, index: int, attempt: int, retry_after_s: float | None) -> float:
        """From the end of an attempt to the next: what the server says within reason, or a back-off."""
        if retry_after_s is not None and retry_after_s <= _LONGEST_RETRY_AFTER_S:
            return retry_after_s
        wait: float = min(_FIRST_WAIT_S * 2**attempt, _LONGEST_WAIT_S)
        return wait * (1 - _JITTER * Random(f"retry:{self.seed}:{index}:{attempt}").random())
