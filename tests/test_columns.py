"""What is held by column reads back as it came, in few bytes; the rows of a ledger are such columns."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgers.columns import Column, Table
from ledgers.formats.fields import TraceRow
from ledgers.ledger import Ledger, PlannedRows
from ledgers.rows import PLAN_ONLY, RequestRow
from ledgers.taken import Taken
from tests.memory import bytes_each

PLANNED = ("id", "class_", "session", "turn", "prompt_tokens", "output_tokens", *PLAN_ONLY, "arrival_ns")

some_integers = st.integers(-130, 130) | st.integers(-(2**31) - 2, 2**31 + 2) | st.integers()
columns_of_one_kind = st.one_of(
    st.lists(st.none() | some_integers),
    st.lists(st.none() | st.text()),
    st.lists(st.none() | st.fractions() | some_integers | st.text() | st.lists(st.integers(), max_size=3)),
)


@given(columns_of_one_kind, columns_of_one_kind)
def test_a_column_reads_back_what_it_was_given(first: list[Any], more: list[Any]) -> None:
    """Whatever the values are, and in which order they outgrow what went before."""
    column = Column(first)
    column.extend(more)
    values = first + more
    assert list(column) == values
    assert column == values
    assert [column[i] for i in range(-len(values), len(values))] == values + values
    assert column.empty == all(value is None for value in values)
    backwards = range(len(values) - 1, -1, -1)
    assert list(column.take(backwards)) == values[::-1]
    assert list(column[1:-1:2]) == values[1:-1:2]
    assert column.known(backwards) == [value for value in values[::-1] if value is not None]


def test_a_column_outgrows_its_integers_and_its_batches() -> None:
    """The least integer of each width stands for None, and is an integer all the same."""
    values = [None, -128, -(2**15), None, *range(3000), -(2**31), -(2**63), 2**63 - 1, None, 2**63, "a"]
    assert list(Column(values)) == values


def test_texts_may_hold_anything_that_a_file_may() -> None:
    texts = ["", None, "ä", "\ud800", "\x00", "ÿ", "R01"]
    column = Column(texts)
    assert list(column) == texts
    with pytest.raises(IndexError):
        column[len(texts)]


def test_a_table_is_appended_by_row_and_read_by_column() -> None:
    table = Table(("number", "name"))
    for number in range(5000):
        table.append((number, None if number % 2 else str(number)))
    assert len(table) == 5000
    assert list(table["number"]) == list(range(5000))
    assert table["name"][4998:] == ["4998", None]
    table.take([4000, 2])
    table.append((9, "nine"))
    assert (list(table["number"]), list(table["name"])) == ([4000, 2, 9], ["4000", "2", "nine"])


# Planned rows


counts = st.integers(1, 10**9)
labels = st.text(min_size=1, max_size=20)
planned_rows = st.builds(
    RequestRow,
    id=labels,
    class_=st.none() | labels,
    session=st.none() | labels,
    turn=st.none() | st.integers(0, 10**9),
    prompt_tokens=counts,
    output_tokens=counts,
    prompt=st.none() | st.text(),
    prefix=st.none() | labels,
    prefix_tokens=st.none() | counts,
    hash_ids=st.none() | st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5),
    block_tokens=st.none() | counts,
    arrival_ns=st.none() | st.integers(0, 10**18),
)


def held(rows: list[RequestRow]) -> PlannedRows:
    columns = {field: Column(getattr(row, field) for row in rows) for field in PLANNED}
    return PlannedRows(range(1, len(rows) + 1), 2, columns)


@given(st.lists(planned_rows, max_size=10))
def test_planned_rows_are_the_rows_they_were_made_of(rows: list[RequestRow]) -> None:
    planned = held(rows)
    assert planned == rows
    assert list(planned) == rows
    assert [planned[i] for i in range(-len(rows), len(rows))] == rows + rows
    assert planned[2:7] == rows[2:7]
    assert planned[::-3] == rows[::-3]
    assert Ledger(name="x", rows=planned).sha256() == Ledger(name="x", rows=rows).sha256()


def test_planned_rows_differ_where_one_row_does() -> None:
    rows = [RequestRow(id=f"R{number}", prompt_tokens=number, output_tokens=1) for number in (1, 2)]
    assert held(rows) != rows[:1]
    assert held(rows) != [rows[0], rows[0]]
    assert held(rows) != "R1"


def test_a_request_without_an_id_is_called_by_its_number() -> None:
    lengths = {"prompt_tokens": Column([7, 8, 9]), "output_tokens": Column([1, 1, 1])}
    planned = PlannedRows([3, 1, 12], 4, lengths)
    assert [row.id for row in planned] == ["R0003", "R0001", "R0012"]
    assert (planned[-1].id, planned[1:][0].id) == ("R0012", "R0001")


def test_a_row_that_is_changed_is_no_longer_the_ledgers() -> None:
    planned = held([RequestRow(id="a", prompt_tokens=1, output_tokens=1)])
    planned[0].prompt_tokens = 5
    assert planned[0].prompt_tokens == 1


# Rows taken from a trace


@given(st.lists(st.integers(0, 20), max_size=60), st.none() | st.integers(1, 70))
def test_the_first_in_time_are_taken_in_whatever_order_they_come(times: list[int], most: int | None) -> None:
    """Those of one time in order of the file, as a stable sort of the whole file would have it."""
    taken = Taken(most)
    for number, time in enumerate(times):
        taken.add(number, TraceRow(line=number, time_ns=time, prompt_tokens=number, output_tokens=1))
    taken.sort()
    first = sorted(range(len(times)), key=times.__getitem__)[:most]
    assert list(taken["number"]) == list(taken["prompt_tokens"]) == first
    assert list(taken["time_ns"]) == [times[number] for number in first]


@pytest.mark.parametrize("field", ["time_ns", "at"])
def test_times_may_be_fractions_or_beyond_64_bits(field: str) -> None:
    taken = Taken()
    for number, time in enumerate((2**80, Fraction(1, 3), 0)):
        times = {field: time if field == "time_ns" else Fraction(time)}
        taken.add(number, TraceRow(line=number, prompt_tokens=1, output_tokens=1, **times))  # type: ignore[arg-type]
    taken.sort()
    assert list(taken["number"]) == [2, 1, 0]
    assert list(taken.times or ()) == [0, Fraction(1, 3), 2**80]


def test_rows_without_times_keep_the_order_of_the_file() -> None:
    taken = Taken(3)
    for number in range(5):
        taken.add(number, TraceRow(line=number, prompt_tokens=1, output_tokens=1))
    taken.sort()
    assert (list(taken["number"]), taken.times) == ([0, 1, 2], None)


# Memory


def test_values_take_the_bytes_that_they_need() -> None:
    """Bytes of one, with what an array grows ahead; in a list a number takes 40, and such an id 65."""
    assert bytes_each(lambda count: Column(None for _ in range(count))) < 1.2
    assert bytes_each(lambda count: Column(number % 100 for number in range(count))) < 1.2
    assert bytes_each(lambda count: Column(number + 2**20 for number in range(count))) < 4.5
    assert bytes_each(lambda count: Column(number + 2**40 for number in range(count))) < 9
    assert bytes_each(lambda count: Column(f"R{number:07}" for number in range(count))) < 18


def test_no_more_rows_are_held_than_are_asked_for() -> None:
    """The first 100 of a file that is not in order; all of its rows would take 40 bytes and more each."""

    def take_some(count: int) -> None:
        taken = Taken(100)
        for number in range(count):
            time_ns = number * 7919 % count * 10**9
            taken.add(number, TraceRow(line=number, time_ns=time_ns, prompt_tokens=9, output_tokens=9))

    assert bytes_each(take_some) < 2


def test_a_field_is_replaced_in_all_records_or_not_at_all() -> None:
    table = Table(("number", "name"))
    for number in range(3):
        table.append((number, "x"))
    table.replace("name", (None if name == "x" and number == 1 else "é" for number, name in enumerate("xxx")))
    assert list(table["name"]) == ["é", None, "é"]
    with pytest.raises(ValueError, match="2 values for 3 records"):
        table.replace("name", ["a", "b"])
    assert list(table["number"]) == [0, 1, 2]
