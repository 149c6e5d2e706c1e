"""Why requests failed: the causes of a run, told apart as far as a reader can use it.

Pure; one pass, in bounded memory. Errors that differ only in their numbers are one cause, of which the first
is the example: a server that names lengths or counts its requests would hide its other errors.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from typing import Any

import msgspec

from ledgers.deliveries import requests
from ledgers.distributions import nearest_rank
from ledgers.rows import CLIENT_LIMIT, FAILURES, RequestRow
from ledgers.units import NS_PER_MS

MOST_CAUSES = 1_000  # kept apart; a server that names its errors must not fill the memory
CAUSES_TOLD = 5
OTHERS = "other causes"
_NUMBER = re.compile(r"^HTTP \d+|\d+")

Kind = tuple[str, str | None, str]  # outcome, phase, error without its numbers


class Cause(msgspec.Struct):
    """Failures of one kind; `alike` of them have other numbers in their error than the example."""

    outcome: str
    phase: str | None
    error: str
    count: int = 0
    alike: int = 0
    after_ns: array[int] = msgspec.field(default_factory=lambda: array("q"))

    def add(self, row: RequestRow) -> None:
        self.count += 1
        self.alike += self.error not in (row.error or "", OTHERS)
        if row.end_ns is not None and row.sent_ns is not None and row.end_ns >= row.sent_ns:
            self.after_ns.append(row.end_ns - row.sent_ns)

    def figure(self) -> dict[str, Any]:
        after_ns = sorted(self.after_ns)
        return {
            "outcome": self.outcome,
            "phase": self.phase,
            "error": self.error,
            "count": self.count,
            "alike": self.alike,
            "after_send_p50_ms": nearest_rank(after_ns, 50) / NS_PER_MS if after_ns else None,
        }


# What these say of an error, no server said.
_OURS = frozenset({"connect_error", "unfinished", "not_sent"})


class Failures:
    """Add every row of a run; those that did not fail pass by."""

    def __init__(self) -> None:
        self.tokens: int | None = None  # that came before their requests failed
        self._causes: dict[Kind, Cause] = {}
        self._client_limits: Counter[str] = Counter()

    def add(self, row: RequestRow) -> None:
        error = row.error or ""
        if row.outcome in _OURS and error.startswith(CLIENT_LIMIT):
            self._client_limits[error] += 1
        if row.outcome not in FAILURES:
            return
        self._cause(row.outcome, row.phase, error).add(row)
        if row.tokens is not None:
            self.tokens = (self.tokens or 0) + row.tokens

    def _cause(self, outcome: str, phase: str | None, error: str) -> Cause:
        kind: Kind = (outcome, phase, without_numbers(error))
        if kind not in self._causes and len(self._causes) >= MOST_CAUSES:
            kind, phase, error = (outcome, None, OTHERS), None, OTHERS
        return self._causes.setdefault(kind, Cause(outcome, phase, error))

    def client_limits(self) -> list[str]:
        """What this machine ran out of, and how many requests that cost."""
        return [f"{requests(count)} failed: {error}" for error, count in self._client_limits.items()]

    def figures(self) -> list[dict[str, Any]]:
        """The most frequent first: a few on their own, the others of each outcome as one; none is missing."""
        causes = sorted(self._causes.values(), key=lambda cause: -cause.count)
        others: defaultdict[str, list[Cause]] = defaultdict(list)
        for cause in causes[CAUSES_TOLD:]:
            others[cause.outcome].append(cause)
        told = [*causes[:CAUSES_TOLD], *map(_joint, others.values())]
        return [cause.figure() for cause in told]


def _joint(causes: list[Cause]) -> Cause:
    if len(causes) == 1:
        return causes[0]
    joint = Cause(causes[0].outcome, None, f"{len(causes)} {OTHERS}", sum(c.count for c in causes))
    for cause in causes:
        joint.after_ns += cause.after_ns
    return joint


def without_numbers(error: str) -> str:
    """The error with its numbers left open, but for an HTTP status at its beginning."""
    return _NUMBER.sub(lambda found: found[0] if found[0].startswith("HTTP") else "#", error)
