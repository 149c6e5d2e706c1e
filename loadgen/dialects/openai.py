"""OpenAI's chat completions and completions, in the spellings that compatible servers use.

Only a non-empty text (or tool call) is generated output. An answer to either may come in the shape of the
other.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from loadgen.dialects.dialect import Ask, Output, Reading, Usage, error_text
from loadgen.dialects.events import (
    JsonEvents,
    count,
    decode_json,
    encode_body,
    full_length,
    object_of,
    read_usage,
    text_of,
    written,
)

_Scalar = str | int | float | bool | None
_NoObject = list[Any] | _Scalar  # what stands where an object is due, and says nothing
_FAILED = frozenset({"error", "abort"})
_FIRST = (0,)


class _Payload(msgspec.Struct, gc=False):
    """A `delta` of a stream or the `message` of a whole answer."""

    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    reasoning_text: Any = None
    reasoning_details: Any = None
    thinking: Any = None
    thinking_blocks: Any = None
    audio: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None


class _Choice(msgspec.Struct, gc=False):
    index: Any = 0
    delta: _Payload | _NoObject = None
    message: _Payload | _NoObject = None
    text: Any = None
    finish_reason: Any = None
    usage: Any = None
    token_ids: Any = None
    output_ids: Any = None
    error: Any = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice | _NoObject] | dict[str, Any] | _Scalar = None
    usage: Any = None
    x_groq: Any = None
    timings: Any = None
    error: Any = None
    object: Any = None
    type: Any = None
    message: Any = None
    detail: Any = None


_decoder = msgspec.json.Decoder(_Chunk)


class _OpenAI(JsonEvents):
    """What chat and completions share: all of the reading."""

    def _read(self, data: bytes, name: str) -> Reading:
        chunk = decode_json(_decoder, data)
        reading = _reading(chunk)
        if reading.error is None and "error" in (name, chunk.object, chunk.type):
            reading.error = _message(chunk) or "the server sent an error event"
        return reading

    def _read_whole(self, data: bytes) -> Reading:
        chunk = decode_json(_decoder, data)
        reading = _reading(chunk)
        if reading.error is None and (chunk.object == "error" or not reading.seen):
            reading.error = _message(chunk) or None
        return reading


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


class Completions(_OpenAI):
    """`POST /v1/completions`."""

    path: ClassVar[str] = "/v1/completions"
    optional: ClassVar[tuple[str, ...]] = ("stream_options", "ignore_eos", "min_tokens")
    takes_ids: ClassVar[bool] = True

    def body(self, ask: Ask) -> bytes:
        own = {"prompt": ask.prompt, "max_tokens": ask.output_tokens}
        return encode_body(ask, {**own, **_optional(ask)})


def _optional(ask: Ask) -> dict[str, Any]:
    usage = {"stream_options": {"include_usage": True}} if "stream_options" in ask.fields else {}
    return {**usage, **full_length(ask)}


def _reading(chunk: _Chunk) -> Reading:
    reading = Reading()
    choices = chunk.choices
    if isinstance(choices, list):
        if len(choices) == 1 and isinstance(choices[0], _Choice):
            _read_choice(choices[0], reading)
        else:
            _read_choices([choice for choice in choices if isinstance(choice, _Choice)], reading)
    if chunk.usage is not None:
        reading.usage = read_usage(chunk.usage) or reading.usage
    if isinstance(chunk.x_groq, dict):
        reading.usage = read_usage(chunk.x_groq.get("usage")) or reading.usage
    if chunk.timings is not None:
        reading.timed = _timed(chunk.timings)
    if chunk.error:
        reading.error = error_text(chunk.error)
    return reading


def _read_choices(choices: list[_Choice], reading: Reading) -> None:
    """Several choices in one event, joined; the finish reason is that of the first of those that ended."""
    parts = [Reading() for _ in choices]
    for choice, part in zip(choices, parts, strict=True):
        _read_choice(choice, part)
        reading.usage = part.usage or reading.usage
        reading.error = part.error or reading.error
    reading.output = [piece for part in parts for piece in part.output]
    reading.whole = any(part.whole for part in parts)
    reading.seen = [index for part in parts for index in part.seen]
    reading.finished = [index for part in parts for index in part.finished]
    ended = min((part for part in parts if part.finished), key=lambda part: part.finished[0], default=None)
    reading.finish_reason = None if ended is None else ended.finish_reason
    ids = [part.token_ids for part in parts if part.token_ids is not None]
    reading.token_ids = sum(ids) if ids else None


def _read_choice(choice: _Choice, reading: Reading) -> None:
    index = choice.index
    if index != 0 or index is False:
        index = _index(index)
    reading.seen = seen = _FIRST if index == 0 else (index,)
    reading.output = _output(index, choice, reading)
    if choice.finish_reason and choice.finish_reason != "null":
        reading.finished = seen
        reading.finish_reason = reason = _reason(choice.finish_reason)
        if reason.lower() in _FAILED:
            said = choice.finish_reason.get("message") if isinstance(choice.finish_reason, dict) else None
            reading.error = error_text(said) if said else f"finish_reason {reason}"
    if choice.usage is not None:
        reading.usage = read_usage(choice.usage) or reading.usage
    ids = choice.token_ids or choice.output_ids
    if isinstance(ids, list):
        reading.token_ids = len(ids)
    if choice.error:
        reading.error = error_text(choice.error)


def _index(value: Any) -> int:
    if isinstance(value, str) and value.isdecimal():
        value = float(value)
    return count(value) or 0


def _output(index: int, choice: _Choice, reading: Reading) -> tuple[Output, ...]:
    """What was generated. `text` counts where the payload has nothing: some servers say it in both."""
    payload = choice.delta
    output: tuple[Output, ...] = ()
    if not isinstance(payload, _Payload):
        payload = choice.message
        reading.whole = isinstance(payload, _Payload)
    if isinstance(payload, _Payload):
        output = _payload_output(index, payload)
    if not output and choice.text and (text := text_of(choice.text)):
        reading.whole = False
        return (Output(index, "text", text),)
    return output


def _payload_output(index: int, payload: _Payload) -> tuple[Output, ...]:
    content = payload.content
    output = []
    if text := _reasoning(payload):
        output.append(Output(index, "reasoning", text))
    if isinstance(content, list):
        content = "".join(text_of(part) for part in content if not _is_reasoning(part))
    if content and (text := text_of(content)):
        output.append(Output(index, "text", text))
    if payload.audio and (text := text_of(payload.audio, "transcript", "data")):
        output.append(Output(index, "text", text))
    if payload.refusal and (text := text_of(payload.refusal)):
        output.append(Output(index, "refusal", text))
    if (payload.tool_calls or payload.function_call) and (text := _calls(payload)):
        output.append(Output(index, "tool", text))
    return tuple(output)


def _reasoning(payload: _Payload) -> str:
    """Servers that give it in several spellings give the same text in each."""
    spellings = (
        payload.reasoning,
        payload.reasoning_content,
        payload.reasoning_text,
        payload.thinking,
        payload.reasoning_details,
        payload.thinking_blocks,
    )
    if any(spellings):
        for value in spellings:
            if text := text_of(value, "text", "summary", "content", "thinking"):
                return text
    if not isinstance(payload.content, list):
        return ""
    thoughts = (part for part in payload.content if _is_reasoning(part))
    return "".join(text_of(part, "thinking", "reasoning", "text") for part in thoughts)


def _is_reasoning(part: Any) -> bool:
    kind = part.get("type") if isinstance(part, dict) else None
    return isinstance(kind, str) and kind.startswith(("think", "reason"))


def _calls(payload: _Payload) -> str:
    """The names and arguments of tool calls; an id alone is no generated output."""
    calls = payload.tool_calls if isinstance(payload.tool_calls, list) else []
    functions = [object_of(call, "function", "custom") for call in calls if isinstance(call, dict)]
    if isinstance(payload.function_call, dict):  # the spelling before there were tools
        functions.append(payload.function_call)
    return "".join(
        written(function.get(key)) for function in functions for key in ("name", "arguments", "input")
    )


def _reason(value: Any) -> str:
    """A finish reason is a text, or an object that names it as its `type`."""
    named = value.get("type") if isinstance(value, dict) else value
    return named if isinstance(named, str) else str(value)


def _message(chunk: _Chunk) -> str:
    said = chunk.message or chunk.detail
    return error_text(said) if said else ""


def _timed(timings: Any) -> Usage | None:
    """llama.cpp's counts beside its timings; the prompt is what was computed and what was cached."""
    if not isinstance(timings, dict):
        return None
    computed, cached = count(timings.get("prompt_n")), count(timings.get("cache_n"))
    prompt = None if computed is None else computed + (cached or 0)
    return Usage(prompt, count(timings.get("predicted_n")), cached)
