"""Saves a planned ledger in the native format, as JSONL or CSV: whole, or not at all."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ledgers.errors import InputError
from ledgers.formats.native import COLUMNS, jsonl, native_row
from ledgers.ledger import values
from ledgers.replacing import replacing
from ledgers.rows import RequestRow

Write = Callable[[bytes], Any]
ALWAYS = ("arrival_s", "id")  # a row without an id is called by its number, which is another in the new file
FIELDS = {"class": "class_", "think_s": "think_ns", "arrival_s": "arrival_ns"}  # of a row, by column


def check_target(out: str, *, force: bool) -> None:
    """InputError if there is a file already, or it is not said what it is to be; before any work is done."""
    path = Path(out)
    if out.endswith(os.sep):
        raise InputError(f"{out}: is the name of a directory, not of a file")
    if path.suffix not in (".jsonl", ".csv"):
        raise InputError(f"{path}: name it .jsonl or .csv, or - for JSONL on standard output")
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: exists and is no file")
    if path.exists() and not force:
        raise InputError(f"{path}: exists (--force replaces it)")
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no directory {path.parent}")


def check_stdout() -> None:
    """InputError if it was closed before the program began: what is all of the result would go nowhere."""
    if sys.__stdout__ is None:
        raise InputError("standard output is closed, so nothing can be written to it")


def save_ledger(path: Path, rows: Sequence[RequestRow]) -> None:
    """Write rows, by the file's suffix. InputError if that fails, and nothing is written."""
    with replacing(path) as file:
        if path.suffix == ".csv":
            write_csv(file.write, rows)
        else:
            file.writelines(jsonl(rows))


def write_csv(write: Write, rows: Sequence[RequestRow]) -> None:
    """The id and the time, and the columns that any row has something in."""
    columns = [name for name in COLUMNS if name in ALWAYS or _filled(rows, FIELDS.get(name, name))]
    sink = _Lines(write)
    writer = csv.writer(sink, lineterminator=sink.end)
    writer.writerow(columns)
    writer.writerows(_cells(rows, columns))


def lost_in_csv(rows: Sequence[RequestRow]) -> list[str]:
    """What has no column."""
    count = sum(ids is not None for ids in values(rows, "hash_ids"))
    return [f"hash_ids of {count} requests left out: CSV cannot hold them, JSONL can"] if count else []


def _filled(rows: Sequence[RequestRow], field: str) -> bool:
    return field in RequestRow.__struct_fields__ and any(value is not None for value in values(rows, field))


def _cells(rows: Iterable[RequestRow], columns: Sequence[str]) -> Iterator[list[Any]]:
    for row in rows:
        native = {name: _plain(value) for name, value in native_row(row).items()}
        yield [native.get(name) for name in columns]


def _plain(value: Any) -> Any:
    return bytes(value).decode() if isinstance(value, msgspec.Raw) else value


class _Lines:
    """A file for the csv module, which puts a text in quotes only for what its own line end is made of.

    So it is told to end lines in CR LF, and a text with either in it is read back as it was.
    """

    end = "\r\n"

    def __init__(self, write: Write) -> None:
        self._write = write

    def write(self, line: str) -> None:
        self._write(line.removesuffix(self.end).encode() + b"\n")
