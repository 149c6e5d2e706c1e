"""What a long trace has too much of for memory: it goes to an anonymous temporary file.

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
from itertools import chain, islice
from typing import Any, Generic, TypeVar

from ledgers.errors import InputError

HELD = 1 << 18  # of ids 35 MB
PARTS = 251  # of the keys on disk; a prime, so that keys with steps between them fall in all
_AT_ONCE = 512  # values of each run in memory, while runs are merged
_SIZE_BYTES = 8
Number = int | Fraction
K = TypeVar("K", int, str)


class _Spill:
    """Values on disk, one behind the other."""

    def __init__(self) -> None:
        self._file: Any = None
        self.end = 0

    def append(self, *values: Any) -> None:
        framed = _framed(pickle.dumps(values, pickle.HIGHEST_PROTOCOL))
        with _told():
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - open as long as this is
                weakref.finalize(self, self._file.close)
            self.end += len(framed)
            while framed:  # a file that is nearly full takes a part
                framed = framed[self._file.write(framed) :]

    def read(self, place: int) -> tuple[Any, int]:
        """What was appended there, and where the next lies."""
        file = self._file.fileno()
        begin = place + _SIZE_BYTES
        end = begin + int.from_bytes(os.pread(file, _SIZE_BYTES, place), "big")
        return pickle.loads(os.pread(file, end - begin, begin)), end


class Ascending:
    """Numbers, in ascending order once all are in."""

    def __init__(self, held: int | None = None) -> None:
        self._most = held or HELD
        self._held: list[Number] = []
        self._disk = _Spill()
        self._runs: list[tuple[int, int]] = []  # where on disk each begins and ends
        self._count = 0
        self._latest: Number = 0  # of those on disk
        self._overlap = False

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Number]:
        return chain(chain.from_iterable(self._sorted_runs()), self._held)

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
            runs, self._disk = self._sorted_runs(), _Spill()
            self._runs, self._overlap = [self._write(merge(*runs))], False

    def _spill(self) -> None:
        self._held.sort()
        self._overlap |= bool(self._runs) and self._held[0] < self._latest
        self._latest = max(self._latest, self._held[-1]) if self._runs else self._held[-1]
        self._runs.append(self._write(self._held))
        self._held.clear()

    def _write(self, run: Iterable[Number]) -> tuple[int, int]:
        begin, rest = self._disk.end, iter(run)
        while some := list(islice(rest, _AT_ONCE)):
            self._disk.append(_compact(some))
        return begin, self._disk.end

    def _sorted_runs(self) -> list[Iterator[Number]]:
        return [_read(self._disk, *run) for run in self._runs]


def _read(disk: _Spill, begin: int, end: int) -> Iterator[Number]:
    while begin < end:
        (some,), begin = disk.read(begin)
        yield from some


class Firsts(Generic[K]):
    """Keys, each with the first value that came with it; on disk in parts, each of which fits in memory."""

    def __init__(self, held: int | None = None) -> None:
        self._most = held or HELD
        self._held: dict[K, int] = {}
        self._disk = _Spill()
        self._places: list[array[int]] = []  # of each part, where what it holds lies
        self._on_disk = 0

    def setdefault(self, key: K, value: int) -> int:
        """The first value that came with this key, as far as that is in memory."""
        if len(self._held) >= self._most and key not in self._held:
            self._spill()
        return self._held.setdefault(key, value)

    def setdefaults(self, keys: Iterable[K], value: int) -> None:
        """The same for some keys at once."""
        held = self._held
        for key in keys:
            if key not in held:
                held[key] = value
        if len(held) >= self._most:
            self._spill()

    def parts(self) -> Iterator[dict[K, int]]:
        """Each key once, with the first value of all."""
        for part in self._pieces():
            firsts: dict[K, int] = {}
            for keys, values in reversed(part):
                firsts.update(zip(keys, values, strict=True))
            yield firsts

    def again(self) -> Iterator[tuple[K, int, int]]:
        """(key, first value, another) of keys that came with several, on disk or from disk to memory."""
        for part in self._pieces() if self._on_disk else ():
            firsts: dict[K, int] = {}
            for keys, values in part:
                for key, value in zip(keys, values, strict=True):
                    if (first := firsts.setdefault(key, value)) != value:
                        yield key, first, value

    def _pieces(self) -> Iterator[list[tuple[Iterable[K], Iterable[int]]]]:
        """Of each part, its keys and their values as they came."""
        if not self._on_disk:
            yield [(self._held.keys(), self._held.values())]
            return
        self._spill()
        for places in self._places:
            yield [self._disk.read(place)[0] for place in places]

    def _spill(self) -> None:
        self._on_disk += len(self._held)
        self._places = self._places or [array("q") for _ in range(PARTS)]
        parts: list[tuple[list[K], list[int]]] = [([], []) for _ in range(PARTS)]
        for key, value in self._held.items():
            keys, values = parts[hash(key) % PARTS]
            keys.append(key)
            values.append(value)
        for places, (keys, values) in zip(self._places, parts, strict=True):
            if keys:
                places.append(self._disk.end)
                self._disk.append(_compact(keys), _compact(values))
        self._held.clear()


def _framed(data: bytes) -> memoryview:
    """With its size in front."""
    return memoryview(len(data).to_bytes(_SIZE_BYTES, "big") + data)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = tempfile.tempdir or "the temporary directory"
        raise InputError(f"{where}: {error.strerror}: a trace this long needs room there (TMPDIR)") from None


def _compact(values: list[Any]) -> list[Any] | array[int]:
    """Integers of 64 bits take 8 bytes each."""
    try:
        return array("q", values)
    except (TypeError, OverflowError):
        return values
