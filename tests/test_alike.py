"""Events that are read without parsing them again: the same rows come out as by parsing every one."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgers.rows import RequestRow
from loadgen.alike import Alike
from loadgen.dialects import DIALECTS
from loadgen.dialects.dialect import Dialect, Output, Reading
from loadgen.recorder import Recorder
from loadgen.sse import SseEvent
from loadgen.token_times import ReadCounts

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
WORDS = (
    "stop",
    "chat",
    "content",
    "text",
    "a",
    " b",
    "7",
    "é",
    "日本",
    "x" * 300,
    "\n",
    '"',
    "\\",
    "\x7f",
    "",
    "{}",
)


def chunk(content: bytes, size: str = "%x") -> bytes:
    return (size % len(content)).encode() + b"\r\n" + content + b"\r\n"


def chat_event(text: str, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return _event({"id": "chat", "object": "x", "model": "a", "choices": [choice], **more})


def _event(content: Any, *, ascii_only: bool = False, name: bytes = b"") -> bytes:
    return name + b"data: " + json.dumps(content, ensure_ascii=ascii_only).encode() + b"\n\n"


texts = st.sampled_from(WORDS) | st.text(max_size=6)
events = st.one_of(
    st.builds(chat_event, texts),
    st.builds(chat_event, texts, id=texts),  # a field beside the text that changes
    st.builds(chat_event, texts, choices=st.just([])),
    st.builds(lambda text: _event({"choices": [{"text": text}]}, ascii_only=True), texts),
    st.builds(lambda text: _event({"choices": [{"index": 1, "delta": {"content": text}}]}), texts),
    st.builds(lambda text: _event({"choices": [{"delta": {"reasoning": text}}]}), texts),
    st.builds(lambda text: _event({"choices": [{"delta": {"content": text, "role": text}}]}), texts),
    st.builds(lambda count: chat_event("a", usage={"completion_tokens": count}), st.integers(0, 9)),
    st.sampled_from(
        [
            b": ping\n\n",
            b"data: [DONE]\n\n",
            b"data: {\n\n",
            b"event: message\n",
            b"\xef\xbb\xbf" + chat_event("a"),
            chat_event("a").replace(b'"a"}', b'"\xff"}'),
            chat_event("a").replace(b'"a"}', b'"\t"}'),
            chat_event("a") + chat_event("b"),
            chat_event("a")[:-1],
            chat_event("a").replace(b"\n\n", b"\r\n\r\n"),
            b"event: error\n" + chat_event("a"),
        ]
    ),
)
sizes = st.sampled_from(["%x", "%x", "%x", "%X", "%04x", "0x%x", "%x;name=value", " %x", "%d"])
chunks = st.builds(chunk, events, sizes)


def read(pieces: list[bytes], api: str) -> tuple[RequestRow, int, int]:
    """What a recorder makes of the pieces of a stream, which come a millisecond apart."""
    counts = ReadCounts()
    planned = RequestRow(id="a", prompt_tokens=1, output_tokens=1, arrival_ns=0)
    recorder = Recorder(planned, DIALECTS[api](), record_text=True, counts=counts)
    recorder.connected()
    recorder.sent(0)
    for number, piece in enumerate(pieces):
        recorder.feed(piece, number * 1_000_000)
    recorder.lost(len(pieces) * 1_000_000, None)
    return recorder.row(0, record_tokens=True), counts.reads, counts.with_several_events


def read_parsing_all(pieces: list[bytes], api: str) -> tuple[RequestRow, int, int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("loadgen.recorder._LESSONS", 0)
        return read(pieces, api)


@given(
    stream=st.lists(st.lists(chunks, min_size=1, max_size=4), max_size=8),
    again=st.integers(1, 3),
    cuts=st.lists(st.integers(0, 2_000), max_size=4),
    api=st.sampled_from(["chat", "completions"]),
)
def test_a_stream_reads_the_same_as_when_every_event_is_parsed(
    stream: list[list[bytes]], again: int, cuts: list[int], api: str
) -> None:
    """Whatever changes from event to event, however they are framed and cut."""
    pieces = [HEAD, *(b"".join(group) for group in stream * again)]
    if cuts:
        whole = b"".join(pieces)
        bounds = [0, *sorted(cuts), len(whole)]
        pieces = [whole[a:b] for a, b in pairwise(bounds)]
    assert read(pieces, api) == read_parsing_all(pieces, api)


@pytest.mark.parametrize("size", ["0x%x", "%d", "%x1", " %x", "-%x", "+%x", "", "%x;name=value", "0%X"])
def test_a_chunk_of_another_size_is_not_alike(size: str) -> None:
    """After many chunks that were right one says a wrong size, or says it in another way."""
    right = [chunk(chat_event(" a")) for _ in range(5)]
    content = chat_event(" b")
    odd = (size % len(content) if "%" in size else size).encode() + b"\r\n" + content + b"\r\n"
    pieces = [HEAD, *right, odd, *right]
    assert read(pieces, "chat") == read_parsing_all(pieces, "chat")


@pytest.mark.parametrize("together", [1, 10])
def test_most_events_of_a_plain_stream_are_not_parsed(monkeypatch: pytest.MonkeyPatch, together: int) -> None:
    """Of 100 events that come one by one, or 10 in a read, at most three are parsed."""
    parsed = []
    dialect = DIALECTS["chat"]
    read_event = dialect.read_event

    def counted(self: Dialect, event: SseEvent) -> Reading:
        parsed.append(event)
        return read_event(self, event)

    monkeypatch.setattr(dialect, "read_event", counted)
    chunks = [chunk(chat_event(f" {number}")) for number in range(100)]
    row, *_ = read([HEAD, *(b"".join(chunks[at : at + together]) for at in range(0, 100, together))], "chat")
    assert (row.events, row.text) == (100, "".join(f" {number}" for number in range(100)))
    assert len(parsed) <= 3


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b'{"a":"x","b":"x"}', "x"),  # which of them was it?
        (b'{"x":"y"}', "z"),
        (b'{"a":"\\u00e9"}', "é"),
        (b'{"a":""}', ""),
    ],
)
def test_nothing_is_learned_where_the_text_cannot_be_told(content: bytes, text: str) -> None:
    """The text must stand in the event once, as it is."""
    assert Alike.of(chunk(content), Output(0, "text", text)) is None


def test_what_follows_the_chunks_that_are_alike_is_left() -> None:
    """Two alike, then one of another model: the first two are taken."""
    first, second, third = (
        chunk(b'{"m":"%s","t":"%s"}' % pair) for pair in ((b"A", b"x"), (b"A", b"yy"), (b"B", b"z"))
    )
    alike = Alike.of(first, Output(0, "text", "x"))
    assert alike is not None
    assert alike.texts(first + second + third) == ([b"x", b"yy"], len(first + second))
    assert alike.texts(third) == ([], 0)
