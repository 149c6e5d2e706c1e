"""Any other CSV, JSONL or Parquet file: the user says which column is what, and the unit of its times."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Iterator
from io import BufferedReader
from typing import Any

import msgspec

from ledgers.errors import InputError
from ledgers.formats import fields
from ledgers.formats.documents import json_documents
from ledgers.formats.fields import Skipped, TraceRow
from ledgers.formats.head import Head
from ledgers.formats.times import UNITS, scaled_ns, timestamp_ns

ISO = "iso"
NAMES = ("time", "prompt", "output", "id", "session", "turn", "class")
BATCH_ROWS = 4096
Records = Iterable[tuple[int, dict[str, Any]]]


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """The column that is each thing; a dot in a name leads into a JSON object."""

    names: dict[str, str]
    unit: str | None = None


def parse_columns(text: str) -> Columns:
    """`time=…,prompt=…,output=…[,id=,session=,turn=,class=][,unit=…]`. InputError if it is anything else."""
    names: dict[str, str] = {}
    for item in text.split(","):
        what, _, column = (part.strip() for part in item.partition("="))
        if what not in (*NAMES, "unit") or not column:
            raise InputError(f"--columns {item!r}: give NAME=COLUMN, NAME one of {', '.join(NAMES)}, unit")
        if what in names:
            raise InputError(f"--columns: {what} is there twice")
        names[what] = column
    unit = names.pop("unit", None)
    units = (*UNITS, ISO)
    missing = [what for what in ("prompt", "output") if what not in names]
    if missing:
        raise InputError(f"--columns: {missing[0]}= is missing")
    if unit not in (None, *units):
        raise InputError(f"--columns: unit is {unit!r}, not one of {', '.join(units)}")
    if unit is not None and "time" not in names:
        raise InputError("--columns: unit= means nothing without time=")
    return Columns(names=names, unit=unit)


class Mapped:
    """A format made of a mapping."""

    name = "mapped"

    def __init__(self, columns: Columns) -> None:
        self._names = columns.names
        self._unit = columns.unit

    def read(self, file: BufferedReader, source: str) -> Iterator[TraceRow | Skipped]:
        return fields.parsed(self._records(file, source), self._row, source)

    def _records(self, file: BufferedReader, source: str) -> Records:
        head = Head(file.peek())
        if head.is_parquet:
            return parquet_records(file, source, set(self._names.values()))
        if "time" in self._names and self._unit is None:
            units = "|".join((*UNITS, ISO))
            raise InputError(f"--columns: time= needs unit={units}, which is not guessed")
        if head.is_json:
            return json_documents(file, source, dict[str, Any])
        return fields.csv_records(file, source, needed=list(self._names.values()))

    def _row(self, line: int, record: dict[str, Any]) -> TraceRow | Skipped:
        given = {what: _value(record, column) for what, column in self._names.items()}
        time_ns = None
        if "time" in self._names:
            if given["time"] is None:
                return Skipped(line, fields.NO_TIME)
            time_ns = self._time_ns(given["time"])
        turn = given.get("turn")
        return TraceRow(
            line=line,
            time_ns=time_ns,
            dated=self._unit == ISO or isinstance(given.get("time"), _Moment),
            prompt_tokens=fields.tokens(given["prompt"], self._names["prompt"]),
            output_tokens=fields.tokens(given["output"], self._names["output"]),
            id=self._label(given, "id"),
            class_=self._label(given, "class"),
            session=self._label(given, "session"),
            turn=None if turn is None else fields.tokens(turn, self._names["turn"]),
        )

    def _time_ns(self, value: Any) -> Any:
        column = self._names["time"]
        if isinstance(value, _Moment):
            fields.check_time(value.ns, value.ns, column)
            return value.ns
        if self._unit is None:
            raise ValueError(f"{column} is {fields.shown(value)}: give --columns unit=")
        return timestamp_ns(value, column) if self._unit == ISO else scaled_ns(value, column, self._unit)

    def _label(self, given: dict[str, Any], what: str) -> str | None:
        return fields.optional_label(given.get(what), self._names.get(what, what))


def _value(record: dict[str, Any], column: str) -> Any:
    """A cell, None if it is blank or not there."""
    value: Any = record
    if column in record:
        value = record[column]
    else:
        for part in column.split("."):
            value = value.get(part) if isinstance(value, dict) else None
    return None if isinstance(value, str) and not value.strip() else value


class _Moment(msgspec.Struct, frozen=True):
    """A time whose unit the file itself knows."""

    ns: int


def parquet_records(file: BufferedReader, source: str, columns: Collection[str]) -> Records:
    """The records of a Parquet file, a batch at a time. InputError if it cannot be read."""
    try:
        pyarrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise InputError(
            f"{source}: reading Parquet needs pyarrow: pip install 'tokentick[parquet]'"
        ) from None
    try:
        table = parquet.ParquetFile(file)
        names = table.schema_arrow.names
        paths = {column: [column] if column in names else column.split(".") for column in columns}
        top = {path[0] for path in paths.values()}
        if missing := sorted(top - set(names)):
            known = ", ".join(names[:8])
            raise InputError(f"{source}: no column {missing[0]} in the Parquet file, which has {known}")
        number = 0
        for batch in table.iter_batches(batch_size=BATCH_ROWS, columns=sorted(top)):
            cells = {
                column: _cells(pyarrow, _within(pyarrow, batch.column(path[0]), path[1:]))
                for column, path in paths.items()
            }
            for values in zip(*cells.values(), strict=True):
                number += 1
                yield number, dict(zip(cells, values, strict=True))
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{source}: not Parquet that can be read: {str(error).splitlines()[0]}") from None


def _within(pyarrow: Any, column: Any, path: list[str]) -> Any:
    """The column in a column of structs; one without any value if there is none."""
    for name in path:
        if not pyarrow.types.is_struct(column.type) or (place := column.type.get_field_index(name)) < 0:
            return pyarrow.nulls(len(column))
        column = column.flatten()[place]
    return column


def _cells(pyarrow: Any, column: Any) -> list[Any]:
    """The values of a column; numbers with a fraction as they are written, times as nanoseconds."""
    if pyarrow.types.is_timestamp(column.type):
        factor = UNITS[column.type.unit]
        values = column.cast(pyarrow.int64()).to_pylist()
        return [None if value is None else _Moment(value * factor) for value in values]
    values = column.to_pylist()
    return [_exact(value) for value in values]


def _exact(value: Any) -> Any:
    """Numbers that are not whole as texts, as they are in JSON; nan is a missing one."""
    if isinstance(value, float) and value != value:
        return None
    return value if value is None or isinstance(value, int | str | dict | list) else str(value)
