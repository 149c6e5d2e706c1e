"""The requests that a process sends: its share of a planned ledger, each made when it is asked for. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple, overload
from urllib.parse import quote

import msgspec

from ledgers.ledger import values
from ledgers.rows import RequestRow


class Share(NamedTuple):
    """Which requests of a ledger are a process's own: every `step`-th, from number `first` on."""

    first: int = 0
    step: int = 1

    def number(self, index: int) -> int:
        """The number in the ledger of its request at `index`."""
        return self.first + index * self.step

    def of(self, total: int) -> int:
        """Its part of a number of things that are to be divided among all."""
        return len(range(self.first, total, self.step))


class Requests(Sequence[RequestRow]):
    """The planned rows of a share, with the ids that are sent.

    What is drawn for a request depends on its number in the whole ledger, whoever sends it. A closed loop has
    no use for arrivals.
    """

    def __init__(self, rows: Sequence[RequestRow], share: Share, id_prefix: str, *, closed: bool) -> None:
        self._rows = rows
        self._share = share
        self._numbers = range(share.first, len(rows), share.step)
        self._id_prefix = id_prefix
        self._closed = closed

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

    def arrivals_ns(self) -> array[int]:
        """When they are to leave, from t0; all at once where the ledger does not say."""
        arrivals = values(self._rows, "arrival_ns")
        return array("q", (arrivals[number] or 0 for number in self._numbers))

    def _planned(self, row: RequestRow) -> RequestRow:
        return msgspec.structs.replace(
            row,
            request_id=f"{self._id_prefix}-{header_safe(row.id)}",
            arrival_ns=None if self._closed else row.arrival_ns,
        )


def header_safe(text: str) -> str:
    """An id as it can stand in a header: other characters than A-Z a-z 0-9 _ . - ~ are percent-encoded."""
    return quote(text, safe="", errors="surrogatepass")
