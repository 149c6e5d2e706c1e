"""A directory of session files is one trace, and what is wrong in it is named by file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ledgers.errors import InputError
from ledgers.load import load_ledger
from ledgers.trace_cli import describe_trace
from tests.conftest import refused, tokentick


def session(name: str, *hash_ids: int, **change: object) -> dict[str, Any]:
    """Of two calls, the second 10 s after the first."""
    calls = [
        {"t": t, "type": "n", "in": 64 * len(hash_ids), "out": 3, "think_time": 4, "hash_ids": hash_ids}
        for t in (0, 10)
    ]
    return {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": calls, **change}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Three sessions in files of all kinds, and a file that is none of them."""
    traces = tmp_path / "traces"
    traces.mkdir()
    (traces / "b.json").write_text(json.dumps(session("B", 1, 2), indent=1))  # no newline at its end
    (traces / "a.json").write_text(f"\ufeff{json.dumps(session('A', 1, 2))}\n")
    (traces / "c.json").write_text(json.dumps([session("C", 2, 3, 4)]))
    (traces / "README.md").write_text("agents\n")
    return traces


def test_all_sessions_of_a_directory_are_one_trace(directory: Path) -> None:
    """Two calls each. Blocks of a session are no other's: half of all tokens are in those of first calls."""
    found, _ = describe_trace(str(directory))
    assert (found.format, found.requests, found.sessions) == ("weka", 6, 3)
    assert (found.prompt_tokens, found.prefix_reuse) == (2 * 64 * 7, 0.5)


def test_a_directory_is_loaded_as_it_is_described(directory: Path) -> None:
    """In order of the files' names; the second turn of each waits for the first."""
    ledger = load_ledger(str(directory))
    assert ledger.name == "traces"
    assert [(row.session, row.think_ns) for row in ledger.rows[:3]] == [(name, None) for name in "ABC"]
    assert sorted(row.session or "" for row in ledger.rows[3:]) == ["A", "B", "C"]
    assert {row.think_ns for row in ledger.rows[3:]} == {4_000_000_000}


def test_converting_a_directory_makes_one_file(directory: Path) -> None:
    done = tokentick("trace", "convert", "traces", "all.jsonl", cwd=directory.parent)
    assert done.returncode == 0
    before, _ = describe_trace(str(directory))
    after, _ = describe_trace(str(directory.parent / "all.jsonl"))
    assert (after.requests, after.sessions, after.prefix_reuse) == (6, 3, before.prefix_reuse)


def test_one_file_and_many_are_the_same(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "one.json").write_bytes(
        b"\n".join((directory / f"{name}.json").read_bytes().removeprefix(b"\xef\xbb\xbf") for name in "abc")
    )
    many, one = (load_ledger(str(path)) for path in (directory, tmp_path / "one.json"))
    assert list(many.rows) == list(one.rows)


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("b.json", "\n\n" + json.dumps(session("B", 1, block_size=0)), "b.json: line 3: block_size is 0"),
        ("c.json", json.dumps(session("C", 1)) + "\n{]", "c.json: line 2: not a session"),
        ("d.json", json.dumps(session("D", 1, hash_id_scope="global")), "d.json: line 1: hash_id_scope is"),
        ("d.json", "{", "d.json: line 1: not JSON: the file ends"),
    ],
)
def test_what_is_wrong_is_named_by_its_file(directory: Path, file: str, text: str, problem: str) -> None:
    (directory / file).write_text(text)
    for read in (describe_trace, load_ledger):
        with pytest.raises(InputError) as caught:
            read(str(directory))
        assert str(caught.value).startswith(str(directory / problem))


def test_strict_names_the_file_of_what_is_no_request(directory: Path) -> None:
    (directory / "b.json").write_text("\n" + json.dumps(session("B")))  # prompts of no tokens
    done = tokentick("trace", "describe", "traces", "--strict", cwd=directory.parent)
    refused(done, 2, "traces/b.json: line 2: no prompt tokens")


def test_a_directory_of_a_run_that_lacks_its_rows_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(InputError, match="no run directory"):
        load_ledger(str(tmp_path))
