"""Qwen-Bailian's traces: JSONL as Mooncake's, but in seconds, in blocks of 16 tokens, with conversations.

`parent_chat_id` names the turn before; -1 begins a conversation, whose id becomes the session. `type` becomes
the class. https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from io import BufferedReader
from typing import Any

import msgspec

from ledgers.formats import fields
from ledgers.formats.fields import Skipped, TraceRow
from ledgers.formats.head import Head
from ledgers.kept import Kept

name = "bailian"
BLOCK_TOKENS = 16
NO_PARENT = "-1"


class Record(msgspec.Struct):
    """The fields that are read; the decoder passes over the others without building them."""

    chat_id: Any = None
    parent_chat_id: Any = None
    timestamp: Any = None
    input_length: Any = None
    output_length: Any = None
    type: Any = None
    turn: Any = None
    hash_ids: Any = None


def detects(head: Head) -> bool:
    return head.keys >= {"chat_id", "timestamp", "input_length"}


def read(file: BufferedReader, source: str) -> Iterator[TraceRow | Skipped]:
    first_turns: Kept[str] = Kept()  # of turns that have one before them
    records = fields.json_records(file, source, Record)
    return fields.parsed(records, partial(_row, first_turns), source)


def _row(first_turns: Kept[str], line: int, record: Record) -> TraceRow | Skipped:
    session = _session(record, first_turns)  # also of a turn that is left out: others follow it
    if fields.missing(record.timestamp):
        return Skipped(line, fields.NO_TIME)
    hash_ids = None if record.hash_ids is None else fields.hash_ids(record.hash_ids, "hash_ids")
    return TraceRow(
        line=line,
        time_ns=fields.seconds_ns(record.timestamp, "timestamp"),
        prompt_tokens=fields.tokens(record.input_length, "input_length"),
        output_tokens=fields.tokens(record.output_length, "output_length"),
        class_=fields.optional_label(record.type, "type"),
        session=session,
        turn=None if fields.missing(record.turn) else fields.whole(record.turn, "turn", least=0),
        hash_ids=hash_ids,
        block_tokens=BLOCK_TOKENS if hash_ids else None,
    )


def _session(record: Record, first_turns: Kept[str]) -> str | None:
    """The first turn of the conversation, if the turns between are on the lines above."""
    chat = fields.optional_label(record.chat_id, "chat_id")
    parent = fields.optional_label(record.parent_chat_id, "parent_chat_id") or NO_PARENT
    if parent == NO_PARENT:
        return chat
    first = first_turns.get(parent) or parent
    if chat is not None:
        first_turns[chat] = first
    return first
