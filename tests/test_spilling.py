"""What is too much for memory goes to disk: same figures, flat memory, and one line if the disk is full."""

from __future__ import annotations

import random
import sqlite3
import sys
import tracemalloc
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgers.demand import demand
from ledgers.describer import Describer
from ledgers.errors import InputError
from ledgers.formats.fields import TraceRow
from ledgers.intake import Intake
from ledgers.kept import Kept
from ledgers.rows import encode
from ledgers.settings import HARDWARE
from ledgers.spilling import Ascending, Firsts
from ledgers.trace_cli import describe_trace
from tests.conftest import refused, tokentick

NUMBERS = st.one_of(
    st.integers(-50, 50),
    st.integers(2**62, 2**70),  # some fit into 64 bits
    st.fractions(min_value=0, max_value=9),
)
NATIVE = "id,session,turn,arrival_s,prompt_tokens,output_tokens\n"


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than seven values of a kind in memory."""
    monkeypatch.setattr("ledgers.spilling.PARTS", 3)
    monkeypatch.setattr("ledgers.spilling.HELD", 7)


# --- the parts


@given(st.lists(NUMBERS, max_size=60), st.integers(1, 20), st.booleans())
def test_numbers_come_back_in_order(numbers: list[int | Fraction], held: int, in_order: bool) -> None:
    ascending = Ascending(held)
    for number in sorted(numbers) if in_order else numbers:
        ascending.add(number)
    ascending.finish()
    assert len(ascending) == len(numbers)
    assert list(ascending) == sorted(numbers)
    assert list(ascending) == sorted(numbers)  # as often as one likes


def test_many_numbers_in_no_order_come_back_in_order() -> None:
    """Runs of more numbers than are read at once."""
    numbers = [random.Random(1).randrange(10**12) for _ in range(20_000)]
    ascending = Ascending(3_000)
    for number in numbers:
        ascending.add(number)
    ascending.finish()
    assert list(ascending) == sorted(numbers)


@given(st.lists(st.tuples(st.sampled_from("abcdefghij"), st.integers(0, 5)), max_size=60), st.integers(1, 12))
def test_each_key_has_the_first_value_that_came_with_it(pairs: list[tuple[str, int]], held: int) -> None:
    firsts: Firsts[str] = Firsts(held)
    expected: dict[str, int] = {}
    for key, value in pairs:
        firsts.setdefault(key, value)
        expected.setdefault(key, value)
    parts = list(firsts.parts())
    assert sum(map(len, parts)) == len(expected)
    assert {key: value for part in parts for key, value in part.items()} == expected


@given(st.lists(st.tuples(st.sampled_from("abcdefghij"), st.integers(0, 5)), max_size=60), st.integers(1, 12))
def test_each_key_has_the_last_value_that_it_was_set_to(pairs: list[tuple[str, int]], held: int) -> None:
    kept: Kept[Fraction] = Kept(held)
    expected: dict[str, Fraction] = {}
    for key, value in pairs:
        assert kept.get(key) == expected.get(key)
        kept[key] = expected[key] = Fraction(value, 3)
    assert [kept.get(key) for key in "abcdefghijk"] == [expected.get(key) for key in "abcdefghijk"]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """Those that are opened."""
    opened: list[sqlite3.Connection] = []

    def connect(*given: Any, **named: Any) -> sqlite3.Connection:
        opened.append(sqlite3_connect(*given, **named))
        return opened[-1]

    sqlite3_connect = sqlite3.connect
    monkeypatch.setattr("sqlite3.connect", connect)
    return opened


def test_a_table_that_fails_is_one_line_when_it_is_read_too(tables: list[sqlite3.Connection]) -> None:
    kept: Kept[int] = Kept(1)
    kept["a"], kept["b"] = 1, 2
    tables[0].execute("DROP TABLE kept")
    with pytest.raises(InputError, match="temporary table: no such table: kept"):
        kept.get("a")
    with pytest.raises(InputError, match="temporary table: no such table: kept"):
        kept["c"] = 3


def test_a_table_is_closed_with_what_it_is_of(tables: list[sqlite3.Connection]) -> None:
    kept: Kept[int] = Kept(1)
    kept["a"], kept["b"] = 1, 2
    del kept
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        tables[0].execute("SELECT 1")


# --- the whole


def random_rows(seed: int, *, unit: bool, in_order: bool) -> list[TraceRow]:
    """Sessions and blocks that come back, near and far; times that do, some with digits below nanoseconds."""
    draw = random.Random(seed)
    count = draw.randrange(1, 120)
    times = [Fraction(draw.randrange(900), draw.choice([1, 1, 3])) for _ in range(count)]
    return [
        TraceRow(
            line=line,
            time_ns=(time.numerator if time.denominator == 1 else time) if unit else None,
            at=None if unit else time,
            prompt_tokens=draw.randrange(1, 400),
            output_tokens=draw.randrange(1, 40),
            id=f"R{line}",
            session=draw.choice([None, f"S{draw.randrange(40)}"]),
            hash_ids=[draw.randrange(-30, 60) for _ in range(draw.randrange(30))] or None,
            block_tokens=16,
        )
        for line, time in enumerate(sorted(times) if in_order else times, 2)
    ]


def figures(rows: list[TraceRow]) -> list[object]:
    """All that is told of them."""
    intake, trace = Intake("trace", rows, strict=False), Describer()
    for _, row in intake:
        trace.add(row)
    trace.finish()
    columns = trace.arrivals.over_time() if trace.arrivals.span else []
    return [encode(trace.description("native", intake)), columns, demand(trace, HARDWARE["toy"])]


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("unit", [True, False])
def test_figures_do_not_depend_on_what_is_in_memory(
    monkeypatch: pytest.MonkeyPatch, unit: bool, in_order: bool
) -> None:
    """Forty random ledgers, with all in memory and with three to thirty of each kind."""
    monkeypatch.setattr("ledgers.spilling.PARTS", 3)
    for seed in range(40):
        rows = random_rows(seed, unit=unit, in_order=in_order)
        expected = figures(rows)
        with monkeypatch.context() as patch:
            patch.setattr("ledgers.spilling.HELD", 3 + seed % 28)
            assert figures(rows) == expected


@pytest.mark.usefixtures("tiny")
def test_turns_find_the_time_of_a_turn_that_was_long_ago() -> None:
    """A hundred sessions begin, one a second; then each has a turn that waits for 5 s behind its first."""
    sessions = [f"S{i}" for i in range(100)]
    begin = [
        TraceRow(line=i, time_ns=i * 10**9, prompt_tokens=1, output_tokens=1, session=name)
        for i, name in enumerate(sessions)
    ]
    follow = [
        TraceRow(line=100 + i, prompt_tokens=1, output_tokens=1, session=name, think_ns=5 * 10**9)
        for i, name in enumerate(sessions)
    ]
    rows = [row for _, row in Intake("trace", [*begin, *follow], strict=True)]
    assert [row.time_ns for row in rows[100:]] == [(i + 5) * 10**9 for i in range(100)]


@pytest.mark.parametrize("swapped", [False, True])
def test_a_long_trace_takes_no_more_memory_than_a_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swapped: bool
) -> None:
    """Four times the rows, each of a session of its own: 20 bytes more for each, not 400 as in memory."""
    monkeypatch.setattr("ledgers.load.HEAD_BYTES", 4096)  # what is read ahead would hide the rest
    monkeypatch.setattr("ledgers.spilling.HELD", 500)
    monkeypatch.setattr("ledgers.spilling.PARTS", 101)

    def peak(count: int) -> int:
        source = tmp_path / "long.csv"
        with source.open("w") as file:
            file.write(NATIVE)
            for i in range(count):
                time = i ^ 1 if swapped else i
                file.write(f"R{i},S{i},0,{time}.5,{i % 50 + 1},7\n")
        tracemalloc.start()
        try:
            describe_trace(str(source))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1_000)  # what is imported and cached is so once
    assert peak(6_000) - peak(1_500) < 4_500 * 20


# --- ids that come twice


def native(write: Callable[[str], object], ids: list[str]) -> None:
    write(NATIVE + "".join(f"{id},,,{i},5,1\n" for i, id in enumerate(ids)))


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("again", "first", "line"),
    [
        ({50: 3}, "R3", 52),  # far from where it was first
        ({50: 49}, "R49", 52),  # on the next line
        ({50: 3, 51: 50}, "R3", 52),  # the first of two, found last
        ({40: 3, 50: 48}, "R3", 42),
        ({50: 3, 60: 3}, "R3", 52),
    ],
)
def test_an_id_that_comes_twice_is_named_however_far_apart(
    tmp_path: Path, again: dict[int, int], first: str, line: int
) -> None:
    path = tmp_path / "trace.csv"
    ids = [f"R{again.get(i, i)}" for i in range(100)]
    native(path.write_text, ids)
    with pytest.raises(InputError) as caught:
        describe_trace(str(path))
    assert str(caught.value) == f"{path}: line {line}: id '{first}' is on line {int(first[1:]) + 2} already"


# --- a disk that takes no more


def short_of(memory: int, disk_bytes: int) -> list[str]:
    """The front door with so many values in memory, and files no larger than this."""
    script = (
        "import resource, tokentick, ledgers.spilling\n"
        f"ledgers.spilling.HELD = {memory}\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({disk_bytes}, {disk_bytes}))\n"
        "tokentick.main()"
    )
    return [sys.executable, "-c", script]


@pytest.mark.parametrize("row", ["R{i},,,{i},5,1\n", ",,,{i},5,1\n", ",S{i},0,{i},5,1\n"])
def test_a_full_disk_is_one_line(tmp_path: Path, row: str) -> None:
    """Of ids, of times, and of sessions."""
    path = tmp_path / "trace.csv"
    path.write_text(NATIVE + "".join(row.format(i=i) for i in range(9_000)))
    done = tokentick("trace", "describe", str(path), cwd=tmp_path, command=short_of(500, 20_000))
    refused(done, 2, "TMPDIR")
    assert (
        tokentick("trace", "describe", str(path), cwd=tmp_path, command=short_of(500, 10**8)).returncode == 0
    )


def test_a_short_trace_needs_no_disk(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(NATIVE + "".join(f"R{i},S{i},0,{i},5,1\n" for i in range(400)))
    done = tokentick("trace", "describe", str(path), cwd=tmp_path, command=short_of(500, 0))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_temporary_directory_that_is_not_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    ascending = Ascending(2)
    ascending.add(1)
    with pytest.raises(InputError, match="none: No such file or directory"):
        ascending.add(2)
