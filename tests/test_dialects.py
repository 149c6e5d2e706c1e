"""How each dialect asks, and what it makes of one event or one whole answer, in the spellings there are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ledgers.rows import RequestRow
from loadgen.dialects import DIALECTS
from loadgen.dialects.dialect import Ask, Reading, error_body_text
from loadgen.recorder import Recorder
from loadgen.sse import SseEvent

APIS = sorted(DIALECTS)
MS = 1_000_000


def read(api: str, payload: Any, name: str = "") -> Reading:
    return DIALECTS[api]().read_event(SseEvent(name, msgspec.json.encode(payload)))


def whole(api: str, payload: Any) -> Reading:
    return DIALECTS[api]().read_body(msgspec.json.encode(payload))


def pieces(reading: Reading) -> list[tuple[str, str]]:
    return [(piece.kind, piece.text) for piece in reading.output]


def chat(**choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": None} | choice]}


def played(api: str, payloads: list[Any], end: str | None = None) -> RequestRow:
    """The events a millisecond apart; `end` is why the connection broke, None if it was closed in order."""
    planned = RequestRow(id="R01", prompt_tokens=1, output_tokens=1, arrival_ns=0)
    made = Recorder(planned, DIALECTS[api](), record_text=True)
    made.connected()
    made.sent(0)
    made.feed(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", 0)
    for number, payload in enumerate(payloads, 1):
        made.feed(b"data: %s\n\n" % msgspec.json.encode(payload), number * MS)
    made.lost((len(payloads) + 1) * MS, end)
    return made.row(0)


# Asking


@pytest.mark.parametrize(
    ("api", "path", "own"),
    [
        ("chat", "/v1/chat/completions",
         {"messages": [{"role": "user", "content": "hi there"}], "max_tokens": 7}),
        ("completions", "/v1/completions", {"prompt": "hi there", "max_tokens": 7}),
        ("responses", "/v1/responses", {"input": "hi there", "max_output_tokens": 7}),
        ("messages", "/v1/messages",
         {"messages": [{"role": "user", "content": "hi there"}], "max_tokens": 7}),
    ],
)  # fmt: skip
def test_a_request(api: str, path: str, own: dict[str, Any]) -> None:
    """Each has the fields that every server of its kind takes, and no other; it asks for a stream."""
    dialect = DIALECTS[api]()
    assert dialect.path == path
    assert msgspec.json.decode(dialect.body(Ask("m", "hi there", 7))) == {"model": "m", "stream": True, **own}


@pytest.mark.parametrize("api", APIS)
def test_extra_fields_have_the_last_word(api: str) -> None:
    """They add, replace, and with null take away."""
    ask = Ask("m", "hi", 7, frozenset(), {"model": "other", "stream": None, "temperature": 0})
    body = msgspec.json.decode(DIALECTS[api]().body(ask))
    assert (body["model"], body["temperature"], "stream" in body) == ("other", 0, False)


@pytest.mark.parametrize("api", APIS)
def test_only_chosen_optional_fields_are_sent(api: str) -> None:
    """Each of those that a dialect names goes into the body, with what it asks for."""
    dialect = DIALECTS[api]()
    body = msgspec.json.decode(dialect.body(Ask("m", "hi", 7, frozenset(dialect.optional))))
    assert set(dialect.optional) <= set(body)
    assert body.get("min_tokens", 7) == 7
    assert body.get("max_completion_tokens", 7) == 7


def test_token_ids_as_a_prompt() -> None:
    """Completions takes them as they are."""
    assert DIALECTS["completions"].takes_ids
    assert msgspec.json.decode(DIALECTS["completions"]().body(Ask("m", [1, 2], 7)))["prompt"] == [1, 2]


@pytest.mark.parametrize("api", APIS)
def test_the_key(api: str) -> None:
    """It is sent as a bearer; messages send it in their own way beside that, and always say their version."""
    headers, none = DIALECTS[api]().headers("k"), DIALECTS[api]().headers("")
    assert headers.pop("Authorization") == "Bearer k"
    version = {"anthropic-version": "2023-06-01"}
    assert headers == ({**version, "x-api-key": "k"} if api == "messages" else {})
    assert none == (version if api == "messages" else {})


# Any dialect


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("error", "said"),
    [
        ({"message": "boom", "code": 500}, "boom"),
        ("boom", "boom"),
        ({"message": "", "code": 500}, "500"),
        ({"message": {"detail": "boom"}}, "boom"),
        ({"error": {"message": "boom"}}, "boom"),
        (True, "true"),
        (503, "503"),
        ({"odd": 1}, '{"odd":1}'),
        ([{"odd": 1}], '{"odd":1}'),
    ],
)
def test_an_error_in_any_shape(api: str, error: Any, said: str) -> None:
    """In an event, and as a whole answer."""
    assert read(api, {"error": error}).error == said
    assert whole(api, {"error": error}).error == said


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("nothing", [None, "", {}, [], False, 0])
def test_an_error_that_says_nothing(api: str, nothing: Any) -> None:
    """Servers that send the member with every event mean nothing by an empty one."""
    assert read(api, {"error": nothing, "choices": []}).error is None


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("payload", "name", "said"),
    [
        ({"type": "error", "message": "boom"}, "", "boom"),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "boom"}}, "error", "boom"),
        ({"message": "boom"}, "error", "boom"),
        ({"detail": "boom"}, "error", "boom"),
    ],
)
def test_an_event_that_is_an_error(api: str, payload: Any, name: str, said: str) -> None:
    """By its name, or by its type."""
    assert read(api, payload, name).error == said


@pytest.mark.parametrize("api", APIS)
def test_an_error_event_without_json(api: str) -> None:
    """Its data is the message."""
    assert DIALECTS[api]().read_event(SseEvent("error", b"boom")).error == "boom"


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("body", [{"detail": "Not Found"}, {"message": "Not Found", "code": 404}])
def test_a_whole_answer_that_only_says_why(api: str, body: Any) -> None:
    """Frameworks and gateways say 200 and mean 404."""
    assert whole(api, body).error == "Not Found"


@pytest.mark.parametrize("api", APIS)
def test_an_error_in_a_list(api: str) -> None:
    """Some gateways wrap it so, with 200 as with 400."""
    assert whole(api, [{"error": {"code": 400, "message": "boom"}}]).error == "boom"
    assert error_body_text(b'[{"error":{"code":400,"message":"boom"}}]') == "boom"


@pytest.mark.parametrize("api", APIS)
def test_done_and_keep_alives(api: str) -> None:
    """The end mark is none of JSON; pings are nothing, with data or without."""
    dialect = DIALECTS[api]()
    assert dialect.read_event(SseEvent("", b" [DONE]")).done
    for ping in (SseEvent("ping", b"null"), SseEvent("ping", b'{"type":"ping"}'), SseEvent("", b"")):
        reading = dialect.read_event(ping)
        assert (list(reading.output), reading.error, reading.done) == ([], None, False)


USAGES = [
    ({"prompt_tokens": 9, "completion_tokens": 4}, (9, 4, None, None)),
    ({"input_tokens": 9, "output_tokens": 4}, (9, 4, None, None)),
    ({"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 5},
      "completion_tokens_details": {"reasoning_tokens": 3}}, (9, 4, 5, 3)),
    ({"input_tokens": 9, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 5},
      "output_tokens_details": {"reasoning_tokens": 3}}, (9, 4, 5, 3)),
    ({"prompt_tokens": 9, "completion_tokens": 4, "prompt_cache_hit_tokens": 5}, (9, 4, 5, None)),
    ({"prompt_tokens": 9, "completion_tokens": 4, "reasoning_tokens": 3}, (9, 4, None, 3)),
    ({"input_tokens": 2, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 1, "output_tokens": 4},
     (8, 4, 5, None)),
    ({"prompt_tokens": 8, "cache_read_input_tokens": 5, "completion_tokens": 4}, (8, 4, 5, None)),
    ({"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13, "reasoning_tokens": 3},
     (9, 4, None, 3)),
    ({"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 16, "reasoning_tokens": 3},
     (9, 7, None, 3)),
    ({"prompt_tokens": 9.0, "completion_tokens": True}, (9, None, None, None)),
    ({"prompt_tokens_details": [], "completion_tokens_details": "x"}, (None, None, None, None)),
]  # fmt: skip


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(("usage", "counts"), USAGES)
def test_usage_by_any_name(api: str, usage: Any, counts: tuple[int | None, ...]) -> None:
    """Each dialect takes the names of the others. What a cache served is a part of the prompt."""
    place = {"response": {"usage": usage}} if api == "responses" else {"usage": usage}
    said = read(api, place).usage
    assert said is not None
    got = said.prompt_tokens, said.completion_tokens, said.cached_tokens, said.reasoning_tokens
    assert got == counts


# Chat and completions


@pytest.mark.parametrize(
    ("delta", "output"),
    [
        ({"reasoning_content": "hm", "reasoning": "hm", "thinking": "hm"}, [("reasoning", "hm")]),
        ({"thinking": "hm", "content": ""}, [("reasoning", "hm")]),
        ({"reasoning_text": "hm"}, [("reasoning", "hm")]),
        ({"reasoning": "hm", "content": "a"}, [("reasoning", "hm"), ("text", "a")]),
        ({"content": {"type": "text", "text": "a"}}, [("text", "a")]),
        ({"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}]},
         [("reasoning", "hm"), ("text", "a")]),
        ({"content": [{"type": "reasoning", "text": "hm"}]}, [("reasoning", "hm")]),
        ({"tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}, [("tool", 'f{"x":1}')]),
        ({"tool_calls": [{"type": "custom", "custom": {"name": "f", "input": "in"}}]}, [("tool", "fin")]),
        ({"content": 7, "refusal": [], "tool_calls": {}, "function_call": "x"}, []),
        ({"tool_calls": [None, 1, {"function": []}, {"function": {"name": 1, "arguments": {}}}]}, []),
    ],
)  # fmt: skip
def test_payloads(delta: Any, output: list[tuple[str, str]]) -> None:
    """What servers put into a delta, and what of it was generated."""
    assert pieces(read("chat", chat(delta=delta))) == output
    assert pieces(whole("chat", chat(message=delta))) == output


@pytest.mark.parametrize("api", ["chat", "completions"])
@pytest.mark.parametrize(
    "choice", [{"delta": {"content": "a"}}, {"text": "a"}, {"delta": {"content": "a"}, "text": "a"},
               {"delta": {}, "text": "a"}, {"delta": None, "text": "a"}]
)  # fmt: skip
def test_a_choice_in_either_shape(api: str, choice: Any) -> None:
    """Gateways answer one in the shape of the other, or say it in both."""
    assert pieces(read(api, chat(**choice))) == [("text", "a")]


@pytest.mark.parametrize(
    "odd",
    [
        *({"choices": value} for value in (None, {}, "x", 3, [], [None], [[]], ["x"])),
        *(chat(delta=value) for value in (None, [], "x", 3)),
        *({"object": value} for value in (3, [], None)),
        *({"usage": value} for value in ([], "x", 3)),
        *({"timings": value, "x_groq": value} for value in ([], "x", 3)),
        chat(delta={}, usage=[], token_ids="x", output_ids=3, error=None),
    ],
)
def test_a_leaf_of_another_type_says_nothing(odd: Any) -> None:
    """It is no output, and no error."""
    reading = read("chat", odd)
    assert (pieces(reading), reading.error, reading.usage, reading.done) == ([], None, None, False)


@pytest.mark.parametrize(
    ("index", "choice"), [(None, 0), ("1", 1), (1.0, 1), ("x", 0), (-1, 0), (True, 0), (1e300, 0), ([], 0)]
)
def test_the_index_of_a_choice(index: Any, choice: int) -> None:
    """A number in any spelling; what is none is the first."""
    reading = read("chat", chat(index=index, delta={"content": "a"}, finish_reason="stop"))
    assert [piece.choice for piece in reading.output] == list(reading.finished) == [choice]


def test_several_choices_in_one_event() -> None:
    """All of them count; the finish reason is that of the first choice."""
    payload = {
        "choices": [
            {"index": 1, "delta": {"content": "b"}, "finish_reason": "length", "token_ids": [1]},
            {"index": 0, "delta": {"content": "a"}, "finish_reason": "stop", "token_ids": [1, 2]},
            {"index": 2, "delta": {"content": "c"}, "finish_reason": None},
        ]
    }
    reading = read("chat", payload)
    assert [(piece.choice, piece.text) for piece in reading.output] == [(1, "b"), (0, "a"), (2, "c")]
    assert (list(reading.seen), list(reading.finished)) == ([1, 0, 2], [1, 0])
    assert (reading.finish_reason, reading.token_ids) == ("stop", 3)


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        ("Error", "finish_reason Error"),
        ({"type": "abort", "message": "out of memory"}, "out of memory"),
        ("null", None),
        ("", None),
        ("stop", None),
    ],
)
def test_finish_reasons(reason: Any, error: str | None) -> None:
    """Those that mean a failure, in any case; and some that mean nothing."""
    reading = read("chat", chat(delta={}, finish_reason=reason))
    assert (reading.error, bool(reading.finished)) == (error, reason not in ("null", ""))


FINISH = chat(delta={}, finish_reason="stop")


@pytest.mark.parametrize(
    ("payloads", "text", "events", "last_ms"),
    [
        ([chat(delta={"content": "a"}), chat(delta={"content": "b"}), chat(message={"content": "ab"}),
          FINISH], "ab", 2, 2),
        ([chat(message={"content": "a"}), chat(message={"content": "ab"}), chat(message={"content": "ab"}),
          FINISH], "ab", 2, 2),
        ([chat(message={"content": "a"}), chat(message={"content": "b"}), FINISH], "ab", 2, 2),
        ([chat(delta={"content": "a"}, message={"content": "a"}),
          chat(delta={"content": "b"}, message={"content": "ab"}), FINISH], "ab", 2, 2),
    ],
    ids=["the whole at the end", "ever longer", "piece by piece", "beside the deltas"],
)  # fmt: skip
def test_messages_in_a_stream(payloads: list[Any], text: str, events: int, last_ms: int) -> None:
    """What repeats what was said before is no token."""
    row = played("chat", payloads)
    assert (row.outcome, row.text, row.events) == ("completed", text, events)
    assert row.last_token_ns == last_ms * MS


def test_tokens_without_text_are_an_answer() -> None:
    """A server that sends ids only has generated; when the first came, no event says."""
    row = played("completions", [{"choices": [{"text": "", "token_ids": [1, 2], "finish_reason": "stop"}]}])
    assert (row.outcome, row.tokens, row.token_source) == ("completed", 2, "token_ids")
    assert row.first_token_ns is None


# Responses


@pytest.mark.parametrize(
    ("kind", "output"),
    [
        ("response.output_text.delta", [("text", "a")]),
        ("response.reasoning_text.delta", [("reasoning", "a")]),
        ("response.reasoning_summary_text.delta", [("reasoning", "a")]),
        ("response.refusal.delta", [("refusal", "a")]),
        ("response.function_call_arguments.delta", [("tool", "a")]),
        ("response.mcp_call_arguments.delta", [("tool", "a")]),
        ("response.some_later_kind.delta", [("text", "a")]),
        ("response.output_text.done", []),
        ("response.output_text.annotation.added", []),
    ],
)
def test_events_of_a_response(kind: str, output: list[tuple[str, str]]) -> None:
    """A type's end says whether it brings output; its name may stand beside the data only."""
    assert pieces(read("responses", {"type": kind, "delta": "a", "text": "a"})) == output
    assert pieces(read("responses", {"delta": {"text": "a"}}, kind)) == output
    assert pieces(read("responses", {"type": kind, "delta": ""})) == []


@pytest.mark.parametrize(
    ("payload", "done", "reason", "error"),
    [
        ({"type": "response.completed", "response": {"status": "completed"}}, True, "completed", None),
        ({"type": "response.completed", "response": {}}, True, "completed", None),
        ({"type": "response.done", "response": {"status": "completed"}}, True, "completed", None),
        ({"type": "response.incomplete", "response": {"incomplete_details": {"reason": "max_output_tokens"}}},
         True, "max_output_tokens", None),
        ({"type": "response.failed", "response": {"error": {"message": "boom"}}}, True, "failed", "boom"),
        ({"type": "response.failed", "response": {"error": None}}, True, "failed", "response failed"),
        ({"type": "response.created", "response": {"status": "completed"}}, False, None, None),
        ({"type": "response.in_progress", "response": {"status": "in_progress"}}, False, None, None),
        ({"type": "response.web_search_call.completed"}, False, None, None),
        ({"type": "response.mcp_call.failed"}, False, None, None),
        ({"type": "response.completed", "response": [], "delta": 7}, False, None, None),
    ],
)  # fmt: skip
def test_the_end_of_a_response(payload: Any, done: bool, reason: str | None, error: str | None) -> None:
    """The response's own status ends the stream, that of a part of it does not."""
    reading = read("responses", payload)
    assert (reading.done, reading.finish_reason, reading.error) == (done, reason, error)


ITEMS = [
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
    {
        "type": "message",
        "content": [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "no"}],
    },
    {"type": "function_call", "name": "f", "arguments": "{}"},
    {"type": "message", "content": None},
    None,
]
RESPONSE = {"status": "completed", "output": ITEMS, "usage": {"input_tokens": 1, "output_tokens": 5}}
SAID = [("reasoning", "hm"), ("text", "a"), ("refusal", "no"), ("tool", "f{}")]


def test_a_whole_response() -> None:
    """Every item that was generated, and its usage."""
    reading = whole("responses", RESPONSE)
    assert (pieces(reading), reading.finish_reason, reading.error) == (SAID, "completed", None)
    assert reading.usage is not None
    assert reading.usage.completion_tokens == 5


@pytest.mark.parametrize(("deltas", "events", "first_ms"), [(["a", "b"], 2, 1), ([], 1, 1)])
def test_the_response_at_the_end_repeats_what_came(deltas: list[str], events: int, first_ms: int) -> None:
    """Its output is news only where no delta brought any."""
    row = played(
        "responses",
        [*({"type": "response.output_text.delta", "delta": delta} for delta in deltas),
         {"type": "response.completed", "response": RESPONSE}],
    )  # fmt: skip
    assert (row.outcome, row.events, row.first_token_ns) == ("completed", events, first_ms * MS)
    assert row.text == ("".join(deltas) or "a")


# Messages


def block(**delta: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": delta}


@pytest.mark.parametrize(
    ("payload", "output"),
    [
        (block(type="text_delta", text="a"), [("text", "a")]),
        (block(type="thinking_delta", thinking="hm"), [("reasoning", "hm")]),
        (block(type="input_json_delta", partial_json="{"), [("tool", "{")]),
        (block(type="signature_delta", signature="x"), []),
        (block(type="citations_delta", citation={"cited_text": "x"}), []),
        (block(type="text_delta", text=""), []),
        (block(type="text_delta", text=None), []),
        ({"type": "content_block_start", "content_block": {"type": "text", "text": "a"}}, [("text", "a")]),
        ({"type": "content_block_start", "content_block": {"type": "text", "text": ""}}, []),
        ({"type": "content_block_start", "content_block": {"type": "tool_use", "input": {}}}, []),
        ({"type": "content_block_start", "content_block": {"type": "tool_use", "input": {"x": 1}}},
         [("tool", '{"x":1}')]),
        ({"type": "content_block_stop", "index": 0}, []),
        ({"type": "content_block_delta", "delta": []}, []),
    ],
)  # fmt: skip
def test_events_of_a_message(payload: Any, output: list[tuple[str, str]]) -> None:
    """Text, thinking and the input of tools are output; signatures and citations are not."""
    assert pieces(read("messages", payload)) == output


def start(**usage: Any) -> dict[str, Any]:
    message = {"type": "message", "content": [], "stop_reason": None, "usage": usage}
    return {"type": "message_start", "message": message}


STOP = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 15}}


def test_a_message_from_its_start_to_its_stop() -> None:
    """Usage comes in two parts; the tokens that a cache took part in are the prompt's too."""
    row = played(
        "messages",
        [start(input_tokens=5, cache_read_input_tokens=20, cache_creation_input_tokens=3, output_tokens=1),
         block(text="a"), block(text="b"), STOP, {"type": "message_stop"}],
    )  # fmt: skip
    assert (row.outcome, row.text, row.finish_reason) == ("completed", "ab", "end_turn")
    assert (row.tokens, row.token_source, row.usage_prompt_tokens, row.cached_tokens) == (15, "usage", 28, 20)
    assert (row.first_token_ns, row.last_token_ns, row.end_ns) == (2 * MS, 3 * MS, 5 * MS)


@pytest.mark.parametrize(("events", "outcome"), [([STOP], "completed"), ([], "truncated")])
def test_a_message_that_breaks_off(events: list[Any], outcome: str) -> None:
    """A stop reason says that it was complete; the count at its start is none of the answer's end."""
    row = played("messages", [start(input_tokens=5, output_tokens=1), block(text="a"), *events], "reset")
    assert row.outcome == outcome


def test_a_whole_message() -> None:
    """Every block that was generated."""
    content = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "a"},
               {"type": "tool_use", "name": "f", "input": {"x": 1}}, None]  # fmt: skip
    reading = whole("messages", {"type": "message", "content": content, "stop_reason": "tool_use",
                                 "usage": {"input_tokens": 1, "output_tokens": 5}})  # fmt: skip
    assert pieces(reading) == [("reasoning", "hm"), ("text", "a"), ("tool", '{"x":1}')]
    assert (reading.finish_reason, reading.error) == ("tool_use", None)
