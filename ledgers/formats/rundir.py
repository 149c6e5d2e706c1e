"""Our own run directories, and a `requests.jsonl` by itself: the load of a run, to be asked for again.

Each request is asked for again at its intended arrival, whatever became of it; not its further attempts,
which are no load but answers to failures. An output is as long as it was delivered if the request completed,
else as it was asked. Prompts are new ones of the same lengths: results do not repeat what they share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BufferedReader
from typing import Any

import msgspec

from ledgers.formats import fields
from ledgers.formats.fields import Skipped, TraceRow, located
from ledgers.formats.head import Head
from ledgers.kept import Kept

name = "rundir"
ROWS = "requests.jsonl"
OWN = frozenset({"arrival_ns", "outcome"})


class Record(msgspec.Struct, rename={"class_": "class"}):
    """What of a row is asked for again; rows of later versions may have more."""

    id: Any = None
    retry_of: Any = None
    class_: Any = None
    session: Any = None
    turn: Any = None
    think_ns: Any = None
    prompt_tokens: Any = None
    output_tokens: Any = None
    arrival_ns: Any = None
    tokens: Any = None
    outcome: Any = None


def detects(head: Head) -> bool:
    return "prompt_tokens" in head.keys and not head.keys.isdisjoint(OWN)


def read(file: BufferedReader, source: str) -> Iterator[TraceRow | Skipped]:
    """Rows as they ended, and then the turns that never came: a row may tell of one before its first turn."""
    never_came: list[TraceRow] = []
    begun: Kept[bool] = Kept()
    for row in _rows(file, source):
        if isinstance(row, TraceRow) and row.time_ns is None:
            never_came.append(row)
            continue
        if isinstance(row, TraceRow) and row.session is not None:
            begun[row.session] = True
        yield row
    for row in sorted(never_came, key=lambda row: row.turn or 0):
        yield row if row.session and begun.get(row.session) else Skipped(row.line, fields.NO_TIME)


def that_came(rows: Iterable[TraceRow | Skipped]) -> Iterator[TraceRow | Skipped]:
    """The same without the turns that never came, which have no times to be replayed."""
    for row in rows:
        never = isinstance(row, TraceRow) and row.time_ns is None
        yield Skipped(row.line, fields.NO_TIME) if never else row


def _rows(file: BufferedReader, source: str) -> Iterator[TraceRow | Skipped]:
    decoder = msgspec.json.Decoder(Record)
    for line, text in enumerate(fields.text_lines(file, source), 1):
        if text.isspace():
            continue
        try:
            yield _row(line, decoder.decode(text))
        except (msgspec.DecodeError, RecursionError) as error:
            if not text.endswith("\n"):  # of a run that was killed while it wrote
                yield Skipped(line, "half a row, where the file ends")
                return
            raise located(source, line, f"not a JSON object that can be read: {error}") from None
        except ValueError as error:
            raise located(source, line, error) from None


def _row(line: int, record: Record) -> TraceRow | Skipped:
    if record.retry_of is not None:
        return Skipped(line, "a further attempt of another request")
    if record.arrival_ns is None and record.think_ns is None:  # a turn that never came needs no time
        return Skipped(line, fields.NO_TIME)
    session = fields.optional_label(record.session, "session")
    if record.arrival_ns is None and session is None:
        raise ValueError("think_ns is given without a session")
    asked = fields.tokens(record.output_tokens, "output_tokens")
    delivered = fields.tokens(record.tokens, "tokens") if record.outcome == "completed" else 0
    return TraceRow(
        line=line,
        time_ns=_optional_ns(record.arrival_ns, "arrival_ns"),
        prompt_tokens=fields.tokens(record.prompt_tokens, "prompt_tokens"),
        output_tokens=delivered or asked,
        id=fields.label(record.id, "id"),
        class_=fields.optional_label(record.class_, "class"),
        session=session,
        turn=_optional_count(record.turn, "turn"),
        think_ns=_optional_ns(record.think_ns, "think_ns"),
    )


def _optional_ns(value: Any, field: str) -> int | None:
    return None if value is None else fields.whole_ns(value, field)


def _optional_count(value: Any, field: str) -> int | None:
    return None if value is None else fields.whole(value, field, least=0)
