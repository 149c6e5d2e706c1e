"""OpenTelemetry spans of GenAI calls: OTLP as JSON, one object or JSONL, or spans collected in one object.

A call is a span of a chat, a completion or `generate_content`; others (agents, tools) would count its tokens
again. Lengths are its usage, or the mock's count of its texts where it has none. Its session is the
conversation it names, else its trace. Spans that overlap stay as they are: each is sent at its own time.
https://github.com/open-telemetry/semantic-conventions-genai
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedReader
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from ledgers.formats import fields
from ledgers.formats.documents import json_documents
from ledgers.formats.fields import Skipped, TraceRow, located
from ledgers.formats.head import Head
from ledgers.formats.texts import dialogue, message_texts
from ledgers.formats.times import scaled_ns, timestamp_ns
from ledgers.vocabulary import count_tokens

name = "otel"
OPERATION = "gen_ai.operation.name"
CALLS = frozenset({None, "chat", "text_completion", "generate_content"})
# The later name first: a span that has both says the same twice.
PROMPT_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
OUTPUT_TOKENS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
PROMPT_TEXTS = ("gen_ai.input.messages",)
OUTPUT_TEXTS = ("gen_ai.output.messages", "gen_ai.output.text")
SESSIONS = ("gen_ai.conversation.id", "session.id", "exgentic.session.id")
Attributes = dict[str, Any]


class _Span(NamedTuple):
    fields: dict[str, Any]
    resource: Attributes


def detects(head: Head) -> bool:
    return not head.keys.isdisjoint({"resourceSpans", "spans"})


def read(file: BufferedReader, source: str) -> Iterator[TraceRow | Skipped]:
    for line, document in json_documents(file, source, dict[str, Any]):
        try:
            for span in _spans(document):
                yield _row(line, span)
        except ValueError as error:
            raise located(source, line, error) from None


def _spans(document: dict[str, Any]) -> Iterator[_Span]:
    """All spans of an object, with the attributes of the resource that they are of."""
    for resource in _objects(document, "resourceSpans"):
        attributes = _attributes(resource.get("resource", {}), "attributes")
        scopes = chain(_objects(resource, "scopeSpans"), _objects(resource, "instrumentationLibrarySpans"))
        for scope in scopes:
            yield from (_Span(span, attributes) for span in _objects(scope, "spans"))
    for span in _objects(document, "spans"):
        yield _Span(span, _attributes(span, "resource_attributes"))


def _objects(holder: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = holder.get(key) or []
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise ValueError(f"{key} is {fields.shown(found)}, not a list of objects")
    return found


def _row(line: int, span: _Span) -> TraceRow | Skipped:
    attributes = _attributes(span.fields, "attributes")
    if attributes.get(OPERATION) not in CALLS:
        return Skipped(line, "a span of another operation than a chat or a completion")
    prompt = _text(attributes, PROMPT_TEXTS)
    output = _text(attributes, OUTPUT_TEXTS)
    prompt_tokens = _tokens(attributes, PROMPT_TOKENS, prompt)
    output_tokens = _tokens(attributes, OUTPUT_TOKENS, output)
    if prompt_tokens is None or output_tokens is None:
        return Skipped(line, "a span with neither token usage nor texts")
    time_ns = _start_ns(span.fields)
    if time_ns is None:
        return Skipped(line, fields.NO_TIME)
    return TraceRow(
        line=line,
        time_ns=time_ns,
        dated=True,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        session=_session(span, attributes),
        prompt=prompt,
        counted_otherwise=prompt is not None and count_tokens(prompt) != prompt_tokens,
    )


def _start_ns(span: dict[str, Any]) -> Any:
    for field in ("startTimeUnixNano", "start_time_unix_nano"):
        if not fields.missing(span.get(field)):
            return scaled_ns(span[field], field, "ns")
    start = span.get("start_time")
    return None if fields.missing(start) else timestamp_ns(start, "start_time")


def _session(span: _Span, attributes: Attributes) -> str | None:
    for known in (attributes, span.resource):
        for name in SESSIONS:
            if not fields.missing(known.get(name)):
                return fields.label(known[name], name)
    trace = span.fields.get("traceId", span.fields.get("trace_id"))
    return fields.optional_label(trace, "trace id")


def _tokens(attributes: Attributes, names: tuple[str, ...], text: str | None) -> int | None:
    for name in names:
        if not fields.missing(attributes.get(name)):
            return fields.tokens(attributes[name], name)
    return None if text is None else count_tokens(text)


def _text(attributes: Attributes, names: tuple[str, ...]) -> str | None:
    """The texts of messages, which an attribute holds as JSON; or a text as it is."""
    for name in names:
        value = attributes.get(name)
        if isinstance(value, str) and name.endswith(".messages"):
            try:
                value = msgspec.json.decode(value)
            except (msgspec.DecodeError, RecursionError):  # cut off, by a limit on the length of attributes
                continue
        text = dialogue(message_texts(value))
        if text.strip():  # blanks alone are no prompt
            return text
    return None


def _attributes(holder: Any, key: str) -> Attributes:
    """Attributes as a mapping; in OTLP they are a list of keys and typed values."""
    found = holder.get(key) if isinstance(holder, dict) else None
    if found is None:
        return {}
    if isinstance(found, dict):
        return found
    if not isinstance(found, list):
        raise ValueError(f"{key} is {fields.shown(found)}, neither an object nor a list")
    pairs = [item for item in found if isinstance(item, dict) and isinstance(item.get("key"), str)]
    return {item["key"]: _value(item.get("value")) for item in pairs}


def _value(value: Any) -> Any:
    """What a typed value of OTLP holds: {"intValue": "42"} is "42", for it writes 64 bits as a string."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    (kind, held) = next(iter(value.items()))
    if kind == "arrayValue" and isinstance(held, dict):
        return [_value(item) for item in held.get("values") or []]
    if kind == "kvlistValue":
        return _attributes(held, "values")
    return held
