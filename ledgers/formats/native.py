"""Our own format: CSV with a header, or JSONL; it can say everything a planned request has.

`prompt_tokens, output_tokens`, and for the time `arrival_s` (seconds), `at` (a shape without a unit) or
neither; optionally `id, class, session, turn, prompt`, `think_s` (seconds from the end of the session's turn
before, in place of a time or beside one), and what prompts share: `prefix` with `prefix_tokens`, or in JSONL
`hash_ids`, labels for blocks of `block_tokens` tokens. Anything else is refused: a column with a
typing mistake would otherwise be lost without a word. Where a `prompt` is given without its length, it is
counted as the mock counts it; a length beside it stands, for real traces count by real tokenizers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ledgers.formats import fields, rundir
from ledgers.formats.fields import Skipped, TraceRow
from ledgers.formats.head import Head
from ledgers.rows import RequestRow, encode
from ledgers.units import ceil_div, seconds
from ledgers.vocabulary import count_tokens

name = "native"
TIMES = ("arrival_s", "at")
LENGTHS = ("prompt_tokens", "output_tokens")
COLUMNS = (*TIMES, *LENGTHS, "id", "class", "session", "turn", "think_s", "prompt", "prefix", "prefix_tokens")
FIELDS = (*COLUMNS, "hash_ids", "block_tokens")
T = TypeVar("T")


def detects(head: Head) -> bool:
    own = not head.keys.isdisjoint(LENGTHS) or not head.columns.isdisjoint(LENGTHS)
    return own and not rundir.detects(head)


def read(file: BufferedReader, source: str) -> Iterator[TraceRow | Skipped]:
    return fields.parsed(_records(file, source), _row, source)


def _records(file: BufferedReader, source: str) -> Iterator[tuple[int, dict[str, Any]]]:
    if Head(file.peek()).is_json:
        return fields.json_records(file, source, dict[str, Any])
    return fields.csv_records(file, source, needed=("output_tokens",), known=COLUMNS)


def _row(line: int, record: dict[str, Any]) -> TraceRow:
    fields.check_known(record, FIELDS)
    given = {field: value for field, value in record.items() if not _blank(value)}
    if "arrival_s" in given and "at" in given:
        raise ValueError("arrival_s and at are both given, but a row has one time")
    if "think_s" in given and "session" not in given:
        raise ValueError("think_s is given without a session")
    prompt_tokens, counted = _prompt_tokens(given)
    return TraceRow(
        line=line,
        time_ns=_optional(given, "arrival_s", fields.seconds_ns),
        at=_optional(given, "at", fields.decimal),
        prompt_tokens=prompt_tokens,
        output_tokens=_tokens(given, "output_tokens"),
        id=_optional(given, "id", fields.label),
        class_=_optional(given, "class", fields.label),
        session=_optional(given, "session", fields.label),
        turn=_optional(given, "turn", lambda value, field: fields.whole(value, field, least=0)),
        think_ns=_optional(given, "think_s", lambda value, field: round(fields.seconds_ns(value, field))),
        prompt=given.get("prompt"),
        counted_otherwise=counted != prompt_tokens,
        **_shared(given, prompt_tokens),
    )


def _shared(given: dict[str, Any], prompt_tokens: int) -> dict[str, Any]:
    """What a prompt shares with others. ValueError if that contradicts itself, or the prompt's length."""
    prefix_tokens = _optional(given, "prefix_tokens", _count)
    hash_ids = _optional(given, "hash_ids", fields.hash_ids)
    block_tokens = _optional(given, "block_tokens", _count)
    if ("hash_ids" in given) != ("block_tokens" in given):
        raise ValueError("hash_ids and block_tokens need each other")
    if hash_ids and ("prompt" in given or "prefix" in given):
        raise ValueError("hash_ids are given, so the row can have neither prompt nor prefix")
    if hash_ids and block_tokens and len(hash_ids) > (most := ceil_div(prompt_tokens, block_tokens)):
        raise ValueError(f"{len(hash_ids)} hash_ids, but the prompt has {most} blocks")
    if prefix_tokens is not None and "prefix" not in given:
        raise ValueError("prefix_tokens is given without a prefix")
    if prefix_tokens is not None and prefix_tokens > prompt_tokens:
        raise ValueError(f"prefix_tokens is {prefix_tokens}, but the prompt has {prompt_tokens}")
    return {
        "prefix": _optional(given, "prefix", fields.label),
        "prefix_tokens": prefix_tokens,
        "hash_ids": hash_ids,
        "block_tokens": block_tokens if hash_ids else None,
    }


def _count(value: Any, field: str) -> int:
    return fields.whole(value, field, least=1)


def _optional(given: dict[str, Any], field: str, convert: Callable[[Any, str], T]) -> T | None:
    return convert(given[field], field) if field in given else None


def _blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _tokens(given: dict[str, Any], field: str) -> int:
    if field not in given:
        raise ValueError(f"{field} is missing")
    return _count(given[field], field)


def _prompt_tokens(given: dict[str, Any]) -> tuple[int, int]:
    """The length of the prompt, and as the mock counts it, which is the same where there is no text."""
    counted = _count_prompt(given["prompt"]) if "prompt" in given else None
    if counted is not None and "prompt_tokens" not in given:
        return counted, counted
    tokens = _tokens(given, "prompt_tokens")
    return tokens, tokens if counted is None else counted


def _count_prompt(prompt: Any) -> int:
    if type(prompt) is not str:  # a number with a fraction is one of its kinds
        raise ValueError(f"prompt is {fields.shown(prompt)}, not a text")
    return count_tokens(prompt)


def write(path: Path, rows: Iterable[RequestRow]) -> None:
    """Planned rows as JSONL that reads back as they are. OSError if it cannot be written."""
    with path.open("wb") as file:
        file.writelines(jsonl(rows))


def jsonl(rows: Iterable[RequestRow]) -> Iterator[bytes]:
    """The lines of such a file."""
    return (encode(native_row(row)) + b"\n" for row in rows)


def native_row(row: RequestRow) -> dict[str, Any]:
    """A planned row in this format; the arrival in seconds with all of its nanoseconds."""
    native = {
        "id": row.id,
        "class": row.class_,
        "session": row.session,
        "turn": row.turn,
        "prompt_tokens": row.prompt_tokens,
        "output_tokens": row.output_tokens,
        "prompt": row.prompt,
        "prefix": row.prefix,
        "prefix_tokens": row.prefix_tokens,
        "hash_ids": row.hash_ids,
        "block_tokens": row.block_tokens,
        # A float has too few digits for the nanoseconds of a long trace.
        "think_s": None if row.think_ns is None else msgspec.Raw(seconds(row.think_ns).encode()),
        "arrival_s": msgspec.Raw(seconds(row.arrival_ns or 0).encode()),
    }
    return {name: value for name, value in native.items() if value is not None}
