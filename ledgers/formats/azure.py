"""Azure's LLM inference traces: `TIMESTAMP,ContextTokens,GeneratedTokens`.

The files of 2023 have seven fraction digits and no zone, those of 2024 six and `+00:00`; no digit is lost.
The multimodal trace has `T`, `Z` and one more column, `NumImages`, which is not used. inference-perf's
trace CSV is the same format. https://github.com/Azure/AzurePublicDataset
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedReader

from ledgers.formats import fields
from ledgers.formats.fields import Skipped, TraceRow
from ledgers.formats.head import Head
from ledgers.formats.times import timestamp_ns

name = "azure"
TIME, PROMPT, OUTPUT = COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def detects(head: Head) -> bool:
    return head.columns.issuperset(COLUMNS)


def read(file: BufferedReader, source: str) -> Iterator[TraceRow | Skipped]:
    return fields.parsed(fields.csv_records(file, source, needed=COLUMNS), _row, source)


def _row(line: int, record: dict[str, str]) -> TraceRow | Skipped:
    if not record[TIME].strip():
        return Skipped(line, fields.NO_TIME)
    return TraceRow(
        line=line,
        time_ns=timestamp_ns(record[TIME], TIME),
        dated=True,
        prompt_tokens=fields.tokens(record[PROMPT], PROMPT),
        output_tokens=fields.tokens(record[OUTPUT], OUTPUT),
    )
