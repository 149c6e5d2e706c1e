"""BurstGPT's traces: `Timestamp` in seconds since the first midnight, `Request tokens`, `Response tokens`.

Six columns, or eight with `Session ID` and `Elapsed time`. A response of no tokens is a call that failed.
`Log Type` (conversation or API) becomes the class. `Model` is not used, for a run asks one model, nor is
`Elapsed time`, which says how the recorded server did. https://github.com/HPMLL/BurstGPT
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedReader

from ledgers.formats import fields
from ledgers.formats.fields import Skipped, TraceRow
from ledgers.formats.head import Head

name = "burstgpt"
TIME, PROMPT, OUTPUT = COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
CLASS = "Log Type"
SESSION = "Session ID"


def detects(head: Head) -> bool:
    return head.columns.issuperset(COLUMNS)


def read(file: BufferedReader, source: str) -> Iterator[TraceRow | Skipped]:
    return fields.parsed(fields.csv_records(file, source, needed=COLUMNS), _row, source)


def _row(line: int, record: dict[str, str]) -> TraceRow | Skipped:
    if not record[TIME].strip():
        return Skipped(line, fields.NO_TIME)
    return TraceRow(
        line=line,
        time_ns=fields.seconds_ns(record[TIME], TIME),
        prompt_tokens=fields.tokens(record[PROMPT], PROMPT),
        output_tokens=fields.tokens(record[OUTPUT], OUTPUT),
        class_=fields.optional_label(record.get(CLASS, "").strip(), CLASS),
        session=fields.optional_label(record.get(SESSION, "").strip(), SESSION),
    )
