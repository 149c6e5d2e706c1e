"""Azure's LLM inference traces: `TIMESTAMP,ContextTokens,GeneratedTokens`.

The files of 2023 have seven fraction digits and no zone, those of 2024 six and `+00:00`; no digit is lost.
https://github.com/Azure/AzurePublicDataset
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from io import BufferedReader

from ledgers.formats import fields
from ledgers.formats.fields import Skipped, TraceRow
from ledgers.units import NS_PER_S

name = "azure"
TIME, PROMPT, OUTPUT = COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
# datetime.fromisoformat cuts off the seventh digit, so the fraction is read beside it.
_TIMESTAMP = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,18}))?(Z|[+-]\d\d:\d\d)?", flags=re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def detects(head: bytes) -> bool:
    return set(COLUMNS) <= set(fields.columns(fields.first_line(head)))


def read(file: BufferedReader, source: str) -> Iterator[TraceRow | Skipped]:
    return fields.parsed(fields.csv_records(file, source, needed=COLUMNS), _row, source)


def _row(line: int, record: dict[str, str]) -> TraceRow:
    return TraceRow(
        line=line,
        time_ns=_time_ns(record[TIME].strip()),
        prompt_tokens=fields.whole(record[PROMPT].strip() or 0, PROMPT, least=0),
        output_tokens=fields.whole(record[OUTPUT].strip() or 0, OUTPUT, least=0),
    )


def _time_ns(text: str) -> int | Fraction:
    """Exact nanoseconds since 1970; without a zone the time is taken as UTC."""
    match = _TIMESTAMP.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        moment = datetime.fromisoformat(match[1] + (match[3] or "Z"))
    except ValueError:
        raise ValueError(f"{TIME} is {fields.shown(text)}, not a time YYYY-MM-DD hh:mm:ss.fffffff") from None
    digits = match[2] or "0"
    fraction = Fraction(int(digits) * NS_PER_S, 10 ** len(digits))
    whole_ns = (moment - _EPOCH) // timedelta(seconds=1) * NS_PER_S
    return whole_ns + (fraction.numerator if fraction.denominator == 1 else fraction)
