"""Mooncake's traces, and AIPerf's: JSONL with `timestamp` (ms), `input_length`, `output_length`, `hash_ids`.

A hash id labels 512 tokens of a prompt, the last one what is left; equal ids are equal content. In AIPerf's
dialect all but a length is optional: a prompt may be a text (`text_input`, `messages`), and lines of one
`session_id` are turns, each `delay` ms behind the answer before.
https://github.com/kvcache-ai/Mooncake https://github.com/ai-dynamo/aiperf
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from io import BufferedReader
from itertools import chain, islice
from typing import Any, NamedTuple

import msgspec

from ledgers.formats import fields
from ledgers.formats.fields import Skipped, TraceRow
from ledgers.formats.head import Head
from ledgers.formats.texts import dialogue, message_texts
from ledgers.formats.times import scaled_ns
from ledgers.kept import Kept
from ledgers.vocabulary import count_tokens

name = "mooncake"
BLOCK_TOKENS = 512
PROMPTS = ("input_length", "text_input", "messages")
MOST_HELD = 1_000  # records without a time at the top of a file, until one has a time or there are none
BESIDE = frozenset({"timestamp", "delay", "session_id", "output_length", "hash_ids"})


class Record(msgspec.Struct):
    """The fields that are read; the decoder passes over the others without building them."""

    timestamp: Any = None
    delay: Any = None
    session_id: Any = None
    input_length: Any = None
    text_input: Any = None
    messages: Any = None
    message_mode: Any = None
    payload: Any = None
    output_length: Any = None
    hash_ids: Any = None


class _Turn(NamedTuple):
    number: int
    time_ns: int | Fraction | None


def detects(head: Head) -> bool:
    known = not head.keys.isdisjoint(PROMPTS) and not head.keys.isdisjoint(BESIDE)
    return known and "chat_id" not in head.keys  # Bailian's traces look alike, but count in seconds


def read(file: BufferedReader, source: str) -> Iterator[TraceRow | Skipped]:
    records = fields.json_records(file, source, Record)
    top = _top(records)
    timed = any(_has_time(record) for _, record in top)
    return fields.parsed(chain(top, records), _Reader(timed).row, source)


def _top(records: Iterator[tuple[int, Record]]) -> list[tuple[int, Record]]:
    """The first records, up to one with a time: without any, the file has lengths alone."""
    top = []
    for line, record in islice(records, MOST_HELD):
        top.append((line, record))
        if _has_time(record):
            break
    return top


def _has_time(record: Record) -> bool:
    return not (_is_partial(record) or fields.missing(record.timestamp))


def _is_partial(record: Record) -> bool:
    return record.payload is not None or record.message_mode == "delta"


class _Reader:
    """Knows the last turn of each session, and whether the file has times."""

    def __init__(self, timed: bool) -> None:
        self._timed = timed
        self._last: Kept[_Turn] = Kept()

    def row(self, line: int, record: Record) -> TraceRow | Skipped:
        if _is_partial(record):
            return Skipped(line, "a payload or message delta in place of a length or a whole prompt")
        session = fields.optional_label(record.session_id, "session_id")
        before = self._last.get(session) if session else None
        think_ns = _think_ns(record, before)
        time_ns = _time_ns(record, before, think_ns)
        if self._timed and time_ns is None:
            return Skipped(line, fields.NO_TIME)
        turn = _Turn(before.number + 1 if before else 0, time_ns)
        if session:
            self._last[session] = turn
        return TraceRow(
            line=line,
            time_ns=time_ns,
            output_tokens=fields.tokens(record.output_length, "output_length"),
            session=session,
            turn=turn.number if session else None,
            think_ns=think_ns,
            **_prompt(record),
        )


def _think_ns(record: Record, before: _Turn | None) -> int | None:
    """How long a turn follows the answer before; without a delay or a time of its own, it follows at once."""
    if before is None or (fields.missing(record.delay) and not fields.missing(record.timestamp)):
        return None
    return 0 if fields.missing(record.delay) else round(scaled_ns(record.delay, "delay", "ms"))


def _time_ns(record: Record, before: _Turn | None, think_ns: int | None) -> int | Fraction | None:
    """A turn without a time of its own comes behind the one before, at the earliest."""
    if not fields.missing(record.timestamp):
        return scaled_ns(record.timestamp, "timestamp", "ms")
    if before is None or before.time_ns is None:
        return None
    return before.time_ns + (think_ns or 0)


def _prompt(record: Record) -> dict[str, Any]:
    text = record.text_input
    if text is None and record.messages is not None:
        text = dialogue(message_texts(record.messages))
    if text is not None:
        if not isinstance(text, str):
            raise ValueError(f"text_input is {fields.shown(text)}, not a text")
        return {"prompt": text, "prompt_tokens": count_tokens(text)}
    hash_ids = None if record.hash_ids is None else fields.hash_ids(record.hash_ids, "hash_ids")
    return {
        "prompt_tokens": fields.tokens(record.input_length, "input_length"),
        "hash_ids": hash_ids,
        "block_tokens": BLOCK_TOKENS if hash_ids else None,
    }
