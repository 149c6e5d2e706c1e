"""Rows of a run are read many at a time, and what is damaged is refused or left out as if one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgers.errors import InputError
from ledgers.rows import TickRow, encode
from ledgers.rundir import LedgerInfo, Run, RunConfig, RunInfo, RunWriter


def tick(number: int) -> TickRow:
    return TickRow(tick=number, queue=1, prefill=0, ready=0, emitted=0, kv_reserved=9, kv_cached=9)


def line(number: int) -> bytes:
    return encode(tick(number)) + b"\n"


def run_with(path: Path, ticks: bytes) -> Run:
    info = RunInfo(kind="simulated", config=RunConfig(), ledger=LedgerInfo(name="test"))
    RunWriter(path, info).close(complete=True)
    (path / "ticks.jsonl").write_bytes(ticks)
    return Run(path)


def test_many_rows_come_in_order(tmp_path: Path) -> None:
    """More than are read at once."""
    run = run_with(tmp_path / "run", b"".join(map(line, range(5_000))))
    assert [row.tick for row in run.ticks()] == list(range(5_000))


@pytest.mark.parametrize("damaged", [
    line(0).rstrip() + line(1),  # two in one line
    line(0).rstrip() + line(1) + b"\n",  # as many values as lines
    line(0).rstrip() + line(1) + line(2).replace(b",", b",\n", 1),
    line(0) + b"{}\n",
    line(0) + b"\xff\n",
    line(0) + b"\n" + line(1),
    b"1\n",
])  # fmt: skip
def test_a_line_that_is_no_row_is_named(tmp_path: Path, damaged: bytes) -> None:
    """With its number in the file; rows before it are counted."""
    before = 3_000
    run = run_with(tmp_path / "run", b"".join(map(line, range(before))) + damaged)
    wrong = before + (2 if damaged.startswith(line(0)) else 1)
    with pytest.raises(InputError, match=rf"ticks\.jsonl: line {wrong}: "):
        list(run.ticks())


def test_half_a_last_line_is_left_out_and_said(tmp_path: Path) -> None:
    """The rows before it are there."""
    run = run_with(tmp_path / "run", line(0) + line(1) + line(2)[:-5])
    assert list(run.ticks()) == [tick(0), tick(1)]
    assert run.notes == ["ticks.jsonl: line 3 is cut off and left out"]


def test_line_ends_of_another_system_are_read(tmp_path: Path) -> None:
    """A file that was copied through one."""
    run = run_with(tmp_path / "run", (line(0) + line(1)).replace(b"\n", b"\r\n"))
    assert list(run.ticks()) == [tick(0), tick(1)]
