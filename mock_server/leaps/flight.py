"""A sequence in a scheduler that leaps: when its tokens come is known, not counted down. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from operator import sub
from typing import Protocol

from ledgers.rows import Outcome, RequestRow
from mock_server.arrivals import PlannedSequence

NEVER = 2**63 - 1


class Flight(PlannedSequence):
    """Its tokens come at the ticks in `tokens`, and then at each one of `run`.

    While there are slots for all, `run` reaches to the last token. Where they take turns it is empty, and
    each token is put down when it comes.
    """

    __slots__ = ("run", "steady_from", "tokens")

    def __init__(self, planned: RequestRow) -> None:
        super().__init__(planned)
        self.tokens: list[int] = []
        self.run = range(0)
        self.steady_from: int | None = None  # the tick from which its prefill gets a whole chunk in each

    def run_from(self, tick: int) -> None:
        """Emit at each tick from `tick` on."""
        self.run = range(tick, tick + self.output_tokens - len(self.tokens))

    def cut(self, tick: int) -> None:
        """Emit at no tick from `tick` on."""
        self.run = range(self.run.start, min(tick, self.run.stop))

    def put_down(self, tick: int) -> None:
        """Emit in turn from `tick` on, when it is told."""
        self.tokens.extend(range(self.run.start, tick))
        self.run = range(0)

    def end(self, tick: int) -> None:
        """What the scheduler's books say of a sequence that has ended, or is cancelled in `tick`."""
        self.phase = "ended"
        self.cut(tick)
        self.emitted = len(self.tokens) + len(self.run)
        if self.emitted:
            self.ticks.first_token = self.tokens[0] if self.tokens else self.run[0]

    @property
    def outcome(self) -> Outcome:
        """How it has ended."""
        if self.rejection is not None:
            return "rejected"
        return "completed" if self.ticks.last_token is not None else "cancelled"

    def token_ticks(self) -> list[int]:
        return [*self.tokens, *self.run]

    def gaps_ns(self, tick_ns: int) -> Mapping[int, int]:
        """The times from one token to the next, each with how often it comes."""
        steady = len(self.run) - 1
        if not self.tokens:
            return {tick_ns: steady} if steady > 0 else {}
        ticks = self.tokens + list(self.run[:1])
        gaps = {gap * tick_ns: count for gap, count in Counter(map(sub, ticks[1:], ticks)).items()}
        if steady > 0:
            gaps[tick_ns] = gaps.get(tick_ns, 0) + steady
        return gaps


class Queue(Protocol):
    """All that wait for admission, in one queue or in several."""

    def append(self, flight: Flight, /) -> None: ...

    def remove(self, flight: Flight, /) -> None: ...

    def __len__(self) -> int: ...
