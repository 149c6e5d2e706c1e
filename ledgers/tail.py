"""A file of lines, read while another process writes it."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

_MOST_BYTES = 1 << 23  # at a time: the rest comes with the next look


class Tail:
    """Gives each whole line once. The file need not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._half = b""

    def lines(self) -> list[bytes]:
        """Those since the last look, without their ends."""
        *whole, self._half = (self._half + self._more()).split(b"\n")
        return whole

    def _more(self) -> bytes:
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                weakref.finalize(self, os.close, self._file)
            return os.read(self._file, _MOST_BYTES)
        except OSError:
            return b""
