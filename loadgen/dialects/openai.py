"""OpenAI's chat completions and completions, in the spellings that compatible servers use.

Leaves of the JSON are read without types: servers put null, objects and numbers where OpenAI puts text, and
only a non-empty text (or tool call) is generated output.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec

from loadgen.dialects.dialect import Ask, Output, Reading, Usage, bearer, count, encode_body, error_text
from loadgen.sse import SseEvent

_FAILED = frozenset({"error", "abort"})
_EVENT_NAMES = frozenset({"", "message", "error"})
# A pair of surrogates is a character; one alone, as a cut through a character leaves it, is not.
_SURROGATES = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)
_FIRST = (0,)


class _Payload(msgspec.Struct, gc=False):
    """A `delta` of a stream or the `message` of a whole answer."""

    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    reasoning_details: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None


class _Choice(msgspec.Struct, gc=False):
    index: int | None = None
    delta: _Payload | None = None
    message: _Payload | None = None
    text: Any = None
    finish_reason: Any = None
    usage: Any = None
    token_ids: Any = None
    output_ids: Any = None
    error: Any = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Any = None
    x_groq: Any = None
    timings: Any = None
    error: Any = None
    object: str | None = None
    message: Any = None


_decoder = msgspec.json.Decoder(_Chunk)


class _OpenAI(ABC):
    """What chat and completions share."""

    def headers(self, api_key: str) -> dict[str, str]:
        return bearer(api_key)

    def read_event(self, event: SseEvent) -> Reading:
        data = event.data.strip()
        if data == b"[DONE]":
            return Reading(done=True)
        if not data or (event.name not in _EVENT_NAMES and not data.startswith(b"{")):  # a keep-alive
            return Reading()
        if event.name == "error" and not data.startswith(b"{"):
            return Reading(error=data.decode("utf-8", "replace"))
        chunk = _decode(data)
        if event.name == "error" and chunk.error is None:
            chunk.error = chunk.message or "the server sent an error event"
        return self._read(chunk)

    def read_body(self, body: bytes) -> Reading:
        return self._read(_decode(body))

    def _read(self, chunk: _Chunk) -> Reading:
        reading = Reading()
        for choice in chunk.choices or ():
            self._read_choice(choice, reading)
        if chunk.usage is not None:
            reading.usage = _usage(chunk.usage)
        if isinstance(chunk.x_groq, dict) and chunk.x_groq.get("usage") is not None:
            reading.usage = _usage(chunk.x_groq["usage"])
        if chunk.timings is not None:
            reading.timed = _timed(chunk.timings)
        if chunk.error is not None:
            reading.error = error_text(chunk.error)
        elif chunk.object == "error":  # the flat shape of older servers
            reading.error = error_text(chunk.message)
        return reading

    def _read_choice(self, choice: _Choice, reading: Reading) -> None:
        index = choice.index or 0
        output = tuple(self._output(index, choice))
        reading.output = output if not reading.output else (*reading.output, *output)
        reading.seen = _FIRST if not index and not reading.seen else (*reading.seen, index)
        if choice.finish_reason:
            reason = _reason(choice.finish_reason)
            reading.finished = (*reading.finished, index)
            if index == 0 or reading.finish_reason is None:
                reading.finish_reason = reason
            if reason in _FAILED:
                reading.error = f"finish_reason {reason}"
        if choice.usage is not None:
            reading.usage = _usage(choice.usage)
        ids = choice.token_ids or choice.output_ids
        if isinstance(ids, list):
            reading.token_ids = (reading.token_ids or 0) + len(ids)
        if choice.error is not None:
            reading.error = error_text(choice.error)

    @abstractmethod
    def _output(self, index: int, choice: _Choice) -> Iterator[Output]:
        """What was generated, in non-empty pieces."""


class Chat(_OpenAI):
    """`POST /v1/chat/completions`."""

    path: ClassVar[str] = "/v1/chat/completions"
    optional: ClassVar[tuple[str, ...]] = (
        "stream_options",
        "max_completion_tokens",
        "ignore_eos",
        "min_tokens",
    )
    takes_ids: ClassVar[bool] = False

    def body(self, ask: Ask) -> bytes:
        limit = "max_completion_tokens" if "max_completion_tokens" in ask.fields else "max_tokens"
        own = {"messages": [{"role": "user", "content": ask.prompt}], limit: ask.output_tokens}
        return encode_body(ask, {**own, **_optional(ask)})

    def _output(self, index: int, choice: _Choice) -> Iterator[Output]:
        payload = choice.delta or choice.message
        if payload is None:
            yield from _plain(index, choice.text)
            return
        if text := _reasoning(payload):
            yield Output(index, "reasoning", text)
        if text := _text(payload.content):
            yield Output(index, "text", text)
        if payload.refusal and (text := _text(payload.refusal)):
            yield Output(index, "refusal", text)
        if (payload.tool_calls or payload.function_call) and (text := _calls(payload)):
            yield Output(index, "tool", text)


class Completions(_OpenAI):
    """`POST /v1/completions`."""

    path: ClassVar[str] = "/v1/completions"
    optional: ClassVar[tuple[str, ...]] = ("stream_options", "ignore_eos", "min_tokens")
    takes_ids: ClassVar[bool] = True

    def body(self, ask: Ask) -> bytes:
        own = {"prompt": ask.prompt, "max_tokens": ask.output_tokens}
        return encode_body(ask, {**own, **_optional(ask)})

    def _output(self, index: int, choice: _Choice) -> Iterator[Output]:
        yield from _plain(index, choice.text)


def _plain(index: int, value: Any) -> Iterator[Output]:
    if text := _text(value):
        yield Output(index, "text", text)


def _optional(ask: Ask) -> dict[str, Any]:
    known = {
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "min_tokens": ask.output_tokens,
    }
    return {name: value for name, value in known.items() if name in ask.fields}


def _decode(data: bytes) -> _Chunk:
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError:
        whole = _SURROGATES.sub(lambda match: b"\\ufffd" if match[1] else match[0], data)
        if whole == data:
            raise
        return _decoder.decode(whole)


def _usage(usage: Any) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    return Usage(
        count(usage.get("prompt_tokens")),
        count(usage.get("completion_tokens")),
        count(_detail(usage, "prompt_tokens_details", "cached_tokens")),
        count(_detail(usage, "completion_tokens_details", "reasoning_tokens")),
    )


def _detail(usage: dict[str, Any], group: str, name: str) -> Any:
    details = usage.get(group)
    return details.get(name) if isinstance(details, dict) else None


def _timed(timings: Any) -> Usage | None:
    """llama.cpp's counts beside its timings; the prompt is what was computed and what was cached."""
    if not isinstance(timings, dict):
        return None
    computed, cached = count(timings.get("prompt_n")), count(timings.get("cache_n"))
    prompt = None if computed is None else computed + (cached or 0)
    return Usage(prompt, count(timings.get("predicted_n")), cached)


def _reason(value: Any) -> str:
    """A finish reason is a text, or an object that names it as its `type`."""
    named = value.get("type") if isinstance(value, dict) else value
    return named if isinstance(named, str) else str(value)


def _text(value: Any) -> str:
    """A text, or what the parts of a list have as theirs."""
    return value if isinstance(value, str) else _parts(value, "text")


def _parts(value: Any, key: str) -> str:
    if not isinstance(value, list):
        return ""
    return "".join(_text(part.get(key)) for part in value if isinstance(part, dict))


def _reasoning(payload: _Payload) -> str:
    """Servers that give it in several spellings give the same text in each."""
    return (
        _text(payload.reasoning)
        or _text(payload.reasoning_content)
        or _parts(payload.reasoning_details, "text")
        or _parts(payload.reasoning_details, "summary")
        or _parts(payload.content, "thinking")
    )


def _calls(payload: _Payload) -> str:
    """The names and arguments of tool calls; an id alone is no generated output."""
    calls = payload.tool_calls if isinstance(payload.tool_calls, list) else []
    functions = [call.get("function") for call in calls if isinstance(call, dict)]
    functions.append(payload.function_call)  # the spelling before there were tools
    return "".join(
        text
        for function in functions
        if isinstance(function, dict)
        for key in ("name", "arguments")
        if (text := _text(function.get(key)))
    )
