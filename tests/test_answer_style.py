"""How answers come, by switches of the server and of the request: the schedule knows none of them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from ledgers.rows import RequestRow, TickRow
from ledgers.rundir import Run
from ledgers.settings import Hardware, SchedulerSettings
from ledgers.vocabulary import WORDS
from mock_server.faults import Fault
from mock_server.faulty import FaultyEncoder
from mock_server.openai import Api, parse
from mock_server.policies import make_scheduler
from mock_server.simulate import served_inputs, simulate
from mock_server.sse import PLAIN, StreamEncoder, Style
from tests.conftest import serving, tokentick

SWITCHES = {
    "plain": (),
    "reasoning": ("--reasoning-tokens", "3"),
    "chunks": ("--tokens-per-chunk", "4"),
    "role": ("--role-chunk", "early"),
    "all": ("--reasoning-tokens", "3", "--tokens-per-chunk", "2", "--role-chunk", "early"),
}


class Streamed:
    """What one request gets at each token, without a server."""

    def __init__(
        self, api: Api = "chat", style: Style = PLAIN, *, chunked: bool = False, **fields: Any
    ) -> None:
        prompt = {"messages": [{"role": "user", "content": "time and water"}]} if api == "chat" else {}
        body = {"prompt": "time and water"} | prompt | {"stream": True, "max_tokens": 7, **fields}
        generation = parse(api, json.dumps(body).encode(), 16, style.reasoning_tokens)
        encoder = StreamEncoder(generation, "id-1", 1, style, chunked=chunked)
        self.start = encoder.start()
        self.tokens = [encoder.token(index) or b"" for index in range(generation.output_tokens)]
        self.end = encoder.end()

    @property
    def events(self) -> list[dict[str, Any]]:
        """Of the tokens alone."""
        return events(b"".join(self.tokens))

    def texts(self, name: str) -> list[str]:
        return [event["choices"][0]["delta"].get(name) for event in self.events]


def events(data: bytes) -> list[dict[str, Any]]:
    """Every event is `data: ` and JSON, and a blank line behind it."""
    *found, rest = data.decode().split("\n\n")
    assert rest == ""
    assert all(event.startswith("data: ") for event in found)
    return [json.loads(event[6:]) for event in found if event != "data: [DONE]"]


def dechunked(data: bytes) -> Iterator[bytes]:
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        assert data[length : length + 2] == b"\r\n"
        yield data[:length]
        data = data[length + 2 :]


# The request's own


def test_a_token_is_an_event_and_an_event_is_a_chunk() -> None:
    """For HTTP/1.1 each token's bytes are one chunk with the bare event inside, whatever its length."""
    for api in ("chat", "completions"):
        bare = Streamed(api, max_tokens=2 * len(WORDS))
        framed = Streamed(api, max_tokens=2 * len(WORDS), chunked=True)
        assert [list(dechunked(token)) for token in framed.tokens] == [[token] for token in bare.tokens]
        assert b"".join(dechunked(framed.end)) == bare.end


def test_without_a_switch_nothing_comes_before_the_first_token() -> None:
    """The role is beside the first token; no reasoning, no usage."""
    plain = Streamed()
    assert plain.start == b""
    assert plain.events[0]["choices"][0]["delta"] == {"role": "assistant", "content": WORDS[0]}
    assert all(set(event["choices"][0]["delta"]) == {"content"} for event in plain.events[1:])
    assert all("usage" not in event for event in plain.events)
    assert "".join(plain.texts("content")) == " ".join(WORDS[:7])


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_continuous_usage_counts_up(api: Api) -> None:
    """Every event says how many tokens there are so far; the last one, without choices, how many in all."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    streamed = Streamed(api, stream_options=options)
    assert [event["usage"] for event in streamed.events] == [
        {"prompt_tokens": 3, "completion_tokens": count, "total_tokens": 3 + count} for count in range(1, 8)
    ]
    (usage,) = events(streamed.end)
    assert usage["usage"] == streamed.events[-1]["usage"]
    assert usage["choices"] == []


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_the_finish_reason_comes_with_the_last_token(api: Api) -> None:
    """In no event of its own, as in vLLM: a client that takes each event for a token counts right."""
    streamed = Streamed(api)
    reasons = [event["choices"][0]["finish_reason"] for event in streamed.events]
    assert reasons == [None] * 6 + ["length"]
    assert events(streamed.end) == []


def test_continuous_usage_needs_usage() -> None:
    """As in vLLM: alone it says nothing."""
    streamed = Streamed(stream_options={"continuous_usage_stats": True})
    assert all("usage" not in event for event in [*streamed.events, *events(streamed.end)])


# The server's


def test_the_first_tokens_are_reasoning() -> None:
    """In vLLM's field, up to the number; then content. Together they are the same words."""
    streamed = Streamed(style=Style(reasoning_tokens=3), stream_options={"include_usage": True})
    reasoning, content = streamed.texts("reasoning"), streamed.texts("content")
    assert [bool(text) for text in reasoning] == [True] * 3 + [False] * 4
    assert [bool(text) for text in content] == [False] * 3 + [True] * 4
    assert "".join(filter(None, reasoning + content)) == " ".join(WORDS[:7])
    usage = events(streamed.end)[-1]["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 3}
    assert usage["completion_tokens"] == 7


def test_an_answer_can_end_while_it_reasons() -> None:
    streamed = Streamed(style=Style(reasoning_tokens=100), stream_options={"include_usage": True})
    assert streamed.texts("content") == [None] * 7
    assert events(streamed.end)[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 7}


def test_who_wants_no_reasoning_gets_none() -> None:
    """By the request's effort, and in completions, which have no field for it."""
    style = Style(reasoning_tokens=3)
    assert Streamed(style=style, reasoning_effort="none").tokens == Streamed().tokens
    assert Streamed("completions", style).tokens == Streamed("completions").tokens


@pytest.mark.parametrize("api", ["chat", "completions"])
@pytest.mark.parametrize(("size", "filled"), [(2, [2, 4, 6, 7]), (3, [3, 6, 7]), (7, [7]), (100, [7])])
def test_a_chunk_is_sent_when_it_is_full_or_the_answer_ends(api: Api, size: int, filled: list[int]) -> None:
    """Nothing at the tokens before; the text is the same."""
    streamed = Streamed(api, Style(tokens_per_chunk=size))
    assert [number for number, data in enumerate(streamed.tokens, 1) if data] == filled
    texts = [
        event["choices"][0].get("text") or event["choices"][0]["delta"]["content"]
        for event in streamed.events
    ]
    assert [len(text.split()) for text in texts] == [
        end - start for start, end in zip([0, *filled], filled, strict=False)
    ]
    assert "".join(texts) == " ".join(WORDS[:7])


def test_a_chunk_can_hold_the_end_of_reasoning_and_the_beginning_of_content() -> None:
    streamed = Streamed(style=Style(reasoning_tokens=3, tokens_per_chunk=2))
    assert streamed.texts("reasoning") == [f"{WORDS[0]} {WORDS[1]}", f" {WORDS[2]}", None, None]
    assert streamed.texts("content") == [None, f" {WORDS[3]}", f" {WORDS[4]} {WORDS[5]}", f" {WORDS[6]}"]


def test_an_early_role_comes_alone_and_only_once() -> None:
    """Before any token, without text, and nowhere in completions, which have no roles."""
    streamed = Streamed(style=Style(early_role=True))
    (role,) = events(streamed.start)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in event["choices"][0]["delta"] for event in streamed.events)
    assert Streamed("completions", Style(early_role=True)).start == b""


def test_an_early_role_comes_with_the_headers(tmp_path: Path) -> None:
    """Long before the first token, here a second away."""
    with serving(tmp_path / "served", "--tick", "0.5", "--role-chunk", "early") as mock:
        where = urlsplit(mock.url)
        body = b'{"messages": [{"role": "user", "content": "time"}], "max_tokens": 1, "stream": true}'
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: mock\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection((where.hostname, where.port), timeout=20) as connection:
            connection.sendall(head.encode() + body)
            received = b""
            while b"\n\n\r\n" not in received:
                received += connection.recv(65536)
    assert b'"role":"assistant","content":""' in received
    assert WORDS[0].encode() not in received.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
def test_no_switch_changes_the_schedule(tmp_path: Path, switches: tuple[str, ...]) -> None:
    """What was served is, tick for tick, what a simulation makes of it that knows no switches."""
    with serving(tmp_path / "served", "--tick", "0.02", "--policy", "chunked", *switches) as mock:
        tokentick("run", "toy", "--request-rate", "25", "--base-url", mock.url, cwd=tmp_path)
        assert mock.stop() == 0
    served = Run(tmp_path / "served")
    requests, cancels = served_inputs(served.rows())
    ticks: list[TickRow] = []
    scheduler = make_scheduler(SchedulerSettings(policy="chunked", hardware=Hardware(tick_s=0.02)))
    simulated = schedule(simulate(scheduler, requests, cancels=cancels, on_tick=ticks.append))
    assert len(simulated) >= 16
    assert schedule(served.rows()) == simulated
    assert [work(tick) for tick in served.ticks()] == [work(tick) for tick in ticks if not tick.idle]


def schedule(rows: Iterable[RequestRow]) -> dict[str, Any]:
    return {row.id: (row.ticks, row.outcome, row.tokens) for row in rows}


def work(tick: TickRow) -> tuple[int, ...]:
    """What a tick did; how late it ran is not part of it."""
    return (tick.tick, tick.queue, tick.prefill, tick.ready, tick.emitted, tick.kv_reserved, tick.kv_cached)


def test_openais_client_reads_every_style(tmp_path: Path) -> None:
    """All switches at once: text and reasoning are whole, the usage is right; in whole answers too."""
    asked: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": "time and water"}],
        "max_tokens": 6,
    }
    with (
        serving(tmp_path / "served", "--tick", "0.01", *SWITCHES["all"]) as mock,
        openai.OpenAI(base_url=f"{mock.url}/v1", api_key="none", max_retries=0, timeout=20) as client,
    ):
        chunks = list(
            client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
        )
        whole = client.chat.completions.create(**asked)
    assert [len(chunk.choices) for chunk in chunks] == [1] * (1 + 3) + [0]
    deltas = [chunk.choices[0].delta for chunk in chunks[:-1]]
    assert [delta.role for delta in deltas] == ["assistant", None, None, None]
    message = whole.choices[0].message.model_dump()
    assert "".join(delta.content or "" for delta in deltas) == message["content"]
    assert "".join(delta.model_dump().get("reasoning") or "" for delta in deltas) == message["reasoning"]
    assert message["reasoning"] + message["content"] == " ".join(WORDS[:6])
    for usage in (chunks[-1].usage, whole.usage):
        assert usage is not None
        assert usage.completion_tokens == 6
        assert usage.completion_tokens_details is not None
        assert usage.completion_tokens_details.reasoning_tokens == 3


@pytest.mark.parametrize("by", [-3, 3])
def test_wrong_usage_leaves_the_text_of_chunks_alone(by: int) -> None:
    """A fault that miscounts neither drops nor repeats what is gathered."""
    style = Style(reasoning_tokens=2, tokens_per_chunk=4)
    body = {"messages": [{"role": "user", "content": "time"}], "max_tokens": 7, "stream": True}
    body["stream_options"] = {"include_usage": True}
    generation = parse("chat", json.dumps(body).encode(), 16, style.reasoning_tokens)
    wrong = FaultyEncoder(Fault("wrong-usage", by=by), generation, "id-1", 1, style, chunked=False)
    right = StreamEncoder(generation, "id-1", 1, style, chunked=False)
    assert [wrong.token(index) for index in range(7)] == [right.token(index) for index in range(7)]
    assert events(wrong.end())[-1]["usage"]["completion_tokens"] == 7 + by
