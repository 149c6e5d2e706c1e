"""OpenAI's chat completions and completions, in the spellings that compatible servers use.

Leaves of the JSON are read without types: servers put null, objects and numbers where OpenAI puts text, and
only a non-empty text (or tool call) is generated output.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from loadgen.dialects.dialect import Ask, Reading, error_text
from loadgen.sse import SseEvent

_FAILED = frozenset({"error", "abort"})
_FIRST = (0,)


class _Payload(msgspec.Struct, gc=False):
    """A `delta` of a stream or the `message` of a whole answer."""

    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    refusal: Any = None
    tool_calls: Any = None


class _Choice(msgspec.Struct, gc=False):
    index: int | None = None
    delta: _Payload | None = None
    message: _Payload | None = None
    text: Any = None
    finish_reason: Any = None
    error: Any = None


class _Usage(msgspec.Struct, gc=False):
    completion_tokens: int | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: str | None = None
    message: Any = None


_decoder = msgspec.json.Decoder(_Chunk)


class _OpenAI:
    """What chat and completions share."""

    def read_event(self, event: SseEvent) -> Reading:
        data = event.data
        if data[:1] == b"[" and data.strip() == b"[DONE]":
            return Reading(done=True)
        chunk = _decoder.decode(data)
        if event.name == "error" and chunk.error is None:
            chunk.error = chunk.message or "the server sent an error event"
        return self._read(chunk)

    def read_body(self, body: bytes) -> Reading:
        return self._read(_decoder.decode(body))

    def _read(self, chunk: _Chunk) -> Reading:
        reading = Reading()
        for choice in chunk.choices or ():
            self._read_choice(choice, reading)
        if chunk.usage is not None:
            reading.usage_tokens = chunk.usage.completion_tokens
        if chunk.error is not None:
            reading.error = error_text(chunk.error)
        elif chunk.object == "error":  # the flat shape of older servers
            reading.error = error_text(chunk.message)
        return reading

    def _read_choice(self, choice: _Choice, reading: Reading) -> None:
        index = choice.index or 0
        text, reasoning, other = self._payload(choice)
        if text or reasoning or other:
            reading.token = True
        reading.seen = _FIRST if not index and not reading.seen else (*reading.seen, index)
        if index == 0:
            reading.text, reading.reasoning = text, reasoning
        if choice.finish_reason:
            reading.finished = (*reading.finished, index)
            if index == 0 or reading.finish_reason is None:
                reading.finish_reason = str(choice.finish_reason)
            if choice.finish_reason in _FAILED:
                reading.error = f"finish_reason {choice.finish_reason}"
        if choice.error is not None:
            reading.error = error_text(choice.error)

    def _payload(self, choice: _Choice) -> tuple[str, str, bool]:
        raise NotImplementedError


class Chat(_OpenAI):
    """`POST /v1/chat/completions`."""

    path = "/v1/chat/completions"

    def body(self, ask: Ask) -> bytes:
        messages = [{"role": "user", "content": ask.prompt}]
        return _encode(ask, {"messages": messages, "max_completion_tokens": ask.output_tokens})

    def _payload(self, choice: _Choice) -> tuple[str, str, bool]:
        payload = choice.delta or choice.message
        if payload is None:
            return "", "", False
        reasoning = _text(payload.reasoning) or _text(payload.reasoning_content)
        other = bool(_text(payload.refusal)) or (bool(payload.tool_calls) and _calls(payload.tool_calls))
        return _text(payload.content), reasoning, other


class Completions(_OpenAI):
    """`POST /v1/completions`."""

    path = "/v1/completions"

    def body(self, ask: Ask) -> bytes:
        return _encode(ask, {"prompt": ask.prompt, "max_tokens": ask.output_tokens})

    def _payload(self, choice: _Choice) -> tuple[str, str, bool]:
        return _text(choice.text), "", False


def _encode(ask: Ask, own: dict[str, Any]) -> bytes:
    body = {"model": ask.model, **own, "stream": True, "stream_options": {"include_usage": True}}
    if ask.ignore_eos:
        body["ignore_eos"] = True
    body.update(ask.extra)
    return msgspec.json.encode({key: value for key, value in body.items() if value is not None})


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _calls(tool_calls: Any) -> bool:
    """Whether a tool call carries a name or arguments; an id alone is no generated output."""
    calls: Iterable[Any] = tool_calls if isinstance(tool_calls, list) else ()
    functions = (call.get("function") for call in calls if isinstance(call, dict))
    return any(f.get("name") or f.get("arguments") for f in functions if isinstance(f, dict))
