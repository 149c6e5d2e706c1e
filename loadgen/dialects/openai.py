"""OpenAI's chat completions and completions, in the spellings that compatible servers use.

Leaves of the JSON are read without types: servers put null, objects and numbers where OpenAI puts text, and
only a non-empty text (or tool call) is generated output.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Any

import msgspec

from loadgen.dialects.dialect import Ask, Reading, error_text
from loadgen.sse import SseEvent

_FAILED = frozenset({"error", "abort"})
_EVENT_NAMES = frozenset({"", "message", "error"})
_MOST_TOKENS = 1_000_000_000
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
    error: Any = None


class _Usage(msgspec.Struct, gc=False):
    completion_tokens: Any = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: str | None = None
    message: Any = None


_decoder = msgspec.json.Decoder(_Chunk)


class _OpenAI(ABC):
    """What chat and completions share."""

    def read_event(self, event: SseEvent) -> Reading:
        data = event.data.strip()
        if data == b"[DONE]":
            return Reading(done=True)
        if not data or (event.name not in _EVENT_NAMES and not data.startswith(b"{")):  # a keep-alive
            return Reading()
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
            reading.usage_tokens = _count(chunk.usage.completion_tokens)
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
            reason = _reason(choice.finish_reason)
            reading.finished = (*reading.finished, index)
            if index == 0 or reading.finish_reason is None:
                reading.finish_reason = reason
            if reason in _FAILED:
                reading.error = f"finish_reason {reason}"
        if choice.error is not None:
            reading.error = error_text(choice.error)

    @abstractmethod
    def _payload(self, choice: _Choice) -> tuple[str, str, bool]:
        """The text, the reasoning, and whether there is generated output of another kind."""


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
        text, reasoning = _text(payload.content), _reasoning(payload)
        return text, reasoning, not (text or reasoning) and (bool(_text(payload.refusal)) or _calls(payload))


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


def _decode(data: bytes) -> _Chunk:
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError:
        whole = _SURROGATES.sub(lambda match: b"\\ufffd" if match[1] else match[0], data)
        if whole == data:
            raise
        return _decoder.decode(whole)


def _count(value: Any) -> int | None:
    """A number of tokens; None for what cannot be one."""
    whole = isinstance(value, int | float) and 0 <= value <= _MOST_TOKENS and value == int(value)
    return int(value) if whole else None


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


def _calls(payload: _Payload) -> bool:
    """Whether a tool call carries a name or arguments; an id alone is no generated output."""
    if not (payload.tool_calls or payload.function_call):
        return False
    calls = payload.tool_calls if isinstance(payload.tool_calls, list) else []
    functions = [call.get("function") for call in calls if isinstance(call, dict)]
    functions.append(payload.function_call)  # the spelling before there were tools
    return any(f.get("name") or f.get("arguments") for f in functions if isinstance(f, dict))
