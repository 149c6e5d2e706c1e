"""Sessions: which turn waits for which, and when each arrives at the earliest. Pure.

Turns of a session follow each other in the order of the ledger. One with a think time waits for the end of
the turn before it and thinks so long; the first turn, and any other without a think time, arrives at its own
time. If a turn does not complete, those that wait for it are not sent.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from fractions import Fraction

from ledgers.columns import Column
from ledgers.errors import InputError
from ledgers.ledger import values
from ledgers.rows import Outcome, RequestRow

NONE = -1


def turns_before(rows: Sequence[RequestRow]) -> Sequence[int] | None:
    """Of each row the number of the turn that it waits for, NONE if it has its own time; None if all have."""
    return linked(values(rows, "session"), values(rows, "think_ns"))


def linked(sessions: Sequence[str | None], thinks_ns: Sequence[int | None]) -> Sequence[int] | None:
    """The same of rows in order, from what their columns say."""
    if thinks_ns.empty if isinstance(thinks_ns, Column) else thinks_ns.count(None) == len(thinks_ns):
        return None
    before, last, waiting = array("q"), dict[str, int](), False
    for number, (session, think_ns) in enumerate(zip(sessions, thinks_ns, strict=True)):
        turn = NONE
        if session is not None:
            turn = last.get(session, NONE) if think_ns is not None else NONE
            last[session] = number
        before.append(turn)
        waiting |= turn != NONE
    return before if waiting else None


def not_completed(id: str, outcome: Outcome | None) -> str:
    """Why a turn is not sent: the one before, or one before that, went wrong."""
    return f"its session ended with {id}: {outcome}"


class Sessions:
    """Counts the sessions of a run, and those of which every turn completed, by a retry perhaps."""

    def __init__(self) -> None:
        self._lost: dict[str, set[str] | None] = {}  # of each session the turns that did not complete

    def add(self, row: RequestRow) -> None:
        if row.session is None:
            return
        lost, turn = self._lost.setdefault(row.session, None), row.retry_of or row.id
        if row.outcome != "completed":
            self._lost[row.session] = {*(lost or ()), turn}
        elif lost:
            lost.discard(turn)

    def figures(self, *, rows_missing: bool) -> dict[str, int | None] | None:
        if not self._lost:
            return None
        whole = sum(not lost for lost in self._lost.values())
        return {"count": len(self._lost), "whole": None if rows_missing else whole}


class Turns:
    """The turns of a trace, whose rows are in order of time: what waits, and where it comes in the ledger."""

    def __init__(self, before: Sequence[int], thinks_ns: Sequence[int | None], speed: Fraction) -> None:
        """`speed` divides think times, as it does the other times of a trace."""
        self._before = before
        waits = (None if turn == NONE else think_ns for turn, think_ns in zip(before, thinks_ns, strict=True))
        self.thinks_ns = Column(
            think_ns if think_ns is None or speed == 1 else round(think_ns / speed) for think_ns in waits
        )
        """None for rows that have their own time."""
        self.first = Column(number for number, turn in enumerate(before) if turn == NONE)
        """The rows that have their own time."""

    def in_order(self, first_ns: Sequence[int]) -> tuple[list[int], Column]:
        """The rows in order of arrival, and when they arrive if every answer takes no time at all.

        `first_ns` are the arrivals of `first`, or of as many as there is time for: the others never come.
        """
        arrivals: list[int | None] = []
        given = iter(first_ns)
        for turn, think_ns in zip(self._before, self.thinks_ns, strict=True):
            if turn == NONE:
                arrivals.append(next(given, None))
            else:
                earlier = arrivals[turn]
                arrivals.append(None if earlier is None else earlier + think_ns)
        order = sorted((arrival, number) for number, arrival in enumerate(arrivals) if arrival is not None)
        return [number for _, number in order], Column(arrival for arrival, _ in order)

    def check(
        self, name: str, order: Sequence[int], sessions: Sequence[str], turns: Sequence[int | None]
    ) -> None:
        """InputError if turns that wait are not behind each other, in the order of their numbers."""
        now_before = linked([sessions[number] for number in order], self.thinks_ns.take(order)) or ()
        for number, place in zip(order, now_before, strict=False):
            before = self._before[number]
            if before != (NONE if place == NONE else order[place]):
                raise InputError(
                    f"{name}: session {sessions[number]}: turns with and without a think time overlap"
                )
            if before == NONE:
                continue
            this, earlier = turns[number], turns[before]
            if this is not None and earlier is not None and this < earlier:
                raise InputError(
                    f"{name}: session {sessions[number]}: turn {this} would wait for turn {earlier}"
                )

    def note(self, sessions: Sequence[str], order: Sequence[int]) -> str:
        """What is said of those that are in the ledger."""
        waiting = [number for number in order if self._before[number] != NONE]
        count = len({sessions[number] for number in waiting})
        if not waiting:
            return "no turn waits for the answer before it"
        turns = "1 turn waits for the answer before it"
        if len(waiting) > 1:
            turns = f"{len(waiting)} turns wait for the answer before them"
        return f"{count} session{'s' * (count != 1)}: {turns}"
