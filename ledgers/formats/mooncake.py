"""Mooncake's traces: JSONL with `timestamp` (ms), `input_length`, `output_length` and `hash_ids`.

The hash ids, which say what prompts share, are not read yet. https://github.com/kvcache-ai/Mooncake
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedReader
from typing import Any

import msgspec

from ledgers.formats import fields
from ledgers.formats.fields import TraceRow

name = "mooncake"
MS_PER_S = 1000


class Record(msgspec.Struct):
    """The fields that are read; the decoder passes over the others without building them."""

    timestamp: Any = None
    input_length: Any = None
    output_length: Any = None


def detects(head: bytes) -> bool:
    line = fields.first_line(head)
    known = line.startswith("{") and '"timestamp"' in line and '"input_length"' in line
    return known and '"chat_id"' not in line  # Bailian's traces look alike, but count in seconds


def read(file: BufferedReader, source: str) -> Iterator[TraceRow]:
    return fields.parsed(fields.json_records(file, source, Record), _row, source)


def _row(line: int, record: Record) -> TraceRow:
    if record.timestamp is None:
        raise ValueError("timestamp is missing")
    return TraceRow(
        line=line,
        time_ns=fields.nanoseconds(fields.decimal(record.timestamp, "timestamp") / MS_PER_S),
        prompt_tokens=_tokens(record.input_length, "input_length"),
        output_tokens=_tokens(record.output_length, "output_length"),
    )


def _tokens(value: Any, field: str) -> int:
    return 0 if value is None else fields.whole(value, field, least=0)
