"""A planned ledger: the request rows to replay, in order of arrival, and where they came from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from operator import eq
from typing import Any, overload

import msgspec

from ledgers.columns import Column
from ledgers.rows import RequestRow, encode


class PlannedRows(Sequence[RequestRow]):
    """Rows held by column. Each is made when it is asked for: changing it changes nothing here.

    `numbers` are those of the requests in their file; one without an id of its own is called by its number,
    in `width` digits. `columns` are by field; one that all rows leave at None can be missing.
    """

    def __init__(self, numbers: Sequence[int], width: int, columns: Mapping[str, Column]) -> None:
        self._numbers = numbers
        self._width = width
        self._columns = columns

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> RequestRow: ...

    @overload
    def __getitem__(self, index: slice) -> PlannedRows: ...

    def __getitem__(self, index: int | slice) -> RequestRow | PlannedRows:
        number = self._numbers[index]
        fields = {name: column[index] for name, column in self._columns.items()}
        if isinstance(number, int):
            return self._row(number, fields)
        return PlannedRows(number, self._width, fields)

    def __iter__(self) -> Iterator[RequestRow]:
        for number, *values in zip(self._numbers, *self._columns.values(), strict=True):
            yield self._row(number, dict(zip(self._columns, values, strict=True)))

    def __eq__(self, other: object) -> bool:
        """Whether the rows of another sequence, a list perhaps, are the same."""
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    def values(self, field: str) -> Sequence[Any]:
        """What all rows have in a field, without making the rows."""
        return self._columns[field] if field in self._columns else [None] * len(self)

    def _row(self, number: int, fields: dict[str, Any]) -> RequestRow:
        if fields.get("id") is None:
            fields["id"] = f"R{number:0{self._width}}"
        return RequestRow(**fields)


def values(rows: Sequence[RequestRow], field: str) -> Sequence[Any]:
    """What planned rows have in a field: to make a million of them for one number each takes seconds."""
    return rows.values(field) if isinstance(rows, PlannedRows) else [getattr(row, field) for row in rows]


class Ledger(msgspec.Struct, kw_only=True):
    """Rows in FIFO order, `arrival_ns` non-decreasing, the first at 0. `notes` say what loading changed.

    `made`: it was drawn, and there is no file of it.
    """

    name: str
    rows: Sequence[RequestRow]
    notes: list[str] = []
    made: bool = False

    def sha256(self) -> str:
        """A digest of what is replayed: ids, lengths, texts, what prompts share, and intended arrivals."""
        digest = hashlib.sha256()
        for row in self.rows:
            digest.update(encode((row.id, row.prompt_tokens, row.output_tokens, row.prompt, row.arrival_ns)))
            if row.think_ns is not None:
                digest.update(encode((row.session, row.think_ns)))
            shared = (row.prefix, row.prefix_tokens, row.hash_ids, row.block_tokens)
            if any(shared):
                digest.update(encode(shared))
        return digest.hexdigest()
