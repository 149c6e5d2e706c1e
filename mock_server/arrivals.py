"""Where a simulation's requests come from: each at its time, turns of sessions when their answers have ended.

Pure. Rows stream in, in order of the ledger. Held are those that wait for a turn in flight, and of each
session its last turn, if any turn of the ledger waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from msgspec.structs import replace

from ledgers.rows import Outcome, RequestRow, without_plan
from ledgers.sessions import not_completed, turns_before
from mock_server import scheduler


class PlannedSequence(scheduler.Sequence):
    """A sequence that knows its planned row."""

    __slots__ = ("planned",)

    def __init__(self, planned: RequestRow) -> None:
        super().__init__(
            planned.id,
            planned.prompt_tokens,
            planned.output_tokens,
            planned.arrival_ns or 0,
            planned.class_,
        )
        self.planned = planned


class Aside:
    """Requests that have their outcome already: they were answered without the scheduler."""

    def __init__(self, requests: Iterable[RequestRow]) -> None:
        self._requests = requests
        self._rows: list[tuple[int, int, RequestRow]] = []  # a heap: the first to end first

    def scheduled(self) -> Iterator[RequestRow]:
        """The other requests."""
        for place, row in enumerate(self._requests):
            if row.outcome is None:
                yield row
            else:
                heappush(self._rows, (row.end_ns or 0, place, without_plan(row, received_ns=row.arrival_ns)))

    def until(self, ns: int | None = None) -> Iterator[RequestRow]:
        """The rows of those that have come and end by then, each once; of all, if no time is given."""
        while self._rows and (ns is None or self._rows[0][0] <= ns):
            yield heappop(self._rows)[-1]


class _Waiting(NamedTuple):
    """A row that came up before the turn that it waits for had ended, and its place in the ledger."""

    number: int
    row: RequestRow
    turn: _Turn


class _Turn:
    """A turn, as the one behind it needs to know it."""

    __slots__ = ("behind", "end_ns", "why_lost")

    def __init__(self) -> None:
        self.end_ns: int | None = None
        self.why_lost: str | None = None
        self.behind: _Waiting | None = None


def turns_wait(rows: Iterable[RequestRow]) -> bool:
    """Whether turns may wait for others; of rows that stream in, nobody knows beforehand."""
    return not isinstance(rows, Sequence) or turns_before(rows) is not None


class Arrivals:
    """Planned rows, `arrival_ns` non-decreasing, as they arrive; `ended` lets the turn behind go.

    A turn that waits arrives its think time after that end, and its row says so. `not_sent` collects the rows
    of turns that will never arrive. Unless `waits`, no turn waits for another, and sessions are labels.
    """

    def __init__(self, rows: Iterable[RequestRow], *, waits: bool = True) -> None:
        self.not_sent: deque[RequestRow] = deque()
        self._waits = waits
        self._coming = iter(rows)
        self._following = next(self._coming, None)
        self._number = 0
        self._ready: list[tuple[int, int, RequestRow]] = []  # a heap: the next one first
        self._last: dict[str, _Turn] = {}  # of each session
        self._in_flight: dict[str, _Turn] = {}  # by id

    def next_ns(self) -> int | None:
        """When the next request arrives if no other ends before; None if none does.

        To be asked while none is in flight: else all that waits for one is read ahead.
        """
        while self._following and not (
            self._ready and self._ready[0][0] <= (self._following.arrival_ns or 0)
        ):
            self._read(self._following)
        return self._ready[0][0] if self._ready else None

    def earliest_ns(self) -> int | None:
        """No request arrives before, unless one that is in flight ends. Nothing is read for that."""
        following = None if self._following is None else self._following.arrival_ns or 0
        known = [ns for ns in (self._ready[0][0] if self._ready else None, following) if ns is not None]
        return min(known, default=None)

    def take(self, until_ns: int) -> list[RequestRow]:
        """Those that have arrived by then, each once, in order; at the same instant as in the ledger."""
        while self._following and (self._following.arrival_ns or 0) <= until_ns:
            self._read(self._following)
        taken = []
        while self._ready and self._ready[0][0] <= until_ns:
            taken.append(heappop(self._ready)[2])
        return taken

    def ended(self, id: str, ns: int, outcome: Outcome) -> None:
        """The request is over, at `ns`: the session goes on if it completed."""
        turn = self._in_flight.pop(id, None)
        if turn is None:
            return
        if outcome == "completed":
            turn.end_ns = ns
        else:
            turn.why_lost = not_completed(id, outcome)
        self._settle(turn)

    def _read(self, row: RequestRow) -> None:
        """Take a row from the ledger: it arrives at its time, or waits."""
        self._following = next(self._coming, None)
        self._number += 1
        if row.session is None or not self._waits:
            heappush(self._ready, (row.arrival_ns or 0, self._number, row))
            return
        turn, before = _Turn(), self._last.get(row.session)
        self._last[row.session] = self._in_flight[row.id] = turn
        if before is None or row.think_ns is None:
            heappush(self._ready, (row.arrival_ns or 0, self._number, row))
        else:
            before.behind = _Waiting(self._number, row, turn)
            self._settle(before)

    def _settle(self, turn: _Turn) -> None:
        """Let the turn behind go if this one has ended; if it is lost, so are all that are behind."""
        while (waiting := turn.behind) is not None:
            number, row, behind = waiting
            if turn.end_ns is not None:
                arrival_ns = turn.end_ns + (row.think_ns or 0)
                heappush(self._ready, (arrival_ns, number, replace(row, arrival_ns=arrival_ns)))
            elif turn.why_lost is not None:
                behind.why_lost = turn.why_lost
                del self._in_flight[row.id]
                self.not_sent.append(
                    without_plan(row, arrival_ns=None, outcome="not_sent", error=turn.why_lost)
                )
            else:
                return
            turn.behind = None
            turn = behind
