"""A disk that fills up in the middle of a run: one line, exit code 2, and what was written can be used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgers.replacing import replacing
from ledgers.rundir import Run, replace_file
from tests.conftest import MockServer, on_full_disk, refused, tokentick

ENOUGH_FOR_SOME_ROWS = 4_000


def check_what_is_left(out: Path) -> None:
    """The rows that fitted are there, the directory says that it is not complete, and it can be reported."""
    run = Run(out)
    assert not run.info.complete
    assert 0 < len(list(run.rows())) < 16
    assert run.notes
    report = tokentick("report", str(out), cwd=out)
    assert report.returncode == 0
    assert "NOT COMPLETE" in report.stdout
    assert "cut off" in report.stdout


def test_a_simulation_on_a_full_disk(tmp_path: Path) -> None:
    """`simulate` names the file that could not be written."""
    arguments = ["simulate", "toy", "--ticks", "none", "--out", "out"]
    result = tokentick(*arguments, cwd=tmp_path, command=on_full_disk(ENOUGH_FOR_SOME_ROWS))
    refused(result, 2, "requests.jsonl")
    check_what_is_left(tmp_path / "out")


def test_a_measurement_on_a_full_disk(server: MockServer, tmp_path: Path) -> None:
    """`run` stops as well, rather than measure what it cannot keep."""
    arguments = ["run", "toy", "--request-rate", "50", "--base-url", server.url, "--out", "out", "--quiet"]
    result = tokentick(*arguments, cwd=tmp_path, command=on_full_disk(ENOUGH_FOR_SOME_ROWS))
    refused(result, 2, "requests.jsonl")
    check_what_is_left(tmp_path / "out")


def test_a_search_on_a_full_disk(tmp_path: Path) -> None:
    """`sweep --find` names the file, and what was judged before is in it."""
    arguments = ["sweep", "toy", "--arrival", "poisson", "--request-rate", "1,20", "--find", "--out", "out"]
    asked = ["--require", "ttft.p95<=800", "--max-requests", "200", "--quiet"]
    result = tokentick(*arguments, *asked, cwd=tmp_path, command=on_full_disk(2_000))
    refused(result, 2, "out/rates.jsonl")
    assert (tmp_path / "out" / "rates.jsonl").stat().st_size > 0


def test_a_file_whose_writing_is_interrupted_is_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing lies beside it, whenever Ctrl-C came."""

    def interrupted(*_: object) -> Iterator[bytes]:
        yield b"half"
        raise KeyboardInterrupt

    path = tmp_path / "summary.json"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as file:
        file.writelines(interrupted())
    monkeypatch.setattr("os.fsync", lambda _: list(interrupted()))
    with pytest.raises(KeyboardInterrupt):
        replace_file(path, b"new")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("summary.json", "old")]


def test_a_link_to_a_file_stays_one(tmp_path: Path) -> None:
    """So that a calibration or a page can lie elsewhere; also where there is no such file yet."""
    (tmp_path / "there").mkdir()
    link, file = tmp_path / "link.json", tmp_path / "there/file.json"
    link.symlink_to(file)
    for content in (b"first", b"second"):
        replace_file(link, content)
        assert link.is_symlink()
        assert file.read_bytes() == content
    assert [each.name for each in (tmp_path / "there").iterdir()] == ["file.json"]
