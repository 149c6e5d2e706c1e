"""Server-sent events from bytes, however they were cut. Pure: no clock, no socket.

The rules are those of WHATWG HTML, "Server-sent events": one leading BOM is dropped; lines end with CR LF, LF
or CR and with nothing else; one space after the colon belongs to the syntax; a block without a `data` line is
dropped; a block that no blank line has ended is discarded at the end of the stream. An event comes out of the
very read that completed it, so that whoever feeds the bytes can date it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"
_LINE_OVERHEAD = 48  # bytes of memory for a line that is kept apart
_LINE_END = re.compile(rb"\r\n|\n|\r")


class SseEvent(NamedTuple):
    """One dispatched event: its name ("" where none was given) and its `data` lines, joined with LF."""

    name: str
    data: bytes


class SseReader:
    """Feed it the bytes of a body in order; it gives back the events that each piece completed."""

    def __init__(self) -> None:
        self._partial = bytearray()  # the beginning of a line whose end has not come
        self._after_cr = False  # the last byte was a CR: an LF that follows belongs to it
        self._at_start = True
        self.between = False  # exactly at the end of an event
        self._name = b""
        self._data: list[bytes] = []
        self._data_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of an event that has not ended, each line counted with what holding it takes."""
        return len(self._partial) + self._data_bytes

    def feed(self, piece: bytes) -> list[SseEvent]:
        """The events completed by this piece, in order."""
        if (
            self.between
            and piece.startswith(b"data: ")
            and piece.endswith(b"\n\n")
            and piece.count(b"\n") == 2
            and b"\r" not in piece
        ):  # one whole event of one line, as nearly all are
            return [SseEvent("", piece[6:-2])]
        events: list[SseEvent] = []
        for line in self._lines(piece):
            if line:
                self._field(line)
            elif self._data or self._name:
                self._dispatch(events)
        self.between = not (self._partial or self._data or self._name or self._after_cr or self._at_start)
        return events

    def _lines(self, piece: bytes) -> list[bytes]:
        if self._after_cr and piece:
            self._after_cr = False
            piece = piece.removeprefix(b"\n")
        if self._at_start:
            piece = self._without_bom(piece)
        if b"\r" in piece:
            self._after_cr = piece.endswith(b"\r")
            lines = _LINE_END.split(piece)
        else:
            lines = piece.split(b"\n")
        rest = lines.pop()
        if lines and self._partial:
            self._partial += lines[0]
            lines[0] = bytes(self._partial)
            self._partial.clear()
        self._partial += rest
        return lines

    def _without_bom(self, piece: bytes) -> bytes:
        """Hold back the first bytes for as long as they may still turn out to be a BOM."""
        start = bytes(self._partial) + piece
        self._partial.clear()
        if len(start) < len(_BOM) and _BOM.startswith(start):
            self._partial += start
            return b""
        self._at_start = False
        return start.removeprefix(_BOM)

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._data_bytes += len(line) + _LINE_OVERHEAD
        elif name == b"event":
            self._name = value.removeprefix(b" ")
        elif name == b"error":  # not in the standard: older llama.cpp servers end with such a line
            self._name, self._data, self._data_bytes = name, [value.removeprefix(b" ")], len(line)

    def _dispatch(self, events: list[SseEvent]) -> None:
        if self._data:
            data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
            events.append(SseEvent(self._name.decode("utf-8", "replace") if self._name else "", data))
            self._data.clear()
            self._data_bytes = 0
        self._name = b""
