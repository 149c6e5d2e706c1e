"""Ways in which measuring tools misread a stream, each as a timeline and the figures that it must give."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import msgspec
import pytest

from ledgers import metrics
from ledgers.rows import RequestRow
from loadgen.dialects import DIALECTS
from loadgen.recorder import Recorder

MS = 1_000_000
DONE = "data: [DONE]\n\n"


def event(**chunk: Any) -> str:
    return f"data: {msgspec.json.encode(chunk).decode()}\n\n"


def say(index: int = 0, finish: str | None = None, **delta: Any) -> str:
    return event(choices=[{"index": index, "delta": delta, "finish_reason": finish}])


def a(text: str = "x") -> str:
    return say(content=text)


def think(text: str = "x") -> str:
    return say(reasoning_content=text, content="")


def count(tokens: int, **more: Any) -> str:
    return event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": tokens, **more})


def end(tokens: int | None = None, reason: str = "stop", **more: Any) -> str:
    return say(finish=reason) + ("" if tokens is None else count(tokens, **more)) + DONE


def text(value: str, finish: str | None = None, **chunk: Any) -> str:
    return event(choices=[{"index": 0, "text": value, "finish_reason": finish}], **chunk)


class Fault(NamedTuple):
    """`timeline` holds what came in one read, by its ms; the peer closes in order with the last of them."""

    fact: str
    timeline: list[tuple[int, str | bytes]]
    want: dict[str, Any]
    api: str = "chat"
    content_type: str | None = "text/event-stream"


FIRST_TOKEN = [
    Fault(
        "a role chunk is no token",
        [(5, say(role="assistant", content="")), (200, a("Hi")), (220, a(" you")), (221, end(2))],
        {"ttft": 200, "last": 220, "tokens": 2, "tpot": 20, "gaps": [20]},
    ),
    Fault(
        "an answer that ran out while it was thinking has a first token, and no first content",
        [(50, think()), (70, think()), (90, think()), (91, end(3, "length"))],
        {"ttft": 50, "ttfc": None, "last": 90, "tokens": 3, "tpot": 20, "gaps": [20, 20]},
    ),
    Fault(
        "reasoning in its other spelling is a token, the empty content beside it is not",
        [(40, say(reasoning="t", content="")), (60, say(reasoning="u", content="")), (80, a()), (100, a()),
         (101, end(4))],
        {"ttft": 40, "ttfc": 80, "last": 100, "tpot": 20, "gaps": [20, 20, 20]},
    ),
    Fault(
        "tool calls alone are an answer",
        [(100, say(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": "{}"}}])),
         (130, say(tool_calls=[{"index": 1, "function": {"name": "g", "arguments": "{}"}}])),
         (131, end(12, "tool_calls"))],
        {"ttft": 100, "ttfc": 100, "last": 130, "tokens": 12, "gaps": [30]},
    ),
    Fault(
        "usage that comes late moves the end, not the last token",
        [(100, a()), (110, a()), (500, end(2))],
        {"ttft": 100, "last": 110, "end": 500, "tpot": 10, "gaps": [10]},
    ),
    Fault(
        "the chunk that ends a choice is no token",
        [(10, a()), (20, a()), (30, a()), (31, end())],
        {"ttft": 10, "last": 30, "tokens": 3, "source": "events", "tpot": 10, "gaps": [10, 10]},
    ),
]  # fmt: skip
COUNTS = [
    Fault(
        "usage in the chunk that ends the answer counts, not the length that was asked for",
        [(10, text("a")), (20, text("b")), (30, text("c")),
         (31, text("", "stop", usage={"prompt_tokens": 4, "completion_tokens": 3}) + DONE)],
        {"last": 30, "tokens": 3, "source": "usage", "tpot": 10, "gaps": [10, 10]},
        "completions",
    ),
    Fault(
        "usage on every chunk is a total so far, not a part",
        [(10, a() + count(1)), (20, a() + count(2)), (30, a() + count(3)), (31, end(3))],
        {"tokens": 3, "source": "usage", "tpot": 10},
    ),
    Fault(
        "a null usage takes nothing back, and a cut stream keeps what was counted",
        [(10, event(choices=[{"delta": {"content": "five"}}], usage={"completion_tokens": 5})),
         (20, event(choices=[{"delta": {"content": "b"}}], usage=None))],
        {"outcome": "truncated", "ttft": 10, "last": 20, "tokens": 5, "source": "usage"},
    ),
    Fault(
        "an all-zero usage at the end takes nothing back",
        [(10, a("five")), (20, say(finish="stop") + count(5) + count(0) + DONE)],
        {"tokens": 5, "source": "usage"},
    ),
    Fault(
        "reasoning tokens are among the tokens, and not added",
        [*((100 + 10 * i, think()) for i in range(6)), *((160 + 10 * i, a()) for i in range(4)),
         (191, end(10, completion_tokens_details={"reasoning_tokens": 6}))],
        {"ttft": 100, "ttfc": 160, "tokens": 10, "reasoning": 6, "tpot": 10, "gaps": [10] * 9},
    ),
    Fault(
        "reasoning tokens that only the total has are added",
        [(10, think()), (40, a()), (41, end(4, completion_tokens_details={"reasoning_tokens": 6},
                                            total_tokens=13))],
        {"tokens": 10, "reasoning": 6},
    ),
    Fault(
        "an event with several tokens is one event",
        [(10, a("ab c")), (20, a("d e f")), (30, a()), (40, a("h i")), (41, end(10))],
        {"tokens": 10, "events": 4, "tpot": Fraction(30, 9), "gaps": [10, 10, 10]},
    ),
    Fault(
        "choices that take turns are as far apart as each is from itself",
        [*((100 + 20 * turn + 5 * i, say(i, content="x")) for turn in range(3) for i in (0, 1)),
         (146, say(finish="stop") + say(1, finish="stop") + count(6) + DONE)],
        {"ttft": 100, "last": 145, "tokens": 6, "gaps": [20] * 4, "tpot": 20},
    ),
    Fault(
        "tokens that no event shows stretch TPOT, and make no gaps",
        [(436, a()), (619, say(tool_calls=[{"function": {"name": "f", "arguments": "{}"}}])), (620, end(17))],
        {"ttft": 436, "last": 619, "tokens": 17, "tpot": Fraction(183, 16), "gaps": [183]},
    ),
]  # fmt: skip
BETWEEN = [
    Fault(
        "the wait for the first token is no gap",
        [(500, a()), (510, a()), (520, a()), (521, end(3))],
        {"ttft": 500, "gaps": [10, 10], "tpot": 10},
    ),
    Fault(
        "TPOT counts from the first token, whatever the events held",
        [(1000, a()), (1030, a("bcd")), (1060, a("efg")), (1090, a("hij")), (1091, end(10))],
        {"tpot": 10, "gaps": [30, 30, 30], "tokens": 10},
    ),
    Fault(
        "n tokens have n - 1 intervals",
        [(10, a()), (20, a()), (30, a()), (40, a()), (41, end(4))],
        {"tpot": 10, "gaps": [10, 10, 10]},
    ),
    Fault(
        "one token has no TPOT and no gap, which is not 0",
        [(10, a()), (11, end(1))],
        {"tpot": None, "gaps": [], "tokens": 1},
    ),
]
HELLO, NORTH, PLAIN = a("Hello").encode(), a("北").encode(), "a\u2028b\u0085c\u2029d"
FRAMING = [
    Fault(
        "an event in three reads is dated by the last",
        [(100, HELLO[:9]), (101, HELLO[9:50]), (102, HELLO[50:]), (110, a("!")), (111, end(2))],
        {"ttft": 102, "last": 110, "text": "Hello!"},
    ),
    Fault(
        "only CR and LF end lines",
        [(10, f"event: message\n{a(PLAIN)}"), (20, a("!")), (21, end(2))],
        {"ttft": 10, "last": 20, "text": f"{PLAIN}!"},
    ),
    Fault(
        "a character in two reads stays whole",
        [(10, NORTH[: NORTH.index(b"\x8c")]), (11, NORTH[NORTH.index(b"\x8c") :]), (12, end(1))],
        {"ttft": 11, "text": "北"},
    ),
    Fault(
        "CR LF ends lines",
        [(at_ms, sent.replace("\n", "\r\n")) for at_ms, sent in ((10, a()), (20, a()), (21, end(2)))],
        {"ttft": 10, "last": 20, "tpot": 10},
    ),
    Fault(
        "CR ends lines, and the second one the event, with nothing after it",
        [(at_ms, sent.replace("\n", "\r")) for at_ms, sent in ((50, a()), (100, a()), (101, end(2)))],
        {"ttft": 50, "last": 100, "gaps": [50]},
    ),
    Fault(
        "data lines are joined, whatever ended them",
        [(10, 'data: {"choices":[{"index":0,\r\ndata: "delta":{"content":"q"}}]}\n\n'), (11, end(1))],
        {"ttft": 10, "text": "q"},
    ),
    Fault(
        "ids, retry times, other names and empty data say nothing",
        [(10, f"id: 1\nretry: 10\nevent: chunk\n{a()}"), (15, "data\n\n"), (20, a()), (21, end(2))],
        {"ttft": 10, "last": 20, "tokens": 2},
    ),
    Fault(
        "blanks are output",
        [(10, a(" a")), (20, a(" ")), (30, a("b ")), (31, end(3))],
        {"last": 30, "tokens": 3, "text": " a b "},
    ),
    Fault(
        "300 kB in one event are one event",
        [(10, say(reasoning="y" * 300_000, content="")), (20, a()), (21, end(2))],
        {"ttft": 10, "ttfc": 20, "tokens": 2},
    ),
    Fault(
        "five events in one read have one time, and four gaps of 0",
        [(10, a() * 5 + end(5))],
        {"ttft": 10, "last": 10, "tokens": 5, "tpot": 0, "gaps": [0] * 4, "shared": 4},
    ),
    Fault(
        "a leading BOM is none of the stream's, and an end mark needs no blank line",
        [(10, "\ufeff" + a()), (20, a()), (30, "data: [DONE]")],
        {"ttft": 10, "last": 20, "tokens": 2},
    ),
    Fault(
        "a token without its blank line did not come",
        [(10, a("a")), (20, a("b")), (30, a("c")[:-1])],
        {"outcome": "truncated", "last": 20, "text": "ab"},
    ),
    Fault(
        "comments inside a block neither end nor spoil it",
        [(10, ": hi\n\n" + a()), (20, say(finish="stop") + count(1)), (21, ": b=1\n: c=2\n" + DONE)],
        {"ttft": 10, "last": 10, "tokens": 1},
    ),
    Fault(
        "data needs no blank after the colon",
        [(10, a().replace("data: ", "data:")), (20, end(1).replace("data: ", "data:"))],
        {"ttft": 10, "tokens": 1},
    ),
    Fault(
        "bytes that are no UTF-8 are replacement characters",
        [(10, a("a~b").encode().replace(b"~", b"\xff")), (20, end(1))],
        {"text": "a\ufffdb"},
    ),
    Fault(
        "NaN in a leaf does not spoil an event",
        [(10, a().replace('"index":0', '"index":0,"logprobs":{"p":[NaN,-Infinity]}')), (20, end(1))],
        {"ttft": 10, "tokens": 1},
    ),
]  # fmt: skip
DIALECT = [
    Fault(
        "an opening chunk without choices says nothing",
        [(20, event(id="", choices=[], created=0, model="", prompt_filter_results=[{"prompt_index": 0}])),
         (200, a()), (220, a()), (221, end())],
        {"ttft": 200, "last": 220, "tokens": 2},
    ),
    Fault(
        "an empty finish reason ends nothing",
        [(10, say(role="assistant", content="a", finish="")), (20, say(content="b", finish=""))],
        {"outcome": "truncated", "tokens": 2},
    ),
    Fault(
        "output, finish reason and usage in one chunk all count",
        [(10, a("a")), (20, event(choices=[{"delta": {"content": "b"}, "finish_reason": "stop"}],
                                  usage={"completion_tokens": 3}))],
        {"last": 20, "tokens": 3, "text": "ab"},
    ),
    Fault(
        "a whole JSON answer has an end and no first token",
        [(300, event(choices=[{"message": {"content": "abc"}, "finish_reason": "stop"}],
                     usage={"completion_tokens": 3})[6:])],
        {"ttft": None, "end": 300, "tokens": 3, "tpot": None, "gaps": [], "streamed": False, "text": "abc"},
        "chat", "application/json",
    ),
    Fault(
        "a stream is one by its beginning, whatever its label",
        [(10, a()), (11, end(1))],
        {"ttft": 10, "streamed": True},
        "chat", "text/plain",
    ),
    Fault(
        "a stream is one without any label",
        [(10, "\n\n: hi\n\n" + a()), (11, end(1))],
        {"ttft": 10, "streamed": True},
        "chat", None,
    ),
]  # fmt: skip
SUCCESS = [
    Fault(
        "an error in the stream is a failure, and what came before stays",
        [(10, a()), (20, a()), (30, event(error={"message": "engine died", "type": "server_error"}))],
        {"outcome": "stream_error", "ttft": 10, "tokens": 2, "error": "engine died"},
    ),
    Fault(
        "a 200 without a body is empty",
        [(5, "")],
        {"outcome": "empty", "ttft": None, "tokens": 0},
    ),
    Fault(
        "an orderly close is no end mark",
        [(10, a()), (20, a()), (30, "")],
        {"outcome": "truncated", "ttft": 10, "last": 20, "tokens": 2},
    ),
    Fault(
        "the request ends with its end mark, however long the connection stays",
        [(10, a()), (30, end(1)), (10_030, "")],
        {"ttft": 10, "end": 30, "tokens": 1},
    ),
]


def play(fault: Fault) -> RequestRow:
    label = "" if fault.content_type is None else f"Content-Type: {fault.content_type}\r\n"
    made = Recorder(
        RequestRow(id="R01", prompt_tokens=1, output_tokens=100, arrival_ns=0),
        DIALECTS[fault.api](),
        record_text=True,
    )
    made.connected()
    made.sent(0)
    made.feed(f"HTTP/1.1 200 OK\r\n{label}\r\n".encode(), 0)
    for at_ms, sent in fault.timeline:
        made.feed(sent if isinstance(sent, bytes) else sent.encode(), at_ms * MS)
    made.lost(fault.timeline[-1][0] * MS, None)
    return made.row(0, record_tokens=True)


def figures(row: RequestRow) -> dict[str, Any]:
    tpot = metrics.tpot_ns(row)
    return {
        "outcome": row.outcome,
        "ttft": _ms(metrics.ttft_ns(row)),
        "ttfc": _ms(metrics.ttfc_ns(row)),
        "last": _ms(row.last_token_ns),
        "end": _ms(row.end_ns),
        "tpot": None if tpot is None else tpot / MS,
        "gaps": [_ms(gap) for gap in metrics.gaps_ns(row)],
        "tokens": row.tokens,
        "source": row.token_source,
        "reasoning": row.reasoning_tokens,
        "events": row.events,
        "shared": row.shared_reads,
        "streamed": row.streamed,
        "text": row.text,
        "error": row.error,
    }


def _ms(ns: int | None) -> float | None:
    return None if ns is None else ns / MS


FAULTS = [*FIRST_TOKEN, *COUNTS, *BETWEEN, *FRAMING, *DIALECT, *SUCCESS]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.fact)
def test_what_other_tools_got_wrong(fault: Fault) -> None:
    """The figures are those of the timeline."""
    got = figures(play(fault))
    want = {"outcome": "completed", **fault.want}
    assert {name: got[name] for name in want} == want
