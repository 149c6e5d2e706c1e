"""The turns of sessions that wait for an answer: which is let go when, and which never.

Each is known by the index of its request. When the one before it completes, a turn is let go, to leave its
think time later; if that one fails, none of those behind it is sent. Turns that were never let go have no
intended arrival.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from ledgers.rows import RequestRow
from ledgers.sessions import not_completed
from loadgen.bodies import TurnBodies
from loadgen.prompts import RequestEncoder
from loadgen.recorder import Recorder, unsent
from loadgen.requests import Requests


class Later(NamedTuple):
    """What leaves at a time that only the run could tell: a turn that was let go, or a further attempt."""

    due_ns: int
    which: int  # of the requests
    attempt: int  # 0 for a turn, which is sent for the first time
    arrival_ns: int | None

    @property
    def is_turn(self) -> bool:
        return self.attempt == 0


class Turns:
    """Those of a share. `known_ns` is when the last that was let go arrives, on the monotonic clock."""

    def __init__(self, requests: Requests, encoder: RequestEncoder) -> None:
        self.known_ns = 0
        self.sent = 0
        self._requests = requests
        self._behind = dict(requests.behind)  # those that wait, by the one that each waits for
        self._bodies = TurnBodies(requests, encoder)
        self._sent_ns = 0

    def __len__(self) -> int:
        """How many wait for an answer."""
        return len(self._behind)

    def one_behind(self, index: int) -> bool:
        return index in self._behind

    async def prepare(self) -> None:
        """Encode, for as long as the run lasts, those whose answers are on their way."""
        await self._bodies.prepare()

    def awaited(self, index: int) -> None:
        """The request was sent: the turn behind it, if there is one, will soon be wanted."""
        if (turn := self._behind.get(index)) is not None:
            self._bodies.want(turn)

    def let_go(self, index: int, end_ns: int, t0_ns: int | None) -> Later:
        """The turn behind a request that completed at `end_ns`; arrivals count from t0, if they count."""
        turn = self._behind.pop(index)
        due_ns = end_ns + (self._requests[turn].think_ns or 0)
        self.known_ns = max(self.known_ns, due_ns)
        return Later(due_ns, turn, 0, None if t0_ns is None else due_ns - t0_ns)

    def lose(self, index: int, ended: Recorder) -> list[RequestRow]:
        """The rows of those behind a request that did not complete."""
        behind = list(self._all_behind(index))
        for turn in behind[:1]:
            self._bodies.drop(turn)
        return list(self._never_sent(behind, not_completed(ended.planned.id, ended.outcome)))

    def take(self, turn: Later) -> tuple[RequestRow, bytes]:
        """The row and the request of a turn that goes now."""
        self.sent += 1
        self._sent_ns = max(self._sent_ns, turn.due_ns)
        row, request = self._bodies.take(turn.which)
        return msgspec.structs.replace(row, arrival_ns=turn.arrival_ns), request

    def close(self) -> list[RequestRow]:
        """Nothing more will be sent: the rows of those that still wait."""
        turns = sorted(self._behind.values())
        self._behind.clear()
        self.known_ns = self._sent_ns
        return list(self._never_sent(turns, "its turn had not come when the sending was over"))

    def _all_behind(self, index: int) -> Iterator[int]:
        """Those that wait for this one, and for each other; none waits any longer."""
        while (turn := self._behind.pop(index, None)) is not None:
            yield turn
            index = turn

    def _never_sent(self, turns: Iterable[int], why: str) -> Iterator[RequestRow]:
        for turn in turns:
            yield msgspec.structs.replace(unsent(self._requests[turn], why), arrival_ns=None)
