"""What a long trace has too much of for memory: it goes to an anonymous temporary file, in sorted runs.

Up to HELD values stay in memory, so that a short trace does not touch the disk. InputError if the disk cannot
take the others.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import weakref
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from heapq import merge
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any, Generic, TypeVar

from ledgers.errors import InputError

HELD = 1 << 18  # of ids 35 MB
_AT_ONCE = 512  # values of each run in memory, while runs are merged
_SIZE_BYTES = 8
Number = int | Fraction
K = TypeVar("K", int, str)
T = TypeVar("T")


class Runs(Generic[T]):
    """Iterables on disk, each written and read a few values at a time."""

    def __init__(self) -> None:
        self._file: Any = None
        self._spans: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._spans)

    def __iter__(self) -> Iterator[Iterator[T]]:
        return (self._read(begin, end) for begin, end in self._spans)

    def write(self, values: Iterable[T]) -> None:
        """As one more run."""
        begin, rest = self._spans[-1][1] if self._spans else 0, iter(values)
        end = begin
        with _told():
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - open as long as this is
                weakref.finalize(self, self._file.close)
            while some := list(islice(rest, _AT_ONCE)):
                end += self._append(pickle.dumps(_compact(some), pickle.HIGHEST_PROTOCOL))
        self._spans.append((begin, end))

    def _append(self, data: bytes) -> int:
        """How many bytes that took, with their size in front."""
        framed = len(data).to_bytes(_SIZE_BYTES, "big") + data
        left = memoryview(framed)
        while left:  # a file that is nearly full takes a part
            left = left[self._file.write(left) :]
        return len(framed)

    def _read(self, begin: int, end: int) -> Iterator[T]:
        file = self._file.fileno()
        while begin < end:
            size = int.from_bytes(os.pread(file, _SIZE_BYTES, begin), "big")
            begin += _SIZE_BYTES
            yield from pickle.loads(os.pread(file, size, begin))
            begin += size


class Ascending:
    """Numbers, in ascending order once all are in."""

    def __init__(self, held: int | None = None) -> None:
        self._most = held or HELD
        self._held: list[Number] = []
        self._runs: Runs[Number] = Runs()
        self._count = 0
        self._latest: Number = 0  # of those on disk
        self._overlap = False

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Number]:
        return chain(chain.from_iterable(self._runs), self._held)

    def add(self, value: Number) -> None:
        self._count += 1
        self._held.append(value)
        if len(self._held) == self._most:
            self._spill()

    def finish(self) -> None:
        """No more come. Runs lie one behind the other unless the numbers came in no order at all."""
        if self._held and self._runs:
            self._spill()
        self._held.sort()
        if self._overlap:
            ordered: Runs[Number] = Runs()
            ordered.write(merge(*self._runs))
            self._runs, self._overlap = ordered, False

    def _spill(self) -> None:
        self._held.sort()
        self._overlap |= bool(self._runs) and self._held[0] < self._latest
        self._latest = max(self._latest, self._held[-1]) if self._runs else self._held[-1]
        self._runs.write(self._held)
        self._held.clear()


class Firsts(Generic[K]):
    """Keys, each with the first value that came with it."""

    def __init__(self, held: int | None = None) -> None:
        self._most = held or HELD
        self._held: dict[K, int] = {}
        self._runs: Runs[tuple[K, int]] = Runs()

    def setdefault(self, key: K, value: int) -> int:
        """The first value that came with this key, as far as that is in memory."""
        if len(self._held) == self._most and key not in self._held:
            self._runs.write(sorted(self._held.items()))
            self._held.clear()
        return self._held.setdefault(key, value)

    @property
    def spilled(self) -> bool:
        """Whether some keys are not in memory, so that one may be held several times."""
        return len(self._runs) > 0

    def __iter__(self) -> Iterator[tuple[K, list[int]]]:
        """Each key once, with the values that it is held with, in the order in which they came."""
        if not self.spilled:
            return ((key, [value]) for key, value in self._held.items())
        by_key = itemgetter(0)
        items = merge(*self._runs, sorted(self._held.items()), key=by_key)
        return ((key, [value for _, value in same]) for key, same in groupby(items, by_key))


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = tempfile.tempdir or "the temporary directory"
        raise InputError(f"{where}: {error.strerror}: a trace this long needs room there (TMPDIR)") from None


def _compact(values: list[T]) -> list[T] | array[int]:
    """Integers of 64 bits take 8 bytes each."""
    try:
        return array("q", values)  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        return values
