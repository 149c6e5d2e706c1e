"""A file of lines, read while another process writes it."""

from __future__ import annotations

from pathlib import Path


class Tail:
    """Gives each whole line once. The file may not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0

    def lines(self) -> list[bytes]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._read_bytes)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return whole.splitlines()
