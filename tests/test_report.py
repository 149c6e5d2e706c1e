"""`tokentick report` on what is left of runs: whole, cut, damaged, and not ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import COMMAND, on_full_disk, refused, tokentick


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A complete simulation of the toy ledger."""
    assert tokentick("simulate", "toy", "--out", "run", "--quiet", cwd=tmp_path).returncode == 0
    return tmp_path / "run"


def test_a_summary_is_rebuilt_with_the_same_bytes(run: Path) -> None:
    """Missing or damaged, it is put right from the other files."""
    before = (run / "summary.json").read_bytes()
    for damage in (Path.unlink, lambda path: path.write_text("{}")):
        damage(run / "summary.json")
        assert tokentick("report", "run", cwd=run.parent).returncode == 0
        assert (run / "summary.json").read_bytes() == before


def test_missing_rows_are_not_forgotten(run: Path) -> None:
    """Half a last row and a lost one: both are counted, so that 16 stay 16, and no percentile is clean."""
    rows = (run / "requests.jsonl").read_bytes().splitlines(keepends=True)
    (run / "requests.jsonl").write_bytes(b"".join(rows[:-2]) + rows[-2][:40])
    text = tokentick("report", "run", cwd=run.parent).stdout
    assert "16 scheduled = 14 completed + 2 without a row" in text
    assert "†" in text
    assert "NOT COMPLETE" in text
    assert text.count("cut off") == 1


def test_more_rows_than_the_ledger_has_are_refused(run: Path) -> None:
    """A row that is there twice must not count twice."""
    rows = (run / "requests.jsonl").read_bytes()
    (run / "requests.jsonl").write_bytes(rows + rows.splitlines(keepends=True)[0])
    refused(tokentick("report", "run", cwd=run.parent), 2, "17 rows", "16 requests")


@pytest.mark.parametrize("name", ["requests.jsonl", "run.json"])
def test_a_damaged_file_is_named(run: Path, name: str) -> None:
    """Garbage, another schema, or a directory in its place: one line with the path."""
    shutil.copy(run / name, run.parent / "whole")
    for content in ("garbage\n", '{"schema": 99}\n'):
        (run / name).write_text(content)
        refused(tokentick("report", "run", cwd=run.parent), 2, f"run/{name}")
    (run / name).unlink()
    (run / name).mkdir()
    refused(tokentick("report", "run", cwd=run.parent), 2, f"run/{name}")


def test_a_directory_of_runs_says_where_they_are(run: Path) -> None:
    """The nearest run directory below is named."""
    refused(tokentick("report", ".", cwd=run.parent), 2, "not a run directory", "run is one")


def test_json_is_one_object_whatever_the_number_of_runs(run: Path) -> None:
    """One run: its summary. Several: an object of them, by path."""
    one = json.loads(tokentick("report", "run", "--json", cwd=run.parent).stdout)
    assert one == json.loads((run / "summary.json").read_text())
    shutil.copytree(run, run.parent / "other")
    two = json.loads(tokentick("report", "run", "other", "--format", "json", cwd=run.parent).stdout)
    assert two == {"run": one, "other": one}
    refused(tokentick("report", "run", "nothing", "--json", cwd=run.parent), 2, "nothing")


@pytest.mark.parametrize("damage", [("arrival_ns", 10**30), ("prompt_tokens", -3)])
def test_a_number_that_cannot_be_is_named_with_its_line(run: Path, damage: tuple[str, int]) -> None:
    """Beyond 64 bits, or fewer tokens than none."""
    rows = (run / "requests.jsonl").read_text().splitlines()
    rows[4] = json.dumps({**json.loads(rows[4]), damage[0]: damage[1]})
    (run / "requests.jsonl").write_text("\n".join(rows) + "\n")
    refused(tokentick("report", "run", cwd=run.parent), 2, "requests.jsonl: line 5", damage[0])


def test_a_run_without_ticks_says_so(run: Path) -> None:
    """An empty table would look like an idle server."""
    (run / "ticks.jsonl").unlink()
    refused(tokentick("report", "run", "--ticks", cwd=run.parent), 2, "ticks.jsonl")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_said(run: Path) -> None:
    """A full disk behind a redirection is an error, not a traceback."""
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [*COMMAND, "report", str(run)], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert result.returncode == 2
    assert result.stderr.splitlines() == ["tokentick: cannot write the output: No space left on device"]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_is_cut_short_is_said(run: Path, unbuffered: str) -> None:
    """A disk that takes a part of it and then no more, however Python was told to write."""
    with (run.parent / "part.json").open("w") as part:
        result = subprocess.run(
            [*on_full_disk(1_000), "report", str(run), "--json"],
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=part,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert result.returncode == 2
    assert result.stderr.splitlines() == ["tokentick: cannot write the output: File too large"]


def test_a_run_of_which_nothing_is_left_can_be_reported(run: Path) -> None:
    """Killed before its first row ended: sixteen of which nothing is known, no table, no traceback."""
    (run / "requests.jsonl").write_bytes(b"")
    result = tokentick("report", "run", cwd=run.parent)
    assert (result.returncode, result.stderr) == (1, "")
    assert "16 scheduled = 16 without a row" in result.stdout
    assert "NOT COMPLETE" in result.stdout
