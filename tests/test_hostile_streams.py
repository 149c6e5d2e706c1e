"""Streams that were damaged, or made to exhaust: one outcome, bounded work, bounded memory."""

from __future__ import annotations

import gzip
import time
import tracemalloc
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat

import pytest

from ledgers.rows import RequestRow
from loadgen.dialects import DIALECTS
from loadgen.recorder import Recorder
from tests.fuzz_streams import fuzz

MB = 1_000_000
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n%s\r\n"
STREAM = HEAD % (b"text/event-stream", b"")
PACKED = HEAD % (b"text/event-stream", b"Content-Encoding: gzip\r\n")
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"


def recorder(api: str = "chat", head: bytes = STREAM) -> Recorder:
    made = Recorder(RequestRow(id="R01", prompt_tokens=1, output_tokens=1, arrival_ns=0), DIALECTS[api]())
    made.connected()
    made.sent(0)
    made.feed(head, 1)
    return made


def fed(made: Recorder, pieces: Iterable[bytes]) -> RequestRow:
    for ns, piece in enumerate(pieces, 2):
        made.feed(piece, ns)
    made.lost(2**40, None)
    return made.row(0)


@contextmanager
def at_most(*, seconds: float = 20, megabytes: float | None = None) -> Iterator[None]:
    """The work may take so much; what grows with the square of these inputs takes minutes."""
    if megabytes is not None:
        tracemalloc.start()
    began = time.perf_counter()
    try:
        yield
        assert time.perf_counter() - began < seconds
        if megabytes is not None:
            assert tracemalloc.get_traced_memory()[1] < megabytes * MB
    finally:
        tracemalloc.stop()


def test_damaged_streams() -> None:
    """Thousands of streams with bytes flipped, cut, doubled, spliced, repacked: no exception, no odd row."""
    assert sum(fuzz(range(1, 3001)).values()) == 3000


def test_a_long_line_in_single_bytes() -> None:
    """Half a megabyte of one event, one byte per read."""
    line = b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % (b"x" * (MB // 2))
    with at_most(seconds=60):
        row = fed(recorder(), [*(bytes([byte]) for byte in line), DONE])
    assert (row.outcome, row.events) == ("completed", 1)


@pytest.mark.parametrize("blank", [b"\n", b" ", b"\r\n", b"\t\n"])
def test_blanks_before_an_answer_are_not_kept(blank: bytes) -> None:
    """A server that keeps a connection alive with blanks takes no memory, and the answer is read."""
    body = b'{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}'
    made = recorder(head=HEAD % (b"application/json", b""))
    with at_most(megabytes=0.5):
        row = fed(made, chain(repeat(blank, 10_000), repeat(blank * 200, 10_000), [body]))
    assert (row.outcome, row.streamed) == ("completed", False)


@pytest.mark.parametrize(
    "nothing", [b": keep-alive\n\n", b": keep-alive\n", b"\n", b"id: 1\n", b"event: ping\n\n"]
)
def test_what_says_nothing_adds_up_to_nothing(nothing: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comments for hours are neither kept nor counted as an event without an end."""
    monkeypatch.setattr("loadgen.recorder.MAX_HELD_BYTES", 1000)
    with at_most(megabytes=1):
        row = fed(recorder(), chain([TOKEN], repeat(nothing, 20_000), [TOKEN, DONE]))
    assert (row.outcome, row.events) == ("completed", 2)


def test_events_that_ended_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is on one event, not on the stream."""
    monkeypatch.setattr("loadgen.recorder.MAX_HELD_BYTES", 1000)
    event = TOKEN.replace(b",", b",\ndata: ")
    with at_most(megabytes=1):
        row = fed(recorder(), chain(repeat(event, 1000), repeat(b"id: 1\n" + TOKEN, 1000), [DONE]))
    assert (row.outcome, row.events) == ("completed", 2000)


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (STREAM, b"data: x"),
        (STREAM, b"data: x\n"),
        (STREAM, b"data\n"),
        (HEAD % (b"application/json", b""), b"{" + b" " * 20),
        (HEAD % (b"text/html", b""), b"<p>" * 100),
    ],
)
def test_what_never_ends_is_ended(head: bytes, piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event, or an answer, without an end fails the request before it fills the memory."""
    monkeypatch.setattr("loadgen.recorder.MAX_HELD_BYTES", 2 * MB)
    made = recorder(head=head)
    with at_most(megabytes=10):
        row = fed(made, repeat(piece * 10, 100_000))
    assert (row.outcome, row.error) == ("stream_error", "more than 1 MiB without an end")


def test_an_error_body_without_an_end_is_kept_in_part() -> None:
    """The beginning of an error says what there is to say."""
    made = recorder(head=b"HTTP/1.1 500 No\r\n\r\n")
    with at_most(megabytes=2):
        row = fed(made, repeat(b"sorry " * 1000, 10_000))
    assert row.outcome == "http_error"
    assert (row.error or "").startswith("HTTP 500: sorry")


def test_a_compression_bomb() -> None:
    """100 MB of zeros in 100 kB fail as they unfold, not after."""
    bomb = gzip.compress(b"data: " + bytes(100 * MB), 1)
    made = recorder(head=PACKED)
    with at_most(megabytes=200):
        row = fed(made, [bomb])
    assert (row.outcome, row.error) == ("stream_error", "more than 64 MiB without an end")


def test_an_event_with_hundreds_of_thousands_of_choices() -> None:
    """Each counts, in time that grows with their number."""
    choices = b",".join(b'{"index":%d,"delta":{"content":"x"}}' % number for number in range(100_000))
    with at_most(seconds=20):
        row = fed(recorder(), [b'data: {"choices":[%s]}\n\n' % choices, DONE])
    assert (row.outcome, row.choices, row.events) == ("completed", 100_000, 1)


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ("messages", b'{"content":[%s],"stop_reason":"end_turn"}'),
        ("responses", b'{"status":"completed","output":[{"type":"message","content":[%s]}]}'),
        ("chat", b'{"choices":[{"message":{"content":[%s]},"finish_reason":"stop"}]}'),
    ],
)
def test_an_answer_in_hundreds_of_thousands_of_parts(api: str, body: bytes) -> None:
    """The same for whole answers."""
    made = recorder(api, HEAD % (b"application/json", b""))
    with at_most(seconds=20):
        row = fed(made, [body % b",".join([b'{"type":"text","text":"x"}'] * 100_000)])
    assert row.outcome == "completed"


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000,
        b"HTTP/1.1 200 OK\r\n" + b"a:b\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * 100_000,
    ],
    ids=["interim responses", "headers", "digits of a length", "a chunk extension"],
)
def test_heads_without_an_end_and_lengths_without_sense(wire: bytes) -> None:
    """They end the request, and what still comes is dropped: the connection can be closed at once."""
    made = recorder(head=b"")
    with at_most(megabytes=5):
        row = fed(made, chain([wire], repeat(b"more\r\n" * 1000, 2000)))
    assert (row.outcome, made.drained, made.reusable) == ("stream_error", True, False)


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("members", [1, 3])
def test_a_packed_stream_is_read_as_it_unfolds(size: int, members: int) -> None:
    """Compression that nobody asked for, flushed after each event, in one member or in several."""
    packed, made = b"", recorder(head=PACKED)
    for _ in range(members):
        packer = zlib.compressobj(wbits=31)
        packed += packer.compress(TOKEN) + packer.flush(zlib.Z_SYNC_FLUSH)
        packed += packer.compress(TOKEN) + packer.flush()
    packed += gzip.compress(DONE)
    row = fed(made, [packed[at : at + size] for at in range(0, len(packed), size)])
    assert (row.outcome, row.events) == ("completed", 2 * members)
    assert row.first_token_ns is not None
    assert row.last_token_ns is not None
    assert size == 1000 or row.first_token_ns < row.last_token_ns


def test_a_packed_stream_that_breaks_off() -> None:
    """Half of it is truncated; damage is a failure that says so."""
    packed = gzip.compress(TOKEN * 2 + DONE)
    assert fed(recorder(head=PACKED), [packed[: len(packed) // 2]]).outcome in ("truncated", "empty")
    row = fed(recorder(head=PACKED), [packed[:10] + b"\xff" * 20])
    assert row.outcome == "stream_error"
    assert (row.error or "").startswith("malformed compression")
