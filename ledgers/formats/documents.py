"""JSON that is not one object per line: objects one behind the other, or in one array, each cut out whole.

A file streams by; what is held is one object, or one element of the array, and what was read beyond it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import BufferedReader
from typing import TypeVar

import msgspec

from ledgers.formats.fields import BOM, Written, located, shown

CHUNK_BYTES = 1 << 18
MAX_DOCUMENT_BYTES = 1 << 28
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
# A lone quote begins a string that ends beyond the bytes at hand.
_TOKEN = re.compile(rb'%b|["{}\[\]]' % _STRING, flags=re.DOTALL)
_NAMED = re.compile(rb'(%b)(\s*+:)?|["{}\[\]]' % _STRING, flags=re.DOTALL)
T = TypeVar("T")


def json_documents(file: BufferedReader, source: str, kind: type[T]) -> Iterator[tuple[int, T]]:
    """(line, object) of each object of a file. Numbers with a fraction stay text, so no digit is lost."""
    decoder = msgspec.json.Decoder(kind, float_hook=Written)
    for line, data in raw_documents(file, source):
        try:
            document = decoder.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise located(source, line, f"not a JSON object that can be read: {error}") from None
        yield line, document


def raw_documents(file: BufferedReader, source: str) -> Iterator[tuple[int, bytes]]:
    """(line, bytes) of each object or, in a file that is one array, of each element."""
    cutter = _Cutter(source)
    more = file.read(CHUNK_BYTES).removeprefix(BOM)
    while more:
        yield from cutter.cut(more)
        # As much again as is held: a long object is put together in few steps.
        more = file.read(max(CHUNK_BYTES, cutter.held_bytes))
    cutter.close()


class _Cutter:
    """Finds where objects begin and end by brackets and strings alone; a decoder sees what they are."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._data = b""  # from where the object at hand begins
        self._line = 1  # of its beginning
        self._looked = 0  # so many bytes of it have been looked through
        self._depth = 0
        self._top = 0  # the depth at which objects lie: 1 within an array

    @property
    def held_bytes(self) -> int:
        return len(self._data)

    def cut(self, more: bytes) -> Iterator[tuple[int, bytes]]:
        self._data += more
        data, begin, looked = self._data, 0, len(self._data)
        for token in _TOKEN.finditer(data, self._looked):
            mark = token[0]
            if mark == b'"':
                looked = token.start()
                break
            if mark in b"{[":
                if self._depth == self._top:
                    begin = self._skip_gap(data, begin, token.start())
                self._depth += 1
                if mark == b"[" and self._depth == 1:
                    self._top, begin = 1, token.end()
            elif mark in b"}]":
                self._depth -= 1
                if self._depth == self._top:
                    yield self._line, data[begin : token.end()]
                    begin = self._pass_over(data, begin, token.end())
                elif self._depth < self._top or self._depth < 0:
                    begin = self._end_array(data, begin, token)
        if self._depth == self._top:
            begin = self._skip_gap(data, begin, len(data))
        self._data, self._looked = data[begin:], looked - begin
        if len(self._data) > MAX_DOCUMENT_BYTES:
            raise located(self._source, self._line, f"a JSON value of over {MAX_DOCUMENT_BYTES:,} bytes")

    def close(self) -> None:
        """InputError if an object, or the array, is not complete."""
        if self._depth or self._data:
            raise located(self._source, self._line, "not JSON: the file ends within this value")

    def _end_array(self, data: bytes, begin: int, token: re.Match[bytes]) -> int:
        begin = self._skip_gap(data, begin, token.start())
        if self._depth < 0:
            raise located(self._source, self._line, f"not JSON: {shown(token[0].decode())} closes nothing")
        self._top = 0
        return token.end()

    def _skip_gap(self, data: bytes, begin: int, end: int) -> int:
        """Pass over what lies between objects. InputError if that is more than blanks and commas."""
        gap = data[begin:end]
        between = gap.lstrip(b" \t\r\n,")
        begin = self._pass_over(data, begin, end - len(between))
        if between:
            text = between[:100].partition(b"\n")[0].decode(errors="replace").rstrip()
            raise located(self._source, self._line, f"not a JSON object: {shown(text)}")
        return begin

    def _pass_over(self, data: bytes, begin: int, end: int) -> int:
        self._line += data.count(b"\n", begin, end)
        return end


def first_keys(head: bytes) -> list[str]:
    """The keys of the first object, as far as the first bytes of a file hold them; none if it is no JSON."""
    keys: list[str] = []
    if not head.lstrip().startswith((b"{", b"[")):
        return keys
    depth = inside = 0
    for token in _NAMED.finditer(head):
        mark = token[0][:1]
        if token[0] == b'"':
            break
        if mark in b"{[":
            depth += 1
            inside = inside or (depth if mark == b"{" else 0)
        elif mark in b"}]":
            depth -= 1
            if depth < inside:
                break
        elif token[2] and depth == inside:
            keys.append(token[1][1:-1].decode(errors="replace"))
    return keys
