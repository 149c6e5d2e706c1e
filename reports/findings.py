"""What a rule of diagnosis says: a finding with its evidence, or why it cannot say anything. Pure values."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

LEAST_REQUESTS = 10  # completed, for a share or a mean of them
LEAST_TICKS = 5  # in which something was so, before it is said


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """A number with its name; `before` is the baseline's."""

    name: str
    value: float | int | None
    unit: str = ""
    before: float | int | None = None


class Finding(msgspec.Struct, frozen=True):
    """What stands out, the numbers that it rests on, and what they leave open.

    `confidence` is that of the interval which the rule rests on; None where it counts what was recorded.
    """

    rule: str
    title: str
    evidence: Sequence[Figure]
    cannot_tell: str
    confidence: float | None = None


class Unable(msgspec.Struct, frozen=True):
    """Why a rule has nothing to go by in this run."""

    why: str


Spoken = Finding | Unable | None
"""None: the rule looked, and nothing stands out."""

NO_TICKS = Unable("needs ticks.jsonl and the hardware: the server's own ledger, or a simulation")
NO_SPLIT = Unable("needs the times of prefill, which a client cannot see")
NO_SLO = Unable("no SLO was given")
NO_CLASSES = Unable("needs two classes")


def too_few(count: int, least: int = LEAST_REQUESTS, what: str = "completed requests") -> Unable:
    return Unable(f"{count} {what}, needs {least}")


def share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def percent(name: str, part: float | None, whole: float | None) -> Figure:
    found = share(part, whole)
    return Figure(name, None if found is None else 100 * found, "%")
