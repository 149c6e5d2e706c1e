"""How exact the load generator is on a machine, as `tokentick calibrate` found it, and what it says of a run.

Pure. Owns the layout of the stored result, and the look-up in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Literal, NamedTuple, get_args

import msgspec

from ledgers.distributions import Distribution

Pattern = Literal["staggered", "lock step"]
Verdict = Literal["ok", "over 1 ms", "client-limited", "server-limited"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
LIMIT_MS = 1.0
_ALIKE = 1.05  # a rate that is so close to another is the same: seconds do not begin with the tokens


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a calibration holds for: on another machine, or another event loop, it says nothing."""

    system: str
    machine: str
    cpu: str
    cpus: int | None
    python: str
    event_loop: str


class Rung(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One load, and how far off the stamps were: `first_ms` of first tokens, `token_ms` of all, either way.

    `tokens_per_s` is what really came while they were streaming. `upper_bound_share` of the tokens came in
    the read of the one before, `cpu_share` is of one core. `reasons` are those of a verdict that is not `ok`.
    """

    pattern: Pattern
    streams: int
    tokens_per_s: float
    first_ms: Distribution | None
    token_ms: Distribution | None
    upper_bound_share: float | None
    send_lag_p99_ms: float | None
    cpu_share: float | None
    workers: int
    verdict: Verdict
    reasons: list[str]

    @property
    def tells(self) -> bool:
        """Whether it says anything of the client: the server kept up, and every request was answered."""
        return self.verdict != "server-limited" and self.first_ms is not None

    @property
    def worst_p99_ms(self) -> float:
        """Of a rung that tells something."""
        return max(found.p99 for found in (self.first_ms, self.token_ms) if found)


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rungs of each pattern in ascending order, when they were taken, by which version, on what."""

    calibrated_at: str
    version: str
    machine: Machine
    rungs: list[Rung]

    def usable(self, pattern: Pattern) -> list[Rung]:
        """Its rungs below the first that tells nothing."""
        return list(takewhile(lambda rung: rung.tells, (r for r in self.rungs if r.pattern == pattern)))

    @property
    def most_streams(self) -> int:
        """Up to how many it goes in every pattern; 0 where one of them has no load that tells anything."""
        ladders = map(self.usable, PATTERNS)
        return min(ladder[-1].streams if ladder else 0 for ladder in ladders)


class Load(NamedTuple):
    """What a run put on its load generator: the most streams at a time, the tokens of the busiest second."""

    streams: int
    tokens_per_s: float


class Instrument(msgspec.Struct, frozen=True, kw_only=True):
    """What a calibration says of a run; `calibrated_*` is how far it goes.

    `streams`, `tokens_per_s` and `pattern` are those of the rung at or above the run's load, in the pattern
    that is worse there. Of each error it is the larger of both patterns: `error_*` of first tokens, so of
    TTFT, `token_error_*` of all. Above what was calibrated there are none, and `within` is False; it is None
    where the load is not known.
    """

    calibrated_at: str
    calibrated_streams: int
    calibrated_tokens_per_s: float
    load_streams: int | None
    load_tokens_per_s: float | None
    streams: int | None = None
    tokens_per_s: float | None = None
    pattern: Pattern | None = None
    error_p50_ms: float | None = None
    error_p99_ms: float | None = None
    token_error_p99_ms: float | None = None
    within: bool | None


def instrument(calibration: Calibration | None, load: Load | None) -> Instrument | None:
    """None without a calibration that says anything. Nobody knows a run's pattern, so both must reach it."""
    ladders = [calibration.usable(pattern) for pattern in PATTERNS] if calibration else []
    if calibration is None or not all(ladders):
        return None
    known = Instrument(
        calibrated_at=calibration.calibrated_at,
        calibrated_streams=calibration.most_streams,
        calibrated_tokens_per_s=min(ladder[-1].tokens_per_s for ladder in ladders),
        load_streams=load.streams if load else None,
        load_tokens_per_s=load.tokens_per_s if load else None,
        within=None,
    )
    if load is None:
        return known
    found = [rung for ladder in ladders if (rung := _at_or_above(ladder, load))]
    if len(found) < len(ladders):
        return msgspec.structs.replace(known, within=False)
    worse = max(found, key=lambda rung: rung.worst_p99_ms)
    first = [rung.first_ms for rung in found if rung.first_ms]
    every = [rung.token_ms for rung in found if rung.token_ms]
    return msgspec.structs.replace(
        known,
        streams=worse.streams,
        tokens_per_s=worse.tokens_per_s,
        pattern=worse.pattern,
        error_p50_ms=max(error.p50 for error in first),
        error_p99_ms=max(error.p99 for error in first),
        token_error_p99_ms=max(error.p99 for error in every),
        within=True,
    )


def _at_or_above(ladder: Sequence[Rung], load: Load) -> Rung | None:
    """The lowest rung that carried both as many streams and as many tokens per second."""
    carry = (
        rung
        for rung in ladder
        if rung.streams >= load.streams and rung.tokens_per_s * _ALIKE >= load.tokens_per_s
    )
    return next(carry, None)
