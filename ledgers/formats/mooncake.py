"""Mooncake's traces: JSONL with `timestamp` (ms), `input_length`, `output_length` and `hash_ids`.

A hash id labels 512 tokens of a prompt, the last one what is left; equal ids are equal content.
https://github.com/kvcache-ai/Mooncake
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedReader
from typing import Any

import msgspec

from ledgers.formats import fields
from ledgers.formats.fields import Skipped, TraceRow

name = "mooncake"
MS_PER_S = 1000
BLOCK_TOKENS = 512


class Record(msgspec.Struct):
    """The fields that are read; the decoder passes over the others without building them."""

    timestamp: Any = None
    input_length: Any = None
    output_length: Any = None
    hash_ids: Any = None


def detects(head: bytes) -> bool:
    line = fields.first_line(head)
    known = line.startswith("{") and '"timestamp"' in line and '"input_length"' in line
    return known and '"chat_id"' not in line  # Bailian's traces look alike, but count in seconds


def read(file: BufferedReader, source: str) -> Iterator[TraceRow | Skipped]:
    return fields.parsed(fields.json_records(file, source, Record), _row, source)


def _row(line: int, record: Record) -> TraceRow:
    if record.timestamp is None:
        raise ValueError("timestamp is missing")
    hash_ids = None if record.hash_ids is None else fields.hash_ids(record.hash_ids, "hash_ids")
    return TraceRow(
        line=line,
        time_ns=fields.nanoseconds(fields.decimal(record.timestamp, "timestamp") / MS_PER_S),
        prompt_tokens=_tokens(record.input_length, "input_length"),
        output_tokens=_tokens(record.output_length, "output_length"),
        hash_ids=hash_ids,
        block_tokens=BLOCK_TOKENS if hash_ids else None,
    )


def _tokens(value: Any, field: str) -> int:
    return 0 if value is None else fields.whole(value, field, least=0)
