"""Faulty answers tick by tick, without a server: what is sent before a fault, and what its row says."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any, TypeVar, cast

import pytest

from ledgers.rows import RequestRow
from ledgers.settings import SchedulerSettings
from mock_server.engine import Job
from mock_server.faults import parse_fault
from mock_server.faulty import Faulty, FaultyAnswer, FaultyEncoder, FaultyStream
from mock_server.openai import Generation, parse
from mock_server.sse import StreamEncoder, Style, words
from tests.test_engine import TICK_NS, World

SETUP = SchedulerSettings(policy="chunked")
OUTPUT = 9
_Sink = TypeVar("_Sink", bound=Faulty)


class Wire:
    """Stands for a transport and its socket, and takes everything."""

    def __init__(self) -> None:
        self.data = b""

    def get_extra_info(self, name: str) -> Wire:
        return self

    def fileno(self) -> int:
        return -1

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.data += data

    @property
    def text(self) -> str:
        """Of all the events so far that are whole and right."""
        events = [event.removeprefix(b"data: ") for event in self.data.split(b"\n\n")]
        return "".join(
            json.loads(event)["choices"][0]["text"] for event in events if event.startswith(b'{"id')
        )


class Faults(World):
    """An engine with one stream or answer that has a fault, on a clock moved by hand."""

    def __init__(self) -> None:
        super().__init__(SETUP)
        self.wire = Wire()

    def hand_over(self, writes: list[tuple[int, bytes]]) -> list[tuple[int, int]]:
        for _, data in writes:
            self.wire.write(data)
        return super().hand_over(writes)

    def stream(self, word: str, per_event: int = 1, **body: Any) -> FaultyStream:
        asked = generation(**body)
        encoder = FaultyEncoder(
            parse_fault(word), asked, "id", 1, Style(tokens_per_chunk=per_event), chunked=False
        )
        return self._add(FaultyStream(cast(asyncio.Transport, self.wire), encoder, parse_fault(word)), asked)

    def answer(self, word: str, **body: Any) -> FaultyAnswer:
        return self._add(FaultyAnswer(parse_fault(word)), generation(stream=False, **body))

    def _add(self, sink: _Sink, asked: Generation) -> _Sink:
        self.job = Job(None, 1, asked.output_tokens, sink, streamed=asked.stream)
        sink.mark = partial(setattr, self.job, "fault", sink.fault.word)
        sink.leave = partial(self.engine.cancel, self.job, in_tick=True)
        self.engine.submit(self.job)
        return sink

    def row(self) -> RequestRow:
        """Of the request, which has ended; a simulation of what was received must have the same."""
        self.run_out()
        (served,) = self.rows
        ((again,), _) = self.resimulate()
        for name in ("outcome", "error", "fault", "tokens", "ticks"):
            assert getattr(again, name) == getattr(served, name)
        return served


def generation(**body: Any) -> Generation:
    fields = {"prompt": "time", "max_tokens": OUTPUT, "stream": True, **body}
    return parse("completions", json.dumps(fields).encode(), 16)


@pytest.mark.parametrize("per_event", [1, 2, 4])
@pytest.mark.parametrize("after", [0, 1, 2, 6, 7])
@pytest.mark.parametrize(("kind", "outcome"), [("cut", "truncated"), ("error-event", "stream_error")])
async def test_so_many_tokens_are_sent_and_no_more(
    kind: str, outcome: str, after: int, per_event: int
) -> None:
    """However many go into an event; the request gives up its place at the tick after the last of them."""
    world = Faults()
    world.stream(f"{kind}:after={after}", per_event).open()
    row = world.row()
    assert world.wire.text == words(0, after)
    assert b"[DONE]" not in world.wire.data
    assert (row.outcome, row.tokens, row.fault) == (outcome, after, f"{kind}:after={after}")
    assert row.ticks is not None
    assert row.ticks.received is not None
    before = row.ticks.received if after == 0 else (row.ticks.first_token or 0) + after - 1
    assert row.ticks.cancel == before + 1


@pytest.mark.parametrize("per_event", [1, 4])
@pytest.mark.parametrize("after", [0, 2, 6])
async def test_a_stall_comes_after_so_many_tokens(after: int, per_event: int) -> None:
    """What is held back then comes as it would have come, from the next token on."""
    world = Faults()
    stream = world.stream(f"stall:after={after},seconds=0.02", per_event)
    stream.open()
    row = world.row()
    assert (row.outcome, row.tokens, row.fault) == ("completed", OUTPUT, stream.fault.word)
    assert world.wire.text == words(0, after)
    await asyncio.sleep(0.1)
    assert world.wire.text == words(0, OUTPUT)
    assert world.wire.data.endswith(b"data: [DONE]\n\n")


async def test_a_stall_that_begins_before_the_headers_are_out_holds_back_nothing_that_came_before_it() -> (
    None
):
    """The tokens before it leave with the headers, whenever these come; the others wait."""
    for seconds, after_headers in ((60, words(0, 3)), (0, words(0, OUTPUT))):
        world = Faults()
        stream = world.stream(f"stall:after=3,seconds={seconds}")
        world.run_out()
        assert world.wire.data == b""
        await asyncio.sleep(0.02)
        stream.open()
        assert world.wire.text == after_headers
        stream.left()


@pytest.mark.parametrize(("per_event", "place"), [(1, 2), (4, 1)])
@pytest.mark.parametrize("kind", ["malformed-event", "broken-utf8"])
async def test_damage_is_in_the_event_after_so_many_tokens(kind: str, per_event: int, place: int) -> None:
    """Two right tokens, one event that is not, and no other that is not."""
    world = Faults()
    world.stream(f"{kind}:after=2", per_event).open()
    assert world.row().fault == f"{kind}:after=2"
    events = world.wire.data.split(b"\n\n")[:-2]
    texts = [text_of(event) for event in events]
    assert [number for number, text in enumerate(texts) if text is None] == [place]
    assert "".join(text or "" for text in texts[:place]) == words(0, 2)


def text_of(event: bytes) -> str | None:
    try:
        text: str = json.loads(event.removeprefix(b"data: ").decode())["choices"][0]["text"]
    except ValueError:
        return None
    return text


SPARED = [f"{kind}:after={OUTPUT}" for kind in ("cut", "error-event", "malformed-event", "stall")]


@pytest.mark.parametrize("word", [*SPARED, "wrong-usage"])
async def test_a_stream_that_a_fault_did_not_strike_is_like_any_other(word: str) -> None:
    """Too short, or with no usage that could be wrong: every byte is as ever, and its row names none."""
    world = Faults()
    world.stream(word).open()
    row = world.row()
    encoder = StreamEncoder(generation(), "id", 1, chunked=False)
    assert world.wire.data == b"".join(encoder.token(index) or b"" for index in range(OUTPUT)) + encoder.end()
    assert (row.outcome, row.fault) == ("completed", None)


@pytest.mark.parametrize("word", SPARED)
async def test_an_answer_that_a_fault_did_not_strike_is_like_any_other(word: str) -> None:
    """An answer in one piece is no different."""
    world = Faults()
    answer = world.answer(word)
    row = world.row()
    assert (row.outcome, row.fault, answer.struck) == ("completed", None, False)


@pytest.mark.parametrize(
    ("word", "outcome", "tokens"),
    [
        ("cut:after=8", "connect_error", 8),
        ("cut:after=0", "connect_error", 0),
        ("error-event:after=8", "http_error", 8),
        ("stall:after=8,seconds=1", "completed", OUTPUT),
        ("slow-first-byte:seconds=1", "completed", OUTPUT),
        ("malformed-event:after=8", "stream_error", OUTPUT),
        ("wrong-usage:by=1", "completed", OUTPUT),
    ],
)
async def test_an_answer_that_was_struck_says_so(word: str, outcome: str, tokens: int) -> None:
    """The row is there with the last token, before the answer is."""
    world = Faults()
    world.answer(word)
    row = world.row()
    assert (row.outcome, row.tokens, row.fault) == (outcome, tokens, word)


@pytest.mark.parametrize(
    ("word", "ticks"),
    [
        ("cut:after=0", 0),
        ("error-event:after=0", 0),
        ("cut:after=5", 0),
        ("cut:after=5", 3),
        ("malformed-event:after=5", 3),
        ("slow-first-byte", 0),
    ],
)
async def test_a_client_that_left_before_its_fault_has_left(word: str, ticks: int) -> None:
    """Before it was queued, or with some tokens: its row is cancelled, and names nothing that was to come."""
    world = Faults()
    stream = world.stream(word)
    if ticks:
        world.pass_time(ticks * TICK_NS)
        world.engine.run_due()
    stream.left()
    world.engine.cancel(world.job)
    row = world.row()
    assert (row.outcome, row.fault, row.error) == ("cancelled", None, None)
    assert bool(row.tokens) == bool(ticks)
