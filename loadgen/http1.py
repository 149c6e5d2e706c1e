"""An HTTP/1.1 response from bytes, however they were cut (RFC 9112). Pure: no clock, no socket.

It frames; it does not judge: which status is a failure is the recorder's matter. What cannot be framed raises
ProtocolError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

MAX_HEAD_BYTES = 65_536
MOST_QUOTED = 1_000  # more than is shown: it is scrubbed before it is cut
_PROTOCOL = b"HTTP/"
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: .*)?")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")
_BLANK = b" \t"
_LENGTH = re.compile(r"[0-9]{1,18}")
_FIELD_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class ProtocolError(Exception):
    """The bytes are no HTTP/1.1 response. `body` is what the same piece held before the fault."""

    body: Sequence[bytes] = ()


_Step = Callable[["ResponseReader", list[bytes]], bool]


class ResponseReader:
    """Feed it what the socket gave; it gives back the body in pieces, without the framing."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.head_complete = False
        self.complete = False
        self.broken = False  # a fault was raised; nothing that follows can be framed
        self.keep_alive = False  # meaningful once complete
        self._buffer = b""
        self._at = 0  # what of the buffer has been taken
        self._left = 0  # body or chunk bytes still to come
        self._head_bytes = 0
        self._last_key = ""
        self._minor = 1
        self._step: _Step = ResponseReader._status_line

    @property
    def started(self) -> bool:
        """Whether any byte of a response has come."""
        return self.broken or self.status is not None or self._head_bytes > 0 or bool(self._buffer)

    @property
    def between_chunks(self) -> bool:
        """Whether the next byte begins a chunk."""
        return self._step is ResponseReader._chunk_size and self._at == len(self._buffer)

    def first_part(self, data: bytes) -> int:
        """How much of the data is the rest of the head, or one chunk; all of it if that cannot be told."""
        if self.between_chunks:
            match = _CHUNK_LINE.match(data)
            return match.end() + int(match[1], 16) + 2 if match else len(data)
        end = -1 if self.head_complete else data.find(b"\r\n\r\n")
        return end + 4 if end >= 0 else len(data)

    def feed(self, data: bytes) -> list[bytes]:
        """The body bytes in this piece. Bytes after the end of the message make the connection unusable."""
        if self.between_chunks:
            # A token is nearly always one chunk in one read; taking it whole halves the cost of framing.
            match = _CHUNK_LINE.match(data)
            if match and match.end() + int(match[1], 16) + 2 == len(data) and data.endswith(b"\r\n"):
                content = data[match.end() : -2]
                if content:
                    return [content]
        body: list[bytes] = []
        if self.complete or self.broken:
            self.keep_alive = self.keep_alive and not data
            return body
        self._buffer = self._buffer[self._at :] + data if self._at < len(self._buffer) else data
        self._at = 0
        try:
            while not self.complete and self._step(self, body):
                pass
        except ProtocolError as error:
            self.broken, self._buffer, error.body = True, b"", body
            self._step = ResponseReader._status_line
            raise
        if self.complete:
            self.keep_alive = self.keep_alive and self._at == len(self._buffer)
            self._buffer = b""
        return body

    def feed_eof(self) -> bool:
        """The peer closed. True if the message was whole: it had ended, or its end is the close."""
        if self._step is ResponseReader._until_close:
            self.complete = True
        return self.complete

    # Each step takes what it can from the buffer; False means that it needs more bytes.

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\n", self._at)
        length = (end if end >= 0 else len(self._buffer)) - self._at
        if length + self._head_bytes > MAX_HEAD_BYTES:
            raise ProtocolError(f"more than {MAX_HEAD_BYTES} bytes of headers")
        if end < 0:
            return None
        line = self._buffer[self._at : end]
        self._at = end + 1
        self._head_bytes += length + 1
        return line.removesuffix(b"\r")

    def _status_line(self, body: list[bytes]) -> bool:
        begins = self._buffer[self._at : self._at + len(_PROTOCOL)]
        if not _PROTOCOL.startswith(begins):  # nor wait for the end of the line: it may never come
            raise ProtocolError("the answer is not HTTP")
        line = self._line()
        if line is None:
            return False
        match = _STATUS_LINE.fullmatch(line)
        if not match:
            raise ProtocolError(f"not an HTTP/1 status line: {line[:MOST_QUOTED]!r}")
        self._minor = int(match[1])
        self.status = int(match[2])
        self.headers, self._last_key = {}, ""
        self._step = ResponseReader._header
        return True

    def _header(self, body: list[bytes]) -> bool:
        line = self._line()
        if line is None:
            return False
        if not line:
            self._head_done()
            return True
        if line[:1] in (b" ", b"\t") and self._last_key:  # an old way of going on on the next line
            self.headers[self._last_key] += f" {line.strip(_BLANK).decode('latin-1')}"
            return True
        name, colon, value = line.partition(b":")
        if not colon or not _FIELD_NAME.fullmatch(name):
            raise ProtocolError(f"malformed header line: {line[:MOST_QUOTED]!r}")
        key, text = name.decode("ascii").lower(), value.strip(_BLANK).decode("latin-1")
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text
        self._last_key = key
        return True

    def _head_done(self) -> None:
        status = self.status or 0
        if status == 101:
            raise ProtocolError("the server switched protocols (101)")
        if status < 200:  # an interim response; the real one follows, and an endless row of them adds up
            self.status = None
            self._step = ResponseReader._status_line
            return
        self._head_bytes = 0
        self.head_complete = True
        connection = {token.strip().lower() for token in self.headers.get("connection", "").split(",")}
        self.keep_alive = "close" not in connection and (self._minor == 1 or "keep-alive" in connection)
        self._choose_framing(status)

    def _choose_framing(self, status: int) -> None:
        coding = self.headers.get("transfer-encoding")
        if status in (204, 304):
            self.complete = True
        elif coding is not None:
            chunked = coding.rpartition(",")[2].strip().lower() == "chunked"
            self._step = ResponseReader._chunk_size if chunked else ResponseReader._until_close
        elif "content-length" in self.headers:
            self._left = _content_length(self.headers["content-length"])
            self._step = ResponseReader._counted
            self.complete = self._left == 0
        else:
            self._step = ResponseReader._until_close
        if self._step is ResponseReader._until_close:
            self.keep_alive = False

    def _counted(self, body: list[bytes]) -> bool:
        if not self._take(body):
            return False
        self.complete = True
        return True

    def _until_close(self, body: list[bytes]) -> bool:
        self._left = len(self._buffer)
        self._take(body)
        return False

    def _chunk_size(self, body: list[bytes]) -> bool:
        line = self._line()
        if line is None:
            return False
        match = _CHUNK_SIZE.fullmatch(line)
        if not match:
            raise ProtocolError(f"malformed chunk size: {line[:MOST_QUOTED]!r}")
        self._head_bytes = 0
        self._left = int(match[1], 16)
        self._step = ResponseReader._chunk_data if self._left else ResponseReader._trailer
        return True

    def _chunk_data(self, body: list[bytes]) -> bool:
        if not self._take(body):
            return False
        self._step = ResponseReader._chunk_end
        return True

    def _chunk_end(self, body: list[bytes]) -> bool:
        rest = self._buffer[self._at : self._at + 2]
        if rest in (b"", b"\r"):
            return False
        if rest != b"\r\n" and rest[:1] != b"\n":
            raise ProtocolError("a chunk is longer than its size")
        self._at += 2 if rest == b"\r\n" else 1
        self._step = ResponseReader._chunk_size
        return True

    def _trailer(self, body: list[bytes]) -> bool:
        line = self._line()
        self.complete = line == b""
        return line is not None

    def _take(self, body: list[bytes]) -> bool:
        """Move up to `_left` bytes from the buffer to the body; True when all of them have come."""
        taken = self._buffer[self._at : self._at + self._left]
        if taken:
            body.append(taken)
            self._at += len(taken)
            self._left -= len(taken)
        return self._left == 0


def _content_length(value: str) -> int:
    lengths = {part.strip() for part in value.split(",")}
    length = lengths.pop()
    if lengths or not _LENGTH.fullmatch(length):
        raise ProtocolError(f"malformed Content-Length: {value[:MOST_QUOTED]!r}")
    return int(length)
