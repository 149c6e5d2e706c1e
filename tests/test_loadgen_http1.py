"""The HTTP/1.1 response reader: framing from any cut of the bytes, and what it must refuse."""

from __future__ import annotations

import http.client
import io
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.http1 import MAX_HEAD_BYTES, ProtocolError, ResponseReader


def read(pieces: list[bytes]) -> tuple[ResponseReader, bytes]:
    reader = ResponseReader()
    return reader, b"".join(piece for data in pieces for piece in reader.feed(data))


def cut(stream: bytes, at: list[int]) -> list[bytes]:
    borders = [0, *sorted(border % (len(stream) + 1) for border in at), len(stream)]
    return [stream[start:end] for start, end in pairwise(borders)]


def chunked(chunks: list[bytes], extension: bytes = b"", trailer: bytes = b"") -> bytes:
    body = b"".join(b"%x%s\r\n%s\r\n" % (len(chunk), extension, chunk) for chunk in chunks if chunk)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n" + trailer + b"\r\n"


class _Socket:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self.data)


def standard_library(data: bytes) -> tuple[int, bytes]:
    """The same bytes as read by Python's own http.client."""
    response = http.client.HTTPResponse(_Socket(data))  # type: ignore[arg-type]
    response.begin()
    body = response.read()
    status = response.status
    response.close()
    return status, body


cuts = st.lists(st.integers(0, 100_000), max_size=10)


@given(st.lists(st.binary(max_size=60), max_size=8), cuts, st.sampled_from([b"", b";a=b", b" ;x"]))
def test_any_cut_of_a_chunked_response(chunks: list[bytes], at: list[int], extension: bytes) -> None:
    """Whatever the cut and the chunks, the body is what another implementation reads, and it is complete."""
    stream = chunked(chunks, extension, b"X-Trailer: 1\r\n")
    reader, body = read(cut(stream, at))
    assert (reader.status, body) == standard_library(stream)
    assert reader.complete
    assert reader.keep_alive


@given(st.binary(max_size=200), cuts)
def test_any_cut_of_a_counted_response(content: bytes, at: list[int]) -> None:
    """Content-Length frames exactly that many bytes."""
    stream = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(content), content)
    reader, body = read(cut(stream, at))
    assert (reader.status, body) == standard_library(stream)
    assert reader.complete
    assert reader.keep_alive


def test_single_bytes() -> None:
    """A response that arrives byte by byte is the same response."""
    stream = chunked([b"data: a\n\n", b"data: b\n\n"])
    reader, body = read([bytes([byte]) for byte in stream])
    assert body == b"data: a\n\ndata: b\n\n"
    assert reader.complete


def test_pieces_of_the_body_come_out_with_the_bytes_that_carried_them() -> None:
    """Nothing of a chunk is held back until the chunk is whole: a token is dated by its own bytes."""
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert reader.feed(b"a\r\n12345") == [b"12345"]
    assert reader.feed(b"67890\r\n") == [b"67890"]


def test_interim_responses_are_skipped() -> None:
    """100 and 103 come before the response; they are not it."""
    reader, body = read(
        [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
         b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"]
    )  # fmt: skip
    assert (reader.status, body, reader.headers) == (200, b"ok", {"content-length": "2"})


def test_a_close_delimited_body_ends_with_the_close() -> None:
    """Without framing the body lasts until the peer closes, and the connection is spent."""
    reader, body = read([b"HTTP/1.0 200 OK\r\n\r\nsome ", b"text"])
    assert (body, reader.complete) == (b"some text", False)
    assert reader.feed_eof()
    assert not reader.keep_alive


@pytest.mark.parametrize(
    "cut_short",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nTransfer-Enc",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfour",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfour\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfour\r\n0\r\n",
    ],
)
def test_a_missing_end_is_noticed(cut_short: bytes) -> None:
    """A close in the middle of a framed message is no end of it."""
    reader, _ = read([cut_short])
    assert not reader.feed_eof()


@pytest.mark.parametrize(
    ("head", "keep_alive"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: foo, Close\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: Keep-Alive\r\n\r\n", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nstray", False),
    ],
)
def test_when_a_connection_may_be_used_again(head: bytes, keep_alive: bool) -> None:
    """By version and Connection header, and never with stray bytes behind the message."""
    reader, _ = read([head])
    assert reader.complete
    assert reader.keep_alive is keep_alive


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/2 200\r\n",
        b"HTTP/1.1 2000 OK\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n",
        b"HTTP/1.1 200 OK\r\nbad name: x\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n going on with nothing\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 3_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * MAX_HEAD_BYTES,
        b"HTTP/1.1 200 OK\r\n" + b"X: aaaaaaaaaaaaa\r\n" * 5_000,
    ],
)
def test_what_is_no_response_is_refused(data: bytes) -> None:
    """Malformed or endless heads and chunks are errors, not guesses; nothing grows without bound."""
    with pytest.raises(ProtocolError):
        read([data])


def test_a_header_that_goes_on_on_the_next_line() -> None:
    """An old way of writing a long one: its lines are joined with blanks."""
    reader, _ = read([b"HTTP/1.1 200 OK\r\nX: a\r\n  b\r\n\tc \r\nContent-Length: 0\r\n\r\n"])
    assert reader.headers == {"x": "a b c", "content-length": "0"}


def test_nothing_is_read_after_a_fault() -> None:
    """What follows cannot be framed; it is neither body nor kept, and the message never gets an end."""
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    with pytest.raises(ProtocolError):
        reader.feed(b"3\r\nabc\r\njunk\r\n")
    assert reader.feed(b"3\r\ndef\r\n0\r\n\r\n") == []
    assert (reader.broken, reader.complete, reader.feed_eof()) == (True, False, False)


@pytest.mark.parametrize("piece", [b"SSH-2.0-OpenSSH", b"\x15\x03\x01", b"<html>", b"HTTX"])
def test_what_does_not_begin_as_http_is_refused_at_once(piece: bytes) -> None:
    """A line of another protocol may never end: nobody waits for it."""
    with pytest.raises(ProtocolError, match="not HTTP"):
        ResponseReader().feed(piece)


def test_a_status_line_may_come_byte_by_byte() -> None:
    """Its beginning alone is no fault."""
    reader, _ = read([bytes([byte]) for byte in b"HTTP/1.1 204 No Content\r\n\r\n"])
    assert (reader.status, reader.complete) == (204, True)
