"""Anthropic's messages, in the spellings that compatible servers use.

A delta with text, thinking or a piece of a call's input is output, whatever the event is called; signatures
and citations are none. The stream ends with `message_stop`; a stop reason says that the answer is complete.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from loadgen.dialects.dialect import Ask, Output, Reading, error_text
from loadgen.dialects.events import (
    JsonEvents,
    decode_object,
    encode_body,
    event_error,
    full_length,
    kind_of,
    object_of,
    read_usage,
    text_of,
    written,
)

_VERSION = "2023-06-01"
_OUTPUT: tuple[tuple[str, Literal["text", "reasoning", "tool"]], ...] = (
    ("thinking", "reasoning"),
    ("text", "text"),
    ("partial_json", "tool"),
    ("input", "tool"),
)
_ONE = (0,)


class Messages(JsonEvents):
    """`POST /v1/messages`."""

    path: ClassVar[str] = "/v1/messages"
    optional: ClassVar[tuple[str, ...]] = ("ignore_eos", "min_tokens")
    takes_ids: ClassVar[bool] = False

    def headers(self, api_key: str) -> dict[str, str]:
        """The key in both ways: compatible servers check the one that they know from OpenAI's dialects."""
        keys = {"x-api-key": api_key} if api_key else {}
        return {"anthropic-version": _VERSION, **keys, **super().headers(api_key)}

    def body(self, ask: Ask) -> bytes:
        messages = [{"role": "user", "content": ask.prompt}]
        return encode_body(ask, {"messages": messages, "max_tokens": ask.output_tokens, **full_length(ask)})

    def _read(self, data: bytes, name: str) -> Reading:
        event = decode_object(data)
        kind = kind_of(event, name)
        delta = object_of(event, "delta")
        reading = Reading(
            output=(*_block(object_of(event, "content_block")), *_block(delta)),
            seen=_ONE,
            usage=read_usage(event.get("usage")),
            done=kind == "message_stop",
        )
        if isinstance(event.get("message"), dict):
            _read_message(event["message"], reading)
        _read_stop(delta, reading)
        reading.error = event_error(event, kind, name) or reading.error
        return reading

    def _read_whole(self, data: bytes) -> Reading:
        message = decode_object(data)
        reading = Reading(seen=_ONE)
        _read_message(message, reading)
        if message.get("error") or message.get("type") == "error":
            reading.error = error_text(message.get("error") or message)
        elif not isinstance(message.get("content"), list):
            said = message.get("message") or message.get("detail")
            reading.error = error_text(said) if said else None
        return reading


def _read_message(message: dict[str, Any], reading: Reading) -> None:
    blocks = message.get("content")
    if isinstance(blocks, list):
        told = (piece for block in blocks if isinstance(block, dict) for piece in _block(block))
        reading.output = [*reading.output, *told]
    reading.usage = read_usage(message.get("usage")) or reading.usage
    _read_stop(message, reading)


def _read_stop(said: dict[str, Any], reading: Reading) -> None:
    reason = said.get("stop_reason")
    if reason:
        reading.finished = _ONE
        reading.finish_reason = reason if isinstance(reason, str) else str(reason)


def _block(block: dict[str, Any]) -> tuple[Output, ...]:
    """The output of a block of content, or of a piece of one."""
    return tuple(
        Output(0, kind, text)
        for key, kind in _OUTPUT
        if (value := block.get(key)) and (text := written(value) if kind == "tool" else text_of(value))
    )
