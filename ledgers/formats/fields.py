"""What trace formats share: the row they yield, files read record by record, and cells that become numbers.

Everything here streams: no more than one record is held, however big the file. A cell that cannot be used
raises ValueError naming its field; `parsed` adds the file and the line.
"""

from __future__ import annotations

import csv
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from fractions import Fraction
from io import BufferedReader
from typing import Any, TypeVar

import msgspec

from ledgers.errors import InputError
from ledgers.units import NS_PER_S

BOM = b"\xef\xbb\xbf"
MAX_LINE_BYTES = 1 << 24
MOST_TOKENS = 1_000_000_000
MOST = 10**21  # nanoseconds since 1970 stay below
# No time is outside the years 1 to 9999, whatever it counts from.
LEAST_TIME_NS, END_OF_TIME_NS = -62_135_596_800 * NS_PER_S, 253_402_300_800 * NS_PER_S
_WHOLE = re.compile(r"[0-9]{1,15}")
_ZERO_FRACTION = re.compile(r"([0-9]{1,15})\.0+")
_SECONDS = re.compile(r"([0-9]{1,11})(?:\.([0-9]{0,9}))?")
_DECIMAL = re.compile(r"([0-9]{1,20}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,2})?")
SHOWN_CHARS = 40
MOST_LABEL_CHARS = 200
NO_TIME = "no time"
T = TypeVar("T")


class Written(str):
    """A JSON number with a fraction or an exponent, as it is written."""

    __slots__ = ()


class TraceRow(msgspec.Struct, kw_only=True, frozen=True, rename={"class_": "class"}):
    """A request as a trace file has it.

    `time_ns` is exact, in the file's own origin; `at` is the time of a shape without a unit. A row has one of
    them, or neither when the file gives lengths alone. Zero tokens mean that the trace has none for the row.
    The fields from `prompt` on are those of a planned row, but for `counted_otherwise`: whether the text of
    the prompt has another length than `prompt_tokens` by the mock's own count. `think_ns` is how long a turn
    follows the end of its session's turn before, where the trace knows it. `dated`: the format says that the
    time is a date, counted from 1970.
    """

    line: int
    time_ns: int | Fraction | None = None
    dated: bool = False
    at: Fraction | None = None
    prompt_tokens: int
    output_tokens: int
    id: str | None = None
    class_: str | None = None
    session: str | None = None
    turn: int | None = None
    think_ns: int | None = None
    prompt: str | None = None
    counted_otherwise: bool = False
    prefix: str | None = None
    prefix_tokens: int | None = None
    hash_ids: list[int] | None = None
    block_tokens: int | None = None


class Skipped(msgspec.Struct, frozen=True):
    """A record that is no request to replay, and why, in a few words that many records share."""

    line: int
    reason: str


class Files(str):
    """A directory as a source: knows in which file, and on which line of it, a line of all files is."""

    def __new__(cls, directory: str, paths: list[str]) -> Files:
        files = super().__new__(cls, directory)
        files.paths = paths
        files.begins = []
        return files

    paths: list[str]
    begins: list[int]  # of each file that was opened the line before its first

    def place(self, line: int) -> tuple[str, int]:
        which = max(0, bisect_left(self.begins, line) - 1)
        return self.paths[which], line - self.begins[which]


def located(source: str, line: int, problem: object) -> InputError:
    """The one line a user is told about a line of a file."""
    if isinstance(source, Files):
        source, line = source.place(line)
    return InputError(f"{source}: line {line}: {problem}")


def parsed(
    records: Iterable[tuple[int, T]], parse: Callable[[int, T], TraceRow | Skipped], source: str
) -> Iterator[TraceRow | Skipped]:
    """The rows of records; a ValueError of `parse` becomes an InputError with file and line."""
    for line, record in records:
        try:
            row = parse(line, record)
        except ValueError as error:
            raise located(source, line, error) from None
        yield row


def first_line(head: bytes) -> str:
    """The first line that is not blank, without byte order mark, or as much of it as the head holds."""
    return head.removeprefix(BOM).lstrip().partition(b"\n")[0].rstrip().decode(errors="replace")


def columns(line: str) -> list[str]:
    """The column names of a CSV header; none if it cannot be one."""
    try:
        return [name.strip() for name in next(csv.reader([line]), [])]
    except csv.Error:
        return []


def csv_records(
    file: BufferedReader, source: str, *, needed: Collection[str], known: Collection[str] | None = None
) -> Iterator[tuple[int, dict[str, str]]]:
    """(first line, cells by column) of each record below the header; blank lines are passed over.

    InputError if the header lacks a `needed` column or, where `known` is given, has another one.
    """
    records = _csv_cells(file, source)
    line, header = next(records, (1, []))
    names = [name.strip() for name in header]
    try:
        _check_header(names, needed, known)
    except ValueError as error:
        raise located(source, line, error) from None
    for line, cells in records:
        if len(cells) != len(names):
            raise located(source, line, f"{len(cells)} columns, but the header has {len(names)}")
        yield line, dict(zip(names, cells, strict=True))


def _check_header(names: list[str], needed: Collection[str], known: Collection[str] | None) -> None:
    missing = [name for name in needed if name not in names]
    if missing:
        raise ValueError(f"no column {missing[0]}")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"column {shown(twice[0])} is there twice")
    if known is not None:
        check_known(names, known)


def check_known(names: Iterable[str], known: Collection[str]) -> None:
    """ValueError if a name is not among the known ones."""
    for name in names:
        if name not in known:
            raise ValueError(f"unknown column {shown(name)}, known are {', '.join(known)}")


def _csv_cells(file: BufferedReader, source: str) -> Iterator[tuple[int, list[str]]]:
    # A prompt can be longer than the csv module's limit of 128 KiB, which exists once per process.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
    reader = csv.reader(text_lines(file, source), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise located(source, line, f"not CSV: {error}") from None
        if cells is None:
            return
        if len(cells) > 1 or any(cell.strip() for cell in cells):
            yield line, cells


def json_records(file: BufferedReader, source: str, kind: type[T]) -> Iterator[tuple[int, T]]:
    """(line, object) of each line of JSONL. Numbers with a fraction stay text, so that no digit is lost."""
    decoder = msgspec.json.Decoder(kind, float_hook=Written)
    for line, text in enumerate(text_lines(file, source), 1):
        if text.isspace():
            continue
        try:
            record = decoder.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise located(source, line, f"not a JSON object that can be read: {error}") from None
        yield line, record


def text_lines(file: BufferedReader, source: str) -> Iterator[str]:
    """Lines with their ends, as the csv module wants them; bounded, so that a binary file is not slurped."""
    line = 0
    try:
        while data := file.readline(MAX_LINE_BYTES + 1):
            line += 1
            if len(data) > MAX_LINE_BYTES:
                raise located(source, line, f"longer than {MAX_LINE_BYTES:,} bytes")
            yield (data.removeprefix(BOM) if line == 1 else data).decode()
    except UnicodeDecodeError as error:
        raise located(source, line, f"not UTF-8 text (byte {error.start + 1})") from None


def whole(value: Any, field: str, *, least: int) -> int:
    """A count, from an integer or digits. ValueError if it is below `least` or over a thousand million."""
    number = int(value) if isinstance(value, str) and _WHOLE.fullmatch(value.strip()) else value
    if type(number) is not int or not least <= number <= MOST_TOKENS:  # a bool is no count
        raise ValueError(f"{field} is {shown(value)}, not a whole number from {least} to {MOST_TOKENS:,}")
    return number


def missing(value: Any) -> bool:
    """Whether nothing stands where a value could: null, or blanks."""
    return value is None or (isinstance(value, str) and not value.strip())


def tokens(value: Any, field: str) -> int:
    """A number of tokens; 0 where there is none. A whole number may be written 12.0, as pandas does."""
    # Nearly all are written like this, and the rest of this costs three times as much.
    if type(value) is str and _WHOLE.fullmatch(value) and (count := int(value)) <= MOST_TOKENS:
        return count
    if missing(value):
        return 0
    if isinstance(value, str) and (whole_number := _ZERO_FRACTION.fullmatch(value.strip())):
        value = whole_number[1]
    return whole(value, field, least=0)


def decimal(value: Any, field: str) -> Fraction:
    """A number of 0 or more, exactly as written. ValueError if it is none, or larger than a time can be."""
    text = str(value) if type(value) is int else value
    if isinstance(text, str) and _DECIMAL.fullmatch(text.strip()):
        number = Fraction(text)
        if number <= MOST:
            return number
    raise ValueError(f"{field} is {shown(value)}, not a number from 0 to {MOST:.0e}")


def seconds_ns(value: Any, field: str) -> int | Fraction:
    """Exact nanoseconds of a number of seconds. ValueError as for any `decimal`."""
    # Nearly all times are written like this, and a fraction costs five times as much.
    if isinstance(value, str) and (plain := _SECONDS.fullmatch(value.strip())):
        return int(plain[1]) * NS_PER_S + int((plain[2] or "").ljust(9, "0"))
    return units_ns(value, field, NS_PER_S)


def units_ns(value: Any, field: str, unit_ns: int) -> int | Fraction:
    """Exact nanoseconds of a number of units: an int unless it has digits below them."""
    if type(value) is int and value >= 0:  # as most are that are not of seconds
        ns: int | Fraction = value * unit_ns
    else:
        ns = decimal(value, field) * unit_ns
    check_time(ns, value, field)
    return ns.numerator if ns.denominator == 1 else ns


def check_time(ns: int | Fraction, value: Any, field: str) -> None:
    """ValueError if a time, which the file writes as `value`, is larger than any can be."""
    if not LEAST_TIME_NS <= ns < END_OF_TIME_NS:
        end = f"{END_OF_TIME_NS // NS_PER_S:,} s, where the year 9999 ends"
        raise ValueError(f"{field} is {shown(value)}, but times lie before {end}")


def whole_ns(value: Any, field: str) -> int:
    """Nanoseconds that can only be an integer. ValueError if they are none, below 0, or too many."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{field} is {shown(value)}, not a whole number of nanoseconds from 0 on")
    check_time(value, value, field)
    return value


def label(value: Any, field: str) -> str:
    """A short printable text, such as an id. ValueError if it is anything else."""
    text = str(value).strip() if type(value) in (str, int) else ""
    if not text.isprintable() or not 1 <= len(text) <= MOST_LABEL_CHARS:
        raise ValueError(
            f"{field} is {shown(value)}, not a text of 1 to {MOST_LABEL_CHARS} printable characters"
        )
    return text


def hash_ids(value: Any, field: str) -> list[int] | None:
    """Labels of a prompt's blocks: integers of 64 bits, None if there are none. ValueError for all else."""
    if type(value) is not list:
        raise ValueError(f"{field} is {shown(value)}, not a list of integers")
    for id in value:
        if type(id) is not int or not -(2**63) <= id < 2**63:
            raise ValueError(f"{field} holds {shown(id)}, not an integer of 64 bits")
    return value or None


def optional_label(value: Any, field: str) -> str | None:
    """A label; None if the cell is empty."""
    return None if missing(value) else label(value, field)


def shown(value: Any) -> str:
    """A value as a message shows it: on one line, and short."""
    text = repr(value)
    closing = text[-1] if isinstance(value, str) else ""
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…{closing}"
