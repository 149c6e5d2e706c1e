"""OpenAI's responses, in the spellings that compatible servers use.

What an event says follows from the end of its type: `.delta` brings output and `.done` repeats it. The
response itself, wherever one is in an event, says by its status whether the stream is over.
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

_Kind = Literal["text", "reasoning", "refusal", "tool"]
_BEGUN = frozenset({"response.created", "response.queued", "response.in_progress"})
_ENDS = frozenset({"completed", "incomplete", "failed", "cancelled"})
_FAILED = frozenset({"failed", "cancelled"})
_ONE = (0,)


class Responses(JsonEvents):
    """`POST /v1/responses`."""

    path: ClassVar[str] = "/v1/responses"
    optional: ClassVar[tuple[str, ...]] = ("ignore_eos", "min_tokens")
    takes_ids: ClassVar[bool] = False

    def body(self, ask: Ask) -> bytes:
        return encode_body(
            ask, {"input": ask.prompt, "max_output_tokens": ask.output_tokens, **full_length(ask)}
        )

    def _read(self, data: bytes, name: str) -> Reading:
        event = decode_object(data)
        kind = kind_of(event, name)
        reading = Reading(seen=_ONE)
        if kind.endswith(".delta") and (text := text_of(event.get("delta"), "text", "content")):
            reading.output = (Output(0, _kind(kind), text),)
        if isinstance(event.get("response"), dict):
            _read_response(event["response"], kind, reading)
        reading.error = event_error(event, kind, name) or reading.error
        return reading

    def _read_whole(self, data: bytes) -> Reading:
        response = decode_object(data)
        reading = Reading(seen=_ONE)
        _read_response(response, "", reading)
        if reading.error is None and not isinstance(response.get("output"), list):
            said = response.get("message") or response.get("detail")
            reading.error = error_text(said) if said else None
        return reading


def _kind(name: str) -> _Kind:
    """Of what a type speaks: `response.reasoning_summary_text.delta`, `function_call`, `refusal`, ..."""
    if "reason" in name:
        return "reasoning"
    if "refusal" in name:
        return "refusal"
    return "tool" if "call" in name or "arguments" in name else "text"


def _read_response(response: dict[str, Any], kind: str, reading: Reading) -> None:
    reading.usage = read_usage(response.get("usage"))
    if response.get("error"):
        reading.error = error_text(response["error"])
    named = kind.removeprefix("response.")
    status = named if named in _ENDS else response.get("status")
    if kind in _BEGUN or not isinstance(status, str) or status not in _ENDS:
        return
    why = object_of(response, "incomplete_details").get("reason")
    reading.finish_reason = why if isinstance(why, str) and why else status
    reading.finished = _ONE
    reading.done = True
    reading.output, reading.whole = _items(response.get("output")), True
    if status in _FAILED and reading.error is None:
        reading.error = f"response {status}"


def _items(items: Any) -> tuple[Output, ...]:
    """The output of a whole response: messages, reasoning and calls."""
    output: list[Output] = []
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict):
            output += _item(item)
    return tuple(output)


def _item(item: dict[str, Any]) -> list[Output]:
    kind = _kind(str(item.get("type")))
    if kind == "tool":
        text = "".join(written(item.get(key)) for key in ("name", "arguments", "input", "code"))
        return [Output(0, "tool", text)] if text else []
    if kind == "reasoning":
        text = text_of(item.get("content")) or text_of(item.get("summary"))
        return [Output(0, "reasoning", text)] if text else []
    parts = item.get("content")
    return [
        Output(0, _kind(str(part.get("type"))), text)
        for part in (parts if isinstance(parts, list) else ())
        if isinstance(part, dict) and (text := text_of(part, "text", "refusal"))
    ]
