"""A directory of files as one: those of session traces, which have a file for each session.

Files come in order of their names, each from its own line on. One is open at a time.
"""

from __future__ import annotations

from io import FileIO, RawIOBase
from pathlib import Path
from typing import Any

from ledgers.formats.fields import BOM, Files

SUFFIXES = (".json", ".jsonl")


def trace_files(directory: str) -> Files | None:
    """Those that are joined; None where there are none."""
    paths = [path for path in Path(directory).iterdir() if path.suffix in SUFFIXES and path.is_file()]
    return Files(directory, [str(path) for path in sorted(paths)]) if paths else None


class Joined(RawIOBase):
    """All bytes of the files, each ended by a newline; says in `source` where each begins."""

    def __init__(self, source: Files) -> None:
        self._rest = iter(source.paths)
        self._source = source
        self._file: FileIO | None = None
        self._line = 0  # complete ones so far
        self._ended = True  # by a newline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """All that is asked for, as a head is peeked at once."""
        view, count = memoryview(buffer), 0
        while count < len(view) and (data := self._more(len(view) - count)):
            view[count : count + len(data)] = data
            count += len(data)
        return count

    def _more(self, most: int) -> bytes:
        """Up to so many bytes; none once all files are read."""
        while self._file is not None or self._open():
            assert self._file is not None
            if data := self._file.read(most):
                self._line += data.count(b"\n")
                self._ended = data.endswith(b"\n")
                return data
            self._file.close()
            self._file = None
            if not self._ended:
                self._line, self._ended = self._line + 1, True
                return b"\n"
        return b""

    def _open(self) -> bool:
        """Whether there is one more file."""
        path = next(self._rest, None)
        if path is None:
            return False
        self._source.begins.append(self._line)
        self._file = FileIO(path)
        if self._file.read(len(BOM)) != BOM:
            self._file.seek(0)
        return True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()
