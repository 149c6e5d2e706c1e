"""Many records of the same fields, held by column, each in as few bytes as its values need.

Pure. A million integers in a list take 40 MB, in a column 1 to 8.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import eq
from typing import Any

_WIDER = {"b": "h", "h": "i", "i": "q"}
_BATCH = 1_024  # values added at once, which is faster than one by one
_NO_TEXT = b"\xff"  # which is not UTF-8


class Column(Sequence[Any]):
    """Integers or texts, None among them; with any other value, or with both, as large as a list.

    `cells` hold `missing` for None: loops over many values are fast on them.
    """

    __slots__ = ("cells", "missing")

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self.cells: array[int] | _Texts | list[Any] = array("b")
        self.missing: Any = _least("b")
        self.extend(values)

    def extend(self, values: Iterable[Any]) -> None:
        rest = iter(values)
        while batch := list(islice(rest, _BATCH)):
            while not self._fits(batch):
                pass

    def _fits(self, values: list[Any]) -> bool:
        """Whether the cells have taken the values. If not, they are now such as can take more."""
        try:
            if isinstance(self.cells, array):
                self.cells.fromlist(self._as_integers(values))
            else:
                self.cells.extend(values)
        except OverflowError:
            self._widen()
        except TypeError:
            fresh = self.empty and not isinstance(self.cells, _Texts)
            self.cells, self.missing = _Texts(len(self)) if fresh else list(self), None
        else:
            return True
        return False

    def _as_integers(self, values: list[Any]) -> list[Any]:
        if self.missing in values:
            raise OverflowError
        return [self.missing if value is None else value for value in values] if None in values else values

    def _widen(self) -> None:
        """To the next larger integers; from the largest to a list."""
        assert isinstance(self.cells, array)
        if code := _WIDER.get(self.cells.typecode):
            missing = _least(code)
            self.cells = array(code, (missing if value is None else value for value in self))
            self.missing = missing
        else:
            self.cells, self.missing = list(self), None

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, index: Any) -> Any:
        """A value; of a slice, a column."""
        if isinstance(index, slice):
            return self.take(range(len(self))[index])
        value = self.cells[index]
        return None if value == self.missing else value

    def __iter__(self) -> Iterator[Any]:
        missing = self.missing
        return (None if value == missing else value for value in self.cells)

    def __eq__(self, other: object) -> bool:
        """Whether another sequence, a list perhaps, has the same values."""
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    @property
    def empty(self) -> bool:
        """Whether all values are None."""
        return self.cells.count(self.missing) == len(self)

    def take(self, indices: Iterable[int]) -> Column:
        """The values at `indices`, as a column."""
        values = map(self.cells.__getitem__, indices)
        if not isinstance(self.cells, array):
            return Column(values)
        taken = Column()
        taken.cells, taken.missing = array(self.cells.typecode, values), self.missing
        return taken

    def known(self, indices: Iterable[int]) -> list[Any]:
        """The values at `indices` that are not None."""
        cells, missing = self.cells, self.missing
        return [value for i in indices if (value := cells[i]) != missing]


class _Texts(Sequence[str | None]):
    """Texts as their UTF-8, one behind the other."""

    def __init__(self, count: int) -> None:
        """So many times None."""
        self._bytes = bytearray(_NO_TEXT * count)
        self._ends = array("q", range(1, count + 1))

    def extend(self, values: list[Any]) -> None:
        """TypeError if not all are texts or None; then nothing is added."""
        if not all(value is None or type(value) is str for value in values):
            raise TypeError
        for value in values:
            self._bytes += _NO_TEXT if value is None else value.encode(errors="surrogatepass")
            self._ends.append(len(self._bytes))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        place = range(len(self))[index]
        begin = self._ends[place - 1] if place else 0
        text = self._bytes[begin : self._ends[place]]
        return None if text == _NO_TEXT else text.decode(errors="surrogatepass")

    def __iter__(self) -> Iterator[str | None]:
        begin = 0
        for end in self._ends:  # faster than place by place
            text = self._bytes[begin:end]
            yield None if text == _NO_TEXT else text.decode(errors="surrogatepass")
            begin = end


class Table:
    """Records of these fields: what is appended as a row is read as columns."""

    def __init__(self, fields: Iterable[str]) -> None:
        self._columns = {field: Column() for field in fields}
        self._pending: list[Sequence[Any]] = []

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()))) + len(self._pending)

    def append(self, record: Sequence[Any]) -> None:
        """Add values in order of the fields."""
        self._pending.append(record)
        if len(self._pending) == _BATCH:
            self._settle()

    def __getitem__(self, field: str) -> Column:
        self._settle()
        return self._columns[field]

    def take(self, indices: Sequence[int]) -> None:
        """Keep the records at `indices`, in this order."""
        self._settle()
        self._columns = {field: column.take(indices) for field, column in self._columns.items()}

    def replace(self, field: str, values: Iterable[Any]) -> None:
        """Put other values, one for each record, into a field."""
        self._settle()
        column = Column(values)
        if len(column) != len(self):
            raise ValueError(f"{len(column)} values for {len(self)} records")
        self._columns[field] = column

    def _settle(self) -> None:
        if self._pending:
            for column, values in zip(self._columns.values(), zip(*self._pending, strict=True), strict=True):
                column.extend(values)
            self._pending.clear()


def _least(code: str) -> int:
    """The smallest integer that fits: it stands for None."""
    return -(1 << 8 * array(code).itemsize - 1)
