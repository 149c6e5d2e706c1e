"""What people read in a terminal: 80 columns, nothing cut, marks where they belong."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgers.rows import TickRow
from reports.text import tick_lines
from tests.conftest import COMMAND, tokentick


@pytest.fixture(scope="module")
def overload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy ledger at a rate at which some requests do not complete."""
    cwd = tmp_path_factory.mktemp("text")
    result = tokentick("simulate", "toy", "--preset", "overload", "--record-events", "--out", "run", cwd=cwd)
    assert result.returncode == 0
    return cwd


def test_a_report_fits_80_columns_and_marks_what_is_censored(overload: Path) -> None:
    """Every latency of a censored run carries the mark; the counts and an estimate stand beside it."""
    lines = tokentick("report", "run", cwd=overload).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "16 scheduled = 13 completed + 3 unfinished" in lines
    (ttft,) = (line for line in lines if line.startswith("TTFT  "))
    assert ttft.count("†") == 6
    assert any(line.startswith("E2E, estimate") for line in lines)
    assert sum(line.endswith("unfinished") for line in lines) == 1 + 3  # the sum, and R11, R14, R16


def test_the_tick_table_accounts_for_every_token(overload: Path) -> None:
    """Each tick's tokens are named, a line per kind, in 80 columns."""
    lines = tokentick("report", "run", "--ticks", cwd=overload).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    table = [line.split() for line in lines[1:]]
    emitted = sum(int(cells[4]) for cells in table if cells[0].isdigit())
    named = sum(len(line.split(" token ")[1].split()) for line in lines if " token " in line)
    assert emitted == named == 63


def test_columns_of_the_tick_table_never_run_together() -> None:
    """Seven digits of KV tokens are as readable as two."""
    tick = TickRow(tick=7, queue=1, prefill=2, ready=3, emitted=3, kv_reserved=4000000000, kv_cached=1234567)
    *_, line = tick_lines([tick], {})
    assert line.split() == ["7", "1", "2", "3", "3", "4000000000", "1234567"]


def test_a_report_does_not_need_utf_8(overload: Path) -> None:
    """A terminal that knows only ASCII gets a table, not a traceback."""
    command = ["env", "LC_ALL=C", "PYTHONUTF8=0", "PYTHONCOERCECLOCALE=0", "PYTHONIOENCODING=ascii"]
    result = tokentick("report", "run", cwd=overload, command=[*command, *COMMAND])
    assert result.returncode == 0, result.stderr
    assert "16 scheduled" in result.stdout
