"""From stamped bytes to a row: what counts as a token, when, and how an exchange ended."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgers.rows import RequestRow, decode_row, encode
from loadgen.dialects import DIALECTS
from loadgen.recorder import Recorder
from loadgen.token_times import ReadCounts

MS = 1_000_000
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
DONE = "data: [DONE]\n\n"
FINISH = 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'


def usage(tokens: int) -> str:
    return f'data: {{"choices":[],"usage":{{"prompt_tokens":3,"completion_tokens":{tokens}}}}}\n\n'


def delta(**payload: Any) -> str:
    choice = {"index": 0, "delta": payload, "finish_reason": None}
    return f"data: {msgspec.json.encode({'choices': [choice]}).decode()}\n\n"


def recorder(api: str = "chat", **options: Any) -> Recorder:
    planned = RequestRow(id="R01", request_id="x-R01", prompt_tokens=3, output_tokens=2, arrival_ns=0)
    made = Recorder(planned, DIALECTS[api](), **options)
    made.connected()
    made.sent(1 * MS)
    return made


def replay(
    feed: list[tuple[int, str]], end_ms: int | None = None, api: str = "chat", head: bytes = HEAD
) -> RequestRow:
    """A stream as (ms, text) per read, closed in order at `end_ms`."""
    made = recorder(api)
    made.feed(head, 2 * MS)
    for at_ms, text in feed:
        made.feed(text.encode(), at_ms * MS)
    if end_ms is not None:
        made.lost(end_ms * MS, None)
    return made.row(0, record_tokens=True)


def test_the_role_chunk_is_not_the_first_token() -> None:
    """A role chunk at 5 ms does not date the first token, which comes at 200 ms."""
    row = replay(
        [(5, delta(role="assistant", content="")), (200, delta(content="Hi")), (220, delta(content=" there")),
         (221, FINISH + usage(2) + DONE)]
    )  # fmt: skip
    assert (row.outcome, row.first_token_ns, row.last_token_ns) == ("completed", 200 * MS, 220 * MS)
    assert (row.tokens, row.token_source, row.events) == (2, "usage", 2)
    assert row.token_ns == [200 * MS, 220 * MS]


@pytest.mark.parametrize(
    "payload",
    [
        {"content": "x"},
        {"reasoning": "x", "content": ""},
        {"reasoning_content": "x", "content": None},
        {"refusal": "x"},
        {"tool_calls": [{"index": 0, "function": {"name": "f"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
        {"function_call": {"name": "f"}},
        {"function_call": {"arguments": "{"}},
        {"content": [{"type": "text", "text": "x"}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "x"}]}]},
        {"content": "", "reasoning_details": [{"type": "reasoning.text", "text": "x"}]},
        {"content": "", "reasoning_details": [{"type": "reasoning.summary", "summary": "x"}]},
    ],
)
def test_every_kind_of_output_is_a_token(payload: dict[str, Any]) -> None:
    """Text, both spellings of reasoning, refusals and tool calls are generated output."""
    row = replay([(10, delta(**payload)), (20, FINISH + DONE)])
    assert (row.outcome, row.first_token_ns, row.tokens, row.token_source) == (
        "completed",
        10 * MS,
        1,
        "events",
    )


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"role": "assistant"},
        {"role": "assistant", "content": None},
        {"content": "", "reasoning_content": "", "refusal": None, "tool_calls": None},
        {"tool_calls": []},
        {"function_call": {"name": "", "arguments": ""}},
        {"content": [], "reasoning_details": [{"type": "reasoning.text", "text": None}]},
        {"content": [{"type": "text", "text": ""}, None, 7]},
        {"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "", "arguments": ""}}]},
    ],
)
def test_what_is_no_output_is_no_token(payload: dict[str, Any]) -> None:
    """A stream of role, empty and null payloads that ends in order is empty, not completed."""
    row = replay([(10, delta(**payload)), (20, FINISH + DONE)])
    assert (row.outcome, row.first_token_ns, row.events) == ("empty", None, 0)


def test_late_usage_and_done_do_not_move_the_last_token() -> None:
    """The last token is the last event with output; the end is apart from it."""
    row = replay([(100, delta(content="a")), (110, delta(content="b")), (500, FINISH + usage(2) + DONE)])
    assert (row.last_token_ns, row.end_ns) == (110 * MS, 500 * MS)


def test_the_last_usage_that_says_something_counts() -> None:
    """Null and zero usage on the way does not hide the real one."""
    zero = (
        'data: {"choices":[{"index":0,"text":"a","finish_reason":null}],"usage":{"completion_tokens":0}}\n\n'
    )
    null = 'data: {"choices":[],"usage":null}\n\n'
    row = replay([(10, zero), (11, zero + usage(7) + null + DONE)], api="completions")
    assert (row.tokens, row.token_source, row.events) == (7, "usage", 2)


def test_an_all_zero_usage_is_not_believed_against_events() -> None:
    """A stream cut after two tokens whose chunks carry a zero usage has two tokens, not none."""
    zero = (
        'data: {"choices":[{"index":0,"text":"a","finish_reason":null}],"usage":{"completion_tokens":0}}\n\n'
    )
    row = replay([(10, zero), (20, zero)], end_ms=30, api="completions")
    assert (row.outcome, row.tokens, row.token_source) == ("truncated", 2, "events")


def test_done_ends_the_request_even_if_the_connection_stays_open() -> None:
    """Nothing waits for a close that may come much later, and nothing after [DONE] counts."""
    made = recorder()
    made.feed(HEAD + (delta(content="a") + FINISH + usage(1) + DONE).encode(), 30 * MS)
    assert made.finished
    assert not made.drained
    made.feed(delta(content="LATE").encode(), 40 * MS)
    made.lost(10_000 * MS, None)
    row = made.row(0)
    assert (row.outcome, row.end_ns, row.events) == ("completed", 30 * MS, 1)


def test_done_is_compared_whole() -> None:
    """A text that contains [DONE] ends nothing; a trailing blank does not hide the real one."""
    row = replay(
        [(10, delta(content="data: [DONE]")), (20, delta(content="b")), (30, FINISH + "data: [DONE] \n\n")]
    )
    assert (row.outcome, row.events, row.end_ns) == ("completed", 2, 30 * MS)


@pytest.mark.parametrize("end", ["eof", "reset", "stop"])
@pytest.mark.parametrize("mark", ["data: [DONE]", "data: [DONE]\n", "data:[DONE]\r"])
def test_the_end_mark_needs_no_blank_line(mark: str, end: str) -> None:
    """The last thing that a server says is understood even if it says it without an end."""
    made = recorder()
    made.feed(HEAD + (delta(content="a") + mark).encode(), 30 * MS)
    assert not made.finished
    if end == "stop":
        made.stop("timeout", 40 * MS, "too slow")
    else:
        made.lost(40 * MS, None if end == "eof" else "Connection reset by peer")
    row = made.row(0)
    assert (row.outcome, row.error, row.events) == ("completed", None, 1)


@pytest.mark.parametrize(
    "rest", ['data: {"error":{"message":"x"}}\n', delta(content="b")[:-1], "data: [DONE", "data: [DONE] x"]
)
def test_nothing_else_counts_without_its_blank_line(rest: str) -> None:
    """An event that has not ended is none, as the standard has it."""
    row = replay([(10, delta(content="a") + rest)], end_ms=20)
    assert (row.outcome, row.events) == ("truncated", 1)


@pytest.mark.parametrize(
    "event",
    [
        'data: {"error":{"message":"engine died","type":"server_error"}}\n\n',
        'data: {"error":"engine died"}\n\n',
        'data: {"object":"error","message":"engine died","code":500}\n\n',
        'event: error\ndata: {"message":"engine died"}\n\n',
        'data: {"choices":[],"error":{"code":502,"message":"engine died"}}\n\n',
    ],
)
def test_an_error_in_the_stream_is_a_failure(event: str) -> None:
    """In every shape, even when [DONE] follows; what came before stays on the row."""
    row = replay([(10, delta(content="a")), (20, delta(content="b")), (30, event + DONE)], end_ms=31)
    assert (row.outcome, row.phase, row.error) == ("stream_error", "streaming", "engine died")
    assert (row.first_token_ns, row.tokens, row.end_ns, row.http_status) == (10 * MS, 2, 30 * MS, 200)


@pytest.mark.parametrize("reason", ["error", "abort"])
def test_finish_reasons_that_mean_failure(reason: str) -> None:
    """`error` and `abort` are no way to complete."""
    finish = f'data: {{"choices":[{{"index":0,"delta":{{}},"finish_reason":"{reason}"}}]}}\n\n'
    assert replay([(10, delta(content="a")), (20, finish + DONE)]).outcome == "stream_error"


def test_broken_json_is_a_failure() -> None:
    """A proxy that cut an event but kept its blank line."""
    row = replay([(10, delta(content="a")), (20, 'data: {"choices":[{"ind\n\n' + FINISH + DONE)])
    assert row.outcome == "stream_error"
    assert row.error is not None
    assert row.error.startswith("malformed event")


@pytest.mark.parametrize(
    "event",
    [
        "data\n\n",
        "data:\n\n",
        "data: \n\n",
        "event: ping\ndata\n\n",
        "event: ping\ndata: null\n\n",
        "event: ping\ndata: 2026-01-01 00:00:00\n\n",
        'event: ping\ndata: {"type":"ping"}\n\n',
    ],
)
def test_keep_alive_events_say_nothing(event: str) -> None:
    """Neither an event without data nor one of another name without an object is a malformed answer."""
    row = replay([(5, event), (10, delta(content="a")), (15, event), (20, FINISH + DONE)])
    assert (row.outcome, row.error, row.first_token_ns, row.events) == ("completed", None, 10 * MS, 1)


@pytest.mark.parametrize("data", ["null", "hello", "[1]"])
def test_nameless_data_must_be_an_object(data: str) -> None:
    """What comes in the place of a chunk and is none is a malformed answer."""
    row = replay([(10, delta(content="a")), (15, f"data: {data}\n\n"), (20, FINISH + DONE)])
    assert row.outcome == "stream_error"


@pytest.mark.parametrize(
    ("reason", "outcome", "said"),
    [
        ({"type": "length", "length": 2}, "completed", "length"),
        ({"type": "abort", "message": "x"}, "stream_error", "abort"),
        (["stop"], "completed", "['stop']"),
        (7, "completed", "7"),
    ],
)
def test_a_finish_reason_that_is_no_text(reason: object, outcome: str, said: str) -> None:
    """An object names its reason as `type`; anything else is kept as it is written, and ends the choice."""
    finish = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    row = replay(
        [(10, delta(content="a")), (20, f"data: {msgspec.json.encode(finish).decode()}\n\n")], end_ms=30
    )
    assert (row.outcome, row.finish_reason) == (outcome, said)


@pytest.mark.parametrize(
    ("count", "tokens", "source"),
    [
        ("4.0", 4, "usage"),
        ("4.5", 1, "events"),
        ("-1", 1, "events"),
        ("1000000001", 1, "events"),
        ("1e300", 1, "events"),
        ("123456789012345678901234567890", 1, "events"),
        ('"4"', 1, "events"),
        ("null", 1, "events"),
    ],
)
def test_a_usage_that_is_no_count_is_ignored(count: str, tokens: int, source: str) -> None:
    """A whole number in any spelling counts; what can be no number of tokens is as if it were not there."""
    said = f'data: {{"choices":[],"usage":{{"completion_tokens":{count}}}}}\n\n'
    row = replay([(10, delta(content="a")), (20, FINISH + said + DONE)])
    assert (row.outcome, row.tokens, row.token_source) == ("completed", tokens, source)


def test_half_a_surrogate_pair_is_a_replacement_character() -> None:
    """Servers that cut a text between the halves of a character still send text; whole pairs stay."""
    event = 'data: {"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n'
    made = recorder(record_text=True)
    made.feed(HEAD, 5)
    for text in (r"a\ud83d", r"\udE00\\ud83d", r"\ud83d\ude00\ud83d"):
        made.feed((event % text).encode(), 10)
    made.feed((FINISH + DONE).encode(), 20)
    row = made.row(0)
    assert (row.outcome, row.events, row.text) == ("completed", 3, "a\ufffd\ufffd\\ud83d\U0001f600\ufffd")


DEEP = b'{"error":' * 100_000


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: " + DEEP + b"\n\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + DEEP,
        b"HTTP/1.1 500 No\r\n\r\n" + DEEP,
    ],
)
def test_json_without_bottom_fails_the_request_alone(answer: bytes) -> None:
    """Nesting deeper than any parser goes is an error of that answer, in a stream, a body or an error."""
    made = recorder()
    made.feed(answer, 5)
    made.lost(9, None)
    assert made.row(0).outcome in ("stream_error", "http_error")


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(
            ["choices", "delta", "message", "content", "reasoning_details", "tool_calls", "function_call",
             "function", "name", "text", "type", "usage", "completion_tokens", "finish_reason", "error",
             "index", "object", "refusal"]
        ), inner, max_size=4)
    ),
    max_leaves=20,
)  # fmt: skip


@given(
    ANY_JSON, st.sampled_from(["choices", "delta", "error", "usage", ""]), st.sampled_from(sorted(DIALECTS))
)
def test_no_event_or_body_ends_the_run(value: object, place: str, api: str) -> None:
    """Whatever JSON a server sends wherever, there is a row, and it can be written."""
    chunk = {"choices": value, "error": value, "usage": value, "": value}
    choice = {"index": 0, "delta": value, "message": value, "text": value, "finish_reason": value}
    data = msgspec.json.encode(
        value if place == "" else {"choices": [choice]} if place == "delta" else {place: chunk[place]}
    )
    for head in (
        HEAD,
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n",
        b"HTTP/1.1 500 No\r\n\r\n",
    ):
        made = recorder(api, record_text=True)
        made.feed(head + (b"data: %s\n\n" % data if head == HEAD else data), 5)
        made.lost(9, None)
        assert decode_row(encode(made.row(0))).outcome is not None


def test_an_end_without_end_mark_is_truncated() -> None:
    """A clean close after two tokens, without finish_reason or [DONE], is no completion."""
    row = replay([(10, delta(content="a")), (20, delta(content="b"))], end_ms=30)
    assert (row.outcome, row.tokens, row.last_token_ns, row.end_ns) == ("truncated", 2, 20 * MS, 30 * MS)


def test_a_finish_reason_is_an_end_mark() -> None:
    """Without [DONE], and even if the connection breaks after it."""
    made = recorder()
    made.feed(HEAD.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n"), 5 * MS)
    text = (delta(content="a") + FINISH).encode()
    made.feed(b"%x\r\n%s\r\n" % (len(text), text), 10 * MS)
    made.lost(20 * MS, "Connection reset by peer")
    row = made.row(0)
    assert (row.outcome, row.finish_reason, row.error) == ("completed", "stop", None)


def test_one_of_two_choices_finishing_ends_nothing() -> None:
    """With n=2 the stream has ended only when both have."""
    both = 'data: {"choices":[{"index":%d,"delta":{"content":"x"},"finish_reason":%s}]}\n\n'
    stop = '"stop"'
    assert replay([(10, both % (0, "null")), (20, both % (1, stop))], end_ms=30).outcome == "truncated"
    row = replay([(10, both % (0, "null")), (20, both % (1, stop)), (25, both % (0, stop))], end_ms=30)
    assert row.outcome == "completed"


def test_a_200_without_a_body_is_empty() -> None:
    """A server that died and still says 200 has completed nothing."""
    row = replay([], end_ms=5)
    assert (row.outcome, row.tokens, row.end_ns) == ("empty", 0, 5 * MS)


@pytest.mark.parametrize(
    ("counted", "outcome"), [(0, "empty"), (1, "empty"), (2, "completed"), (50, "completed")]
)
def test_an_answer_that_is_nothing_but_its_end_is_empty(counted: int, outcome: str) -> None:
    """Servers count the token that ends an answer; more tokens than that, if not shown, are output."""
    row = replay([(5, delta(role="assistant", content="")), (200, FINISH + usage(counted) + DONE)])
    assert (row.outcome, row.events) == (outcome, 0)


def test_http_errors_keep_the_servers_words() -> None:
    """Any status but 2xx is an http_error, with an end and a message, whatever the body says."""
    body = b'{"error":{"message":"rate limit reached","code":429}}'
    made = recorder()
    made.feed(b"HTTP/1.1 429 Too Many\r\nContent-Length: %d\r\n\r\n" % len(body) + body, 9 * MS)
    row = made.row(0)
    assert (row.outcome, row.http_status, row.error) == ("http_error", 429, "HTTP 429: rate limit reached")
    assert (row.end_ns, row.phase, row.tokens) == (9 * MS, "first_token", None)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body><center><h1>502 Bad Gateway</h1>"
         b"</center><hr><center>nginx</center></body></html>", "502 Bad Gateway nginx"),
        (b"<!-- a proxy --><!doctype html><title>Busy &amp; slow</title>", "Busy & slow"),
        (b"<html><head><title>Gone</title></head><body></body></html>", "Gone"),
        (b"<script" * 100_000, "<script" * 100_000),
        (b"a < b and c > d", "a < b and c > d"),
    ],
    ids=["gateway", "comment", "title", "no page", "no markup"],
)  # fmt: skip
def test_of_a_page_its_words_are_kept(body: bytes, said: str) -> None:
    """An HTML page is for browsers; other text stays as it is."""
    made = recorder()
    made.feed(b"HTTP/1.1 502 X\r\nContent-Length: %d\r\n\r\n" % len(body) + body, 9 * MS)
    error = made.row(0).error or ""
    assert error.startswith("HTTP 502: ")
    assert said.startswith(error.removeprefix("HTTP 502: "))
    assert len(error) >= min(len(said), 100)


def test_a_json_body_for_a_stream_request() -> None:
    """Completed but not streamed: there is an end and a count, and no first token."""
    choice = b'{"index":0,"message":{"content":"whole"},"finish_reason":"stop"}'
    body = b'{"choices":[%s],"usage":{"completion_tokens":3}}' % choice
    made = recorder(record_text=True)
    made.feed(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body), 5 * MS
    )
    made.feed(body[:20], 6 * MS)
    made.feed(body[20:], 9 * MS)
    row = made.row(0)
    assert (row.outcome, row.streamed, row.tokens, row.token_source) == ("completed", False, 3, "usage")
    assert (row.first_token_ns, row.last_token_ns, row.text) == (None, 9 * MS, "whole")


@pytest.mark.parametrize("label", [b"text/event-stream", b"application/json", b"text/plain", b""])
def test_an_answer_is_json_by_its_beginning(label: bytes) -> None:
    """As it is a stream by its beginning; a page of HTML is neither, whatever its label."""
    body = b'\xef\xbb\xbf {"choices":[{"message":{"content":"whole"},"finish_reason":"stop"}]}'
    for answer, outcome in ((body, "completed"), (b"<html>busy</html>", "stream_error")):
        made = recorder()
        made.feed(b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n\r\n" % label, 5)
        for byte in answer:
            made.feed(bytes([byte]), 5)
        made.lost(9, None)
        row = made.row(0)
        assert (row.outcome, row.streamed, row.first_token_ns) == (outcome, False, None)


def test_a_json_error_with_status_200() -> None:
    """Some gateways say 200 and mean 503."""
    body = b'{"error":{"message":"no healthy upstream","code":503}}'
    made = recorder()
    made.feed(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body,
        5,
    )
    row = made.row(0)
    assert (row.outcome, row.error, row.streamed) == ("stream_error", "no healthy upstream", False)


def test_a_connection_that_dies_unanswered() -> None:
    """Before any byte of a response it is the connection that failed, in the phase that it had reached."""
    row = replay([], end_ms=None, head=b"")
    assert row.outcome is None
    made = recorder()
    made.lost(7 * MS, "Connection reset by peer")
    row = made.row(0)
    assert (row.outcome, row.phase, row.error) == ("connect_error", "headers", "Connection reset by peer")


def test_what_is_no_http_is_a_failure() -> None:
    """Another protocol on the port is named, not guessed at."""
    made = recorder()
    made.feed(b"SSH-2.0-OpenSSH_9.2\r\n", 7 * MS)
    assert made.row(0).outcome == "stream_error"


@pytest.mark.parametrize(
    ("text", "outcome"), [(delta(content="a") + DONE, "completed"), (delta(content="a"), "stream_error")]
)
def test_what_came_before_a_broken_frame_counts(text: str, outcome: str) -> None:
    """Junk instead of the next chunk takes nothing from the token before it, in the same read or the next."""
    head = HEAD.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n")
    good, junk = b"%s%x\r\n%s\r\n" % (head, len(text), text.encode()), b"junk\r\n"
    rows = []
    for pieces in ([good + junk], [good, junk]):
        made = recorder()
        for piece in pieces:
            made.feed(piece, 5 * MS)
        rows.append(made.row(0))
    assert rows[0] == rows[1]
    assert (rows[0].outcome, rows[0].events, rows[0].first_token_ns) == (outcome, 1, 5 * MS)


@pytest.mark.parametrize(("end_mark", "outcome"), [("", "timeout"), (FINISH, "completed")])
def test_our_own_cut_respects_an_end_mark(end_mark: str, outcome: str) -> None:
    """A stream that said it was over has completed, even if its last bytes never came."""
    made = recorder()
    made.feed(HEAD + (delta(content="a") + end_mark).encode(), 5 * MS)
    made.stop("timeout", 99 * MS, "too slow")
    assert made.row(0).outcome == outcome


def test_reads_with_several_events_are_counted() -> None:
    """Three tokens in two reads: one of two reads dates only the last of its events."""
    counts = ReadCounts()
    made = recorder(counts=counts)
    made.feed(HEAD + (delta(content="a") + delta(content="b")).encode(), 5 * MS)
    made.feed(delta(content="c").encode(), 8 * MS)
    made.feed((FINISH + usage(3) + DONE).encode(), 9 * MS)
    assert (counts.reads, counts.with_several_events) == (2, 1)
    assert made.row(0, record_tokens=True).token_ns == [5 * MS, 5 * MS, 8 * MS]


def test_text_is_kept_only_on_request() -> None:
    """Reasoning and text apart, and null when nobody asked."""
    feed = HEAD + (delta(reasoning="hm") + delta(content="a") + delta(content="b") + FINISH + DONE).encode()
    kept, plain = recorder(record_text=True), recorder()
    kept.feed(feed, 5)
    plain.feed(feed, 5)
    assert (kept.row(0).text, kept.row(0).reasoning_text) == ("ab", "hm")
    assert (plain.row(0).text, plain.row(0).reasoning_text) == (None, None)


def test_secrets_are_scrubbed_before_a_message_is_shortened() -> None:
    """A key that straddles the length limit must not leave its first half behind."""
    body = b"x" * 290 + b"sk-canary-0123456789"
    made = recorder()
    made.feed(b"HTTP/1.1 401 No\r\nContent-Length: %d\r\n\r\n" % len(body) + body, 5)
    error = made.row(0, scrub=lambda text: text.replace("sk-canary-0123456789", "***")).error
    assert error is not None
    assert "sk-" not in error


CHUNKED = HEAD.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n")
ERROR = 'data: {"error":{"message":"engine died"}}\n\n'
LATE = [delta(content="LATE"), usage(99), ERROR.replace("died", "late")]


def chunked(texts: list[str]) -> bytes:
    chunks = (text.encode() for text in texts)
    return CHUNKED + b"".join(b"%x\r\n%s\r\n" % (len(data), data) for data in chunks) + b"0\r\n\r\n"


BEGIN = [delta(role="assistant", content=""), delta(content="é\u2028"), delta(content="b")]
STREAMS = [
    (chunked([*BEGIN, FINISH, usage(2), DONE]), "completed", "usage"),
    (chunked([*BEGIN, FINISH, usage(2), DONE, *LATE]), "completed", "usage"),
    (chunked([*BEGIN, ERROR, *LATE, FINISH, DONE]), "stream_error", "events"),
]


@given(st.sampled_from(STREAMS), st.lists(st.floats(0, 1), max_size=8))
def test_any_cut_of_the_wire_gives_the_same_row(case: tuple[bytes, str, str], at: list[float]) -> None:
    """Only the stamps may depend on where TCP cut the bytes: text, tokens and outcome do not.

    Nor does anything count that comes after [DONE] or after an error, in the same read or a later one.
    """
    stream, outcome, source = case
    made = recorder(record_text=True)
    borders = sorted([0, *(round(share * len(stream)) for share in at), len(stream)])
    for start, end in pairwise(borders):
        if end > start:
            made.feed(stream[start:end], end)
    row = made.row(0)
    assert (row.outcome, row.text, row.tokens, row.token_source, row.events, made.reusable) == (
        outcome,
        "é\u2028b",
        2,
        source,
        2,
        True,
    )
    assert row.error == ("engine died" if outcome == "stream_error" else None)
    first_end, last_end = (stream.index(mark) + len(mark) for mark in (b"\xe2\x80\xa8", b'"b"'))
    assert row.first_token_ns is not None
    assert row.last_token_ns is not None
    assert first_end < row.first_token_ns <= row.last_token_ns
    assert row.last_token_ns > last_end
