"""`tokentick compare` as a user runs it: refusals that say what differs, exit codes, repeats, JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ledgers.rundir import Clock, LedgerInfo, RunConfig, RunInfo, RunWriter
from ledgers.settings import Hardware, Slo
from ledgers.summary import write_summary
from reports.compare_settings import SETTINGS
from tests.compared import answered
from tests.conftest import refused, tokentick


def make(path: Path, *, changes: dict[str, Any] | None = None, slower: float = 1.0, count: int = 100) -> Path:
    """A measured run directory; `changes` to its run.json as paths of names: `config.slo`."""
    config = RunConfig(slo=Slo(e2e_ms=900), hardware=Hardware(), policy="continuous")
    info = RunInfo(
        kind="measured",
        config=config,
        ledger=LedgerInfo("test", "digest", count),
        clock=Clock(0, 0, "kernel"),
    )
    for name, changed in (changes or {}).items():
        *parents, last = name.split(".")
        owner: Any = info
        for parent in parents:
            owner = getattr(owner, parent)
        setattr(owner, last, changed)
    writer = RunWriter(path, info)
    for i in range(count):
        writer.add(answered(i, slower * (200 + (37 * i) % 400)))
    writer.close(complete=True)
    write_summary(path)
    return path


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("kind", {"kind": "served"}, ["measured | served"]),
        ("ledger", {"ledger.sha256": "other"}, ["sha256 digest | other"]),
        ("policy", {"config.max_batch": 8}, ["max_batch none | 8"]),
        ("hardware", {"config.hardware": Hardware(decode_slots=5)}, ["decode_slots 3 | 5"]),
        ("slo", {"config.slo": Slo(e2e_ms=800)}, ["e2e_ms 900.0 | 800.0"]),
        ("window", {"config.tail_s": 2.0}, ["tail_s drain | 2.0"]),
        ("stamping", {"clock.stamp_source": "read"}, ["stamp_source kernel | read"]),
        ("asking", {"config.extra": {"max_concurrency": 4}}, ["max_concurrency none | 4"]),
    ],
)
def test_runs_that_differ_are_refused_unless_allowed(
    tmp_path: Path, name: str, changes: dict[str, Any], words: list[str]
) -> None:
    """One line says in what, with both values, and which flag compares them all the same; others do not."""
    make(tmp_path / "a")
    make(tmp_path / "b", changes=changes)
    refused(tokentick("compare", "a", "b", cwd=tmp_path), 2, "a and b", name, *words, f"--allow {name}")
    others = ",".join(other for other in SETTINGS if other != name)
    refused(tokentick("compare", "a", "b", "--allow", others, cwd=tmp_path), 2, *words)
    result = tokentick("compare", "a", "b", "--allow", name, "--metric", "e2e.p50", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "allowed to differ" in result.stdout


def test_the_exit_code_tells_a_regression(tmp_path: Path) -> None:
    """Twice as slow: 1 forwards, 0 backwards; JSON is one object with the same verdict."""
    make(tmp_path / "a")
    make(tmp_path / "b", slower=2)
    metric = ("--metric", "e2e.mean", "--tolerance", "5%")
    result = tokentick("compare", "a", "b", *metric, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (1, "")
    assert "REGRESSION beyond the tolerance: e2e.mean" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert tokentick("compare", "b", "a", *metric, cwd=tmp_path).returncode == 0
    answer = json.loads(tokentick("compare", "a", "b", *metric, "--json", cwd=tmp_path).stdout)
    assert answer["exit_code"] == 1
    (comparison,) = answer["comparisons"]
    assert comparison["regressions"] == ["e2e.mean"]
    generous = tokentick(
        "compare", "a", "b", "--metric", "e2e.mean", "--tolerance", "e2e.mean=150%", cwd=tmp_path
    )
    assert generous.returncode == 0


def test_several_runs_are_each_compared_with_the_first(tmp_path: Path) -> None:
    """With --baseline they are repeats, of which each side needs two or more, and none twice."""
    for name, slower in {"a": 1.0, "b": 1.5, "c": 1.01, "d": 1.51}.items():
        make(tmp_path / name, slower=slower)
    answer = json.loads(
        tokentick("compare", "a", "b", "c", "--metric", "e2e.mean", "--json", cwd=tmp_path).stdout
    )
    assert [each["candidate"] for each in answer["comparisons"]] == [["b"], ["c"]]
    assert {
        line["confidence"] for each in answer["comparisons"] for line in each["lines"] if line["primary"]
    } == {0.975}
    repeated = ("--baseline", "a", "--baseline", "c", "b", "d", "--metric", "e2e.mean")
    result = tokentick("compare", *repeated, cwd=tmp_path)
    assert result.returncode == 1
    assert "between 2 and 2 runs" in result.stdout
    refused(
        tokentick("compare", "--baseline", "a", "--baseline", "c", "b", cwd=tmp_path),
        2,
        "two runs or more of each",
    )
    refused(
        tokentick("compare", "--baseline", "a", "--baseline", "a", "b", "d", cwd=tmp_path),
        2,
        "a is named twice",
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a"], "takes two runs"),
        (["a", "nowhere"], "nowhere"),
        (["a", "b", "--metric", "ttft.p97"], "ttft.p97"),
        (["a", "b", "--metric", "class=no e2e.p95"], "no such class"),
        (["a", "b", "--tolerance", "much"], "--tolerance 'much'"),
        (["a", "b", "--tolerance", "much=5%"], "--tolerance 'much'"),
        (["a", "b", "--allow", "everything"], "everything"),
        (["a", "b", "--html", "page.html", "--json", "--diagnose"], "--diagnose"),
    ],
)
def test_bad_usage_is_one_line(tmp_path: Path, words: list[str], said: str) -> None:
    make(tmp_path / "a")
    make(tmp_path / "b")
    refused(tokentick("compare", *words, cwd=tmp_path), 2, said)
    assert not (tmp_path / "page.html").exists()


def test_a_diagnosis_can_stand_below(tmp_path: Path) -> None:
    """`--diagnose` prints what stands out in the candidate beside the baseline."""
    make(tmp_path / "a")
    make(tmp_path / "b", slower=2)
    text = tokentick("compare", "a", "b", "--metric", "e2e.mean", "--diagnose", cwd=tmp_path).stdout
    assert "Diagnosis of b against a" in text
