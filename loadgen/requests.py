"""The requests that a process sends: its share of a planned ledger, each made when it is asked for. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple, overload
from urllib.parse import quote

import msgspec

from ledgers.ledger import values
from ledgers.rows import RequestRow
from ledgers.sessions import NONE


class Share(NamedTuple):
    """Which requests of a ledger are a process's own: every `step`-th, from number `first` on.

    A turn that waits goes with the one that it waits for.
    """

    first: int = 0
    step: int = 1

    def of(self, total: int) -> int:
        """Its part of a number of things that are to be divided among all."""
        return len(range(self.first, total, self.step))


class Requests(Sequence[RequestRow]):
    """The planned rows of a share, with the ids that are sent.

    Those with a time of their own come first, in order of it, then the turns that wait; `behind` has the
    index of each by that of the one it waits for. What is drawn for a request depends on its number in the
    whole ledger, whoever sends it. A closed loop has no use for arrivals.
    """

    def __init__(
        self,
        rows: Sequence[RequestRow],
        share: Share,
        id_prefix: str,
        *,
        closed: bool,
        before: Sequence[int] | None,
    ) -> None:
        """`before` has the turn that each row of the ledger waits for, as `turns_before` tells it."""
        self._rows = rows
        self._id_prefix = id_prefix
        self._closed = closed
        self._numbers: Sequence[int] = range(share.first, len(rows), share.step)
        self._timed = len(self._numbers)
        self.behind: dict[int, int] = {}
        if before is not None:
            self._divide(before, share)
        self._first_of: dict[str, int] = {}  # the number of each session's first turn
        for number, session in enumerate(values(rows, "session")):
            if session is not None:
                self._first_of.setdefault(session, number)

    def _divide(self, before: Sequence[int], share: Share) -> None:
        first = array("q")  # of each request the one that must end, after others perhaps, before it can leave
        timed, waiting = array("q"), array("q")
        for number, turn in enumerate(before):
            first.append(number if turn == NONE else first[turn])
            if first[number] % share.step == share.first:
                (timed if turn == NONE else waiting).append(number)
        self._numbers, self._timed = timed + waiting, len(timed)
        index_of = {number: index for index, number in enumerate(self._numbers)}
        self.behind = {index_of[before[number]]: index_of[number] for number in waiting}

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> RequestRow: ...

    @overload
    def __getitem__(self, index: slice) -> list[RequestRow]: ...

    def __getitem__(self, index: int | slice) -> RequestRow | list[RequestRow]:
        if isinstance(index, slice):
            return [self._planned(self._rows[number]) for number in self._numbers[index]]
        return self._planned(self._rows[self._numbers[index]])

    def number(self, index: int) -> int:
        """The number of a request in the whole ledger."""
        return self._numbers[index]

    def text_number(self, index: int) -> int:
        """The number that the text of a request's prompt is drawn by.

        It is that of its session's first turn, unless the ledger says itself what prompts share.
        """
        number = self._numbers[index]
        if not self._first_of:
            return number
        row = self._rows[number]
        if row.session is None or row.prefix is not None or (row.hash_ids and row.block_tokens):
            return number
        return self._first_of[row.session]

    def arrivals_ns(self) -> array[int]:
        """When those that do not wait are to leave, from t0; all at once where nothing says when."""
        if self._closed:
            return array("q", bytes(8 * self._timed))
        arrivals = values(self._rows, "arrival_ns")
        return array("q", (arrivals[number] or 0 for number in self._numbers[: self._timed]))

    def _planned(self, row: RequestRow) -> RequestRow:
        return msgspec.structs.replace(
            row,
            request_id=f"{self._id_prefix}-{header_safe(row.id)}",
            arrival_ns=None if self._closed else row.arrival_ns,
        )


def header_safe(text: str) -> str:
    """An id as it can stand in a header: other characters than A-Z a-z 0-9 _ . - ~ are percent-encoded."""
    return quote(text, safe="", errors="surrogatepass")
