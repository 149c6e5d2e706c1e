"""The SSE reader against the standard's rules, and against a slow second reading of them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadgen.sse import SseEvent, SseReader


def read(pieces: list[bytes]) -> list[SseEvent]:
    reader = SseReader()
    return [event for piece in pieces for event in reader.feed(piece)]


def reference(stream: bytes) -> list[SseEvent]:
    """WHATWG HTML 9.2.5 and 9.2.6 word by word, over the whole stream at once, a byte at a time."""
    if stream[:3] == b"\xef\xbb\xbf":
        stream = stream[3:]
    lines, line, position = [], bytearray(), 0
    while position < len(stream):
        byte = stream[position]
        position += 1
        if byte not in (13, 10):
            line.append(byte)
            continue
        if byte == 13 and position < len(stream) and stream[position] == 10:
            position += 1
        lines.append(bytes(line))
        line.clear()
    events, name, data, any_data = [], b"", bytearray(), False
    for text in lines:
        if text == b"":
            if any_data:
                events.append(SseEvent(name.decode("utf-8", "replace"), bytes(data[:-1])))
            name, data, any_data = b"", bytearray(), False
            continue
        if text[0] == ord(":"):
            continue
        field, value = text, b""
        if b":" in text:
            at = text.index(b":")
            field, value = text[:at], text[at + 1 :]
            if value[:1] == b" ":
                value = value[1:]
        if field == b"data":
            data += value + b"\n"
            any_data = True
        if field == b"event":
            name = value
    return events


def cut(stream: bytes, at: list[int]) -> list[bytes]:
    borders = [0, *sorted(border % (len(stream) + 1) for border in at), len(stream)]
    return [stream[start:end] for start, end in pairwise(borders)]


fields = [b"data: x", b"data:y", b"data", b"data:", b"data:  two", b"event: error", b"event:", b"id: 7"]
others = [b"retry: 5", b": ping", b":", b"datax: no", b" data: no", b"[DONE]", b"\xef\xbb\xbf"]
ends = [b"\r", b"\n", b"\r\n", b"\n\n", b"\r\r", b"\r\n\r\n"]
no_ends = ["\u2028".encode(), "\u0085".encode(), "é".encode(), b"\x0b", b"\x0c", b"\xff"]
fragments = st.sampled_from([*fields, *others, *ends, *no_ends])
streams = st.lists(fragments | st.binary(max_size=3), max_size=30).map(b"".join)


@given(streams, st.lists(st.integers(0, 10_000), max_size=12))
@example(b"\xef\xbb\xbfdata: a\r\n\r\n", [1, 2])
@example(b"data: a\r\n\r\ndata: b\r\r", [8, 9, 10])
def test_any_cut_gives_what_the_standard_says(stream: bytes, at: list[int]) -> None:
    """However the bytes are cut, the events are those of a byte-by-byte reading of the whole."""
    assert read(cut(stream, at)) == reference(stream)


@given(streams)
def test_one_byte_at_a_time(stream: bytes) -> None:
    """Single bytes, the worst cut of all, give the same events."""
    assert read([bytes([byte]) for byte in stream]) == reference(stream)


@pytest.mark.parametrize(
    ("stream", "datas"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data: a\r\n\r\n", [b"a"]),
        (b"data: a\r\r", [b"a"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data\n\n", [b""]),
        (b": OPENROUTER PROCESSING\n\n", []),
        (b"event: error\n\n", []),
        (b"id: 1\nretry: 3\n\n", []),
        ("data: a\u2028b\u2029c\u0085d\x0be\n\n".encode(), ["a\u2028b\u2029c\u0085d\x0be".encode()]),
        ("data: a\u2028b\u2029c\u0085d\x0be\r\r".encode(), ["a\u2028b\u2029c\u0085d\x0be".encode()]),
        (b"data: whole but unfinished\n", []),
        (b"data: whole\n\ndata: cut", [b"whole"]),
    ],
)
def test_rules_by_hand(stream: bytes, datas: list[bytes]) -> None:
    """Each rule of the standard, as a stream and the data it must give."""
    assert [event.data for event in read([stream])] == datas


def test_an_event_comes_out_of_the_read_that_completed_it() -> None:
    """The blank line dates an event: neither the read before it nor the LF of a split CR LF does."""
    reader = SseReader()
    assert reader.feed(b"data: a\r\n") == []
    assert [event.data for event in reader.feed(b"\r")] == [b"a"]
    assert reader.feed(b"\n") == []
    assert [event.data for event in reader.feed(b"data: b\n\n")] == [b"b"]


def test_the_name_of_an_event_does_not_stick() -> None:
    """`event: error` names one event, not those after it."""
    assert read([b"event: error\ndata: 1\n\ndata: 2\n\n"]) == [SseEvent("error", b"1"), SseEvent("", b"2")]


def test_a_large_event_in_small_pieces_is_read_in_linear_time() -> None:
    """5 MB in pieces of 100 bytes is one event; quadratic copying would take minutes."""
    piece = b"x" * 100
    events = read([b"data: ", *[piece] * 50_000, b"\n\n"])
    assert [len(event.data) for event in events] == [5_000_000]
