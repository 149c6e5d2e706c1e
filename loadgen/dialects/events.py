"""What the dialects have in common: events with a JSON object each, and the spellings of texts and counts.

JSON is read strictly where it is JSON at all and tolerantly in its leaves: servers put null, objects and
numbers where a text is due, and a leaf of an unexpected type says nothing.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from loadgen.dialects.dialect import Ask, Reading, Usage, error_text
from loadgen.sse import SseEvent

MOST_TOKENS = 1_000_000_000
_T = TypeVar("_T")
_CHUNK_NAMES = frozenset({"", "message", "error"})
# A pair of surrogates is a character; one alone, as a cut through a character leaves it, is not.
_SURROGATES = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)
_BEGINNING_BYTES = 1_000  # more than is shown: it is scrubbed before it is cut


class JsonEvents(ABC):
    """A dialect whose events hold a JSON object each; keep-alives and `[DONE]` are the same in all."""

    def headers(self, api_key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def read_event(self, event: SseEvent) -> Reading:
        data = event.data.strip()
        if data.startswith(b"{"):
            return self._read(data, event.name)
        if data == b"[DONE]":
            return Reading(done=True)
        if data and event.name == "error":
            return Reading(error=data.decode("utf-8", "replace"))
        if data and event.name in _CHUNK_NAMES:
            raise ValueError(f"no JSON object: {data[:_BEGINNING_BYTES].decode('utf-8', 'replace')}")
        return Reading()  # a keep-alive

    def read_body(self, body: bytes) -> Reading:
        if body.startswith(b"["):  # as gateways wrap an error; an answer is an object
            return Reading(error=error_text(decode_json(_any, body)))
        return self._read_whole(body)

    @abstractmethod
    def _read(self, data: bytes, name: str) -> Reading:
        """What an object says in an event of that name."""

    @abstractmethod
    def _read_whole(self, data: bytes) -> Reading:
        """What an object says that is the whole answer."""


def encode_body(ask: Ask, own: dict[str, Any]) -> bytes:
    """A body with the dialect's `own` fields, `extra` over them, and without what is null."""
    body = {"model": ask.model, **own, "stream": True, **ask.extra}
    return msgspec.json.encode({key: value for key, value in body.items() if value is not None})


def full_length(ask: Ask) -> dict[str, Any]:
    """What makes an output as long as asked for, by vLLM's names, which others took over."""
    fields = {"ignore_eos": True, "min_tokens": ask.output_tokens}
    return {name: value for name, value in fields.items() if name in ask.fields}


def decode_json(decoder: msgspec.json.Decoder[_T], data: bytes) -> _T:
    """JSON as servers write it: with NaN, halves of a surrogate pair, and bytes that are no UTF-8 too.

    The standard of server-sent events has such bytes replaced, and so are such halves.
    """
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        text = data.decode("utf-8", "replace")
        whole = _SURROGATES.sub(lambda match: "\ufffd" if match[1] else match[0], text)
        try:
            value: _T = msgspec.convert(json.loads(whole), decoder.type)
        except json.JSONDecodeError:
            raise error from None
        return value


def decode_object(data: bytes) -> dict[str, Any]:
    return decode_json(_object, data)


def kind_of(event: dict[str, Any], name: str) -> str:
    """The type that an event says in itself, else the name under which it came."""
    kind = event.get("type")
    return kind if isinstance(kind, str) else name


def event_error(event: dict[str, Any], kind: str, name: str) -> str | None:
    """The message of an event that has an error in it, or is one."""
    if event.get("error"):
        return error_text(event["error"])
    return error_text(event) if "error" in (kind, name) else None


def count(value: Any) -> int | None:
    """A number of tokens; None for what cannot be one."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return int(value) if 0 <= value <= MOST_TOKENS and value == int(value) else None


def object_of(parent: dict[str, Any], *names: str) -> dict[str, Any]:
    """The first of these members that is an object; {} if none is."""
    return next((value for name in names if isinstance(value := parent.get(name), dict)), {})


def read_usage(usage: Any) -> Usage | None:
    """Token counts by any of the names that servers give them."""
    if not isinstance(usage, dict):
        return None
    inner = object_of(usage, "prompt_tokens_details", "input_tokens_details")
    outer = object_of(usage, "completion_tokens_details", "output_tokens_details")
    read = _counted(usage, "cache_read_input_tokens")
    prompt = _counted(usage, "prompt_tokens")
    if prompt is None and (prompt := _counted(usage, "input_tokens")) is not None:
        # Where what a cache took part in has names of its own, it is not in the count of the input.
        prompt += (read or 0) + (_counted(usage, "cache_creation_input_tokens") or 0)
    cached = (
        _counted(inner, "cached_tokens"),
        _counted(usage, "cached_tokens", "prompt_cache_hit_tokens"),
        read,
    )
    completion = _counted(usage, "completion_tokens", "output_tokens")
    reasoning = _counted({**usage, **outer}, "reasoning_tokens")
    if completion is not None and prompt is not None and reasoning:
        # Some servers count reasoning apart: then only all three make up the total.
        apart = _counted(usage, "total_tokens") == prompt + completion + reasoning
        completion += reasoning if apart else 0
    return Usage(prompt, completion, _first(cached), reasoning)


def _counted(usage: dict[str, Any], *names: str) -> int | None:
    return _first(count(usage.get(name)) for name in names)


def _first(counts: Iterable[int | None]) -> int | None:
    return next((known for known in counts if known is not None), None)


def text_of(value: Any, *keys: str) -> str:
    """A text, that of an object under the first key that has one, or that of all parts of a list."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return next((text for key in keys or ("text",) if (text := text_of(value.get(key), *keys))), "")
    return "".join(text_of(part, *keys) for part in value) if isinstance(value, list) else ""


def written(value: Any) -> str:
    """The arguments of a call: a text, or an object that stands for one. "" for what is empty."""
    if isinstance(value, dict) and value:
        return msgspec.json.encode(value).decode()
    return value if isinstance(value, str) else ""


_any = msgspec.json.Decoder()
_object = msgspec.json.Decoder(dict[str, Any])
