"""What a long trace looks up again: the last value of each key, in a table on disk where keys are too many.

InputError if the disk cannot take it.
"""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from ledgers import spilling
from ledgers.errors import InputError

if TYPE_CHECKING:
    from sqlite3 import Connection

T = TypeVar("T")
# The table is a temporary file of this process alone: it need not outlive a crash.
_SETUP = (
    "PRAGMA journal_mode = OFF",
    "PRAGMA synchronous = OFF",
    "CREATE TABLE kept (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID",
)


class Kept(Generic[T]):
    """Up to as many keys as `spilling` holds are in memory, those set last."""

    def __init__(self, held: int | None = None) -> None:
        self._most = held or spilling.HELD
        self._held: dict[str, T] = {}
        self._table: Connection | None = None

    def __setitem__(self, key: str, value: T) -> None:
        if len(self._held) == self._most and key not in self._held:
            self._spill()
        self._held[key] = value

    def get(self, key: str) -> T | None:
        """None if the key was never set."""
        value = self._held.get(key)
        if value is not None or self._table is None:
            return value
        with _told():
            found = self._table.execute("SELECT value FROM kept WHERE key = ?", (key,)).fetchone()
        return pickle.loads(found[0]) if found else None

    def _spill(self) -> None:
        rows = [(key, pickle.dumps(self._held[key])) for key in sorted(self._held)]
        with _told():
            if self._table is None:
                self._table = _opened()
                weakref.finalize(self, self._table.close)
            with self._table:
                self._table.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?)", rows)
        self._held.clear()


@contextmanager
def _told() -> Iterator[None]:
    import sqlite3  # most traces never need it

    try:
        yield
    except sqlite3.Error as error:
        raise InputError(f"temporary table: {error}: a trace this long needs room on disk (TMPDIR)") from None


def _opened() -> Connection:
    import sqlite3

    table = sqlite3.connect("", check_same_thread=False)  # in the temporary directory; gone when it is closed
    for statement in _SETUP:
        table.execute(statement)
    return table
