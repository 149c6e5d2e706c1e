"""The rows that a ledger takes from a trace: held by column while the file streams by.

Pure. No more rows are held than twice as many as are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from operator import attrgetter
from typing import Any

from ledgers.columns import Column, Table
from ledgers.formats.fields import TraceRow

FIELDS = tuple(field for field in TraceRow.__struct_fields__ if field not in ("line", "dated"))
NOT_PLANNED = ("time_ns", "at", "counted_otherwise")
_values = attrgetter(*FIELDS)


class Taken:
    """All rows of a trace, or the first `most` in order of time, those of one time in order of the file."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._room = most  # for rows, until those that turn out to be too late are dropped
        self._bound: int | Fraction | None = None  # a row of this time, or a later one, is too late
        self._latest: int | Fraction = 0
        self._in_order = True
        self._rows = Table(("number", *FIELDS))

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, number: int, row: TraceRow) -> None:
        time = time_of(row)
        if self._bound is not None and time >= self._bound:
            return
        self._in_order &= time >= self._latest
        self._latest = time
        self._rows.append((number, *_values(row)))
        if self._room is not None and len(self) == self._room:
            self.sort()
            self._bound, self._room = self._latest, 2 * len(self)

    def sort(self) -> None:
        """Put the rows in order of time, and drop those that are too many."""
        if self._in_order:  # then none is too many: what came too late was not taken
            return
        assert self.times is not None
        order = sorted(range(len(self)), key=self.times.__getitem__)[: self._most]
        self._rows.take(order)
        self._latest, self._in_order = self.times[-1], True

    @property
    def times(self) -> Column | None:
        """What orders the rows; None if they keep the order of the file."""
        return self[self.time_field] if self.time_field else None

    @property
    def time_field(self) -> str | None:
        """The field that `times` is."""
        return next((field for field in ("time_ns", "at") if not self[field].empty), None)

    def take(self, indices: Sequence[int]) -> None:
        """Keep the rows at `indices`, in this order; one may be there several times."""
        self._rows.take(indices)

    def replace(self, field: str, values: Iterable[Any]) -> None:
        """Put other values into a field of all rows."""
        self._rows.replace(field, values)

    def __getitem__(self, field: str) -> Column:
        """The number of each row in the file, or a field of the trace's rows."""
        return self._rows[field]

    def planned(self) -> dict[str, Column]:
        """The columns of what a planned row has too, but for its arrival, where there is anything in them."""
        columns = {field: self[field] for field in FIELDS if field not in NOT_PLANNED}
        return {field: column for field, column in columns.items() if not column.empty}


def time_of(row: TraceRow) -> int | Fraction:
    """What orders rows; those without times keep the order of the file."""
    return row.time_ns if row.time_ns is not None else row.at or 0
