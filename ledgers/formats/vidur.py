"""Vidur's traces, and etalon's, which have the same columns: `num_prefill_tokens,num_decode_tokens`.

With `arrived_at` (seconds) a file can be replayed; without it, it is a list of lengths. Other columns (totals
and ratios) are not used. https://github.com/microsoft/vidur
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedReader

from ledgers.formats import fields
from ledgers.formats.fields import Skipped, TraceRow
from ledgers.formats.head import Head

name = "vidur"
TIME = "arrived_at"
PROMPT, OUTPUT = COLUMNS = ("num_prefill_tokens", "num_decode_tokens")


def detects(head: Head) -> bool:
    return head.columns.issuperset(COLUMNS)


def read(file: BufferedReader, source: str) -> Iterator[TraceRow | Skipped]:
    return fields.parsed(fields.csv_records(file, source, needed=COLUMNS), _row, source)


def _row(line: int, record: dict[str, str]) -> TraceRow | Skipped:
    time = record.get(TIME)
    if time is not None and not time.strip():
        return Skipped(line, fields.NO_TIME)
    return TraceRow(
        line=line,
        time_ns=None if time is None else fields.seconds_ns(time, TIME),
        prompt_tokens=fields.tokens(record[PROMPT], PROMPT),
        output_tokens=fields.tokens(record[OUTPUT], OUTPUT),
    )
