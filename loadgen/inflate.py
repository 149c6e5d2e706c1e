"""A compressed body from pieces, in steps of bounded size, however well it was packed. Pure.

It was not asked for, but some gateways do not ask.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

CODINGS = frozenset({"gzip", "x-gzip", "deflate"})
_GZIP_OR_ZLIB = 47  # zlib's window bits for "find out which"
_STEP_BYTES = 1 << 20


class Inflater:
    """Feed it the pieces in order. What is no such compression raises zlib.error."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(_GZIP_OR_ZLIB)

    def feed(self, piece: bytes) -> Iterator[bytes]:
        while piece:
            if self._zlib.eof:  # gzip allows several members in a row
                self._zlib = zlib.decompressobj(_GZIP_OR_ZLIB)
            inflated = self._zlib.decompress(piece, _STEP_BYTES)
            if inflated:
                yield inflated
            piece = self._zlib.unused_data if self._zlib.eof else self._zlib.unconsumed_tail
