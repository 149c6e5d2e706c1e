"""`--require` on report, run and simulate: the verdicts, where they stand, and the exit code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import reports.cli
from ledgers.requirements import Judged
from reports.show import worst
from tests.conftest import MockServer, refused, tokentick

FLAGS = ("toy", "--preset", "head-of-line")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a simulation of the toy ledger: E2E of at most 1,500 ms, short ones of at most 485."""
    path = tmp_path_factory.mktemp("runs")
    assert tokentick("simulate", *FLAGS, "--out", "run", "--quiet", cwd=path).returncode == 0
    return path


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["e2e.max<=1500"], 0),
        (["e2e.max<1500"], 1),
        (["class=short e2e.max<=485", "attainment>=1", "error_rate<=0"], 0),
        (["class=short e2e.max<=484", "attainment>=1"], 1),
        (["class=long ttft.p95<=457", "class=long ttft.mean<=500"], 1),
        (["throughput>=3.1"], 0),
        (["throughput>=3.2"], 1),
    ],
)
def test_a_report_ends_with_1_if_anything_is_missed(runs: Path, words: list[str], code: int) -> None:
    """Against the table of the toy ledger; each line says met or MISSED."""
    flags = [word for requirement in words for word in ("--require", requirement)]
    result = tokentick("report", "run", *flags, cwd=runs)
    assert (result.returncode, result.stderr) == (code, "")
    assert result.stdout.count("  met ") + result.stdout.count("  MISSED ") == len(words)
    assert ("  MISSED " in result.stdout) == bool(code)


def test_json_has_each_verdict_and_summary_json_has_none(runs: Path) -> None:
    """`requirements` says what was found; the file is of the run, not of what somebody asks of it."""
    before = (runs / "run" / "summary.json").read_bytes()
    result = tokentick("report", "run", "--json", "--require", "class=short e2e.p90<=400", cwd=runs)
    (found,) = json.loads(result.stdout)["requirements"]
    assert result.returncode == 1
    assert (found["met"], found["n"], found["good"]) == (False, 10, 5)
    assert (runs / "run" / "summary.json").read_bytes() == before


def test_of_several_runs_one_that_misses_is_enough(runs: Path, tmp_path: Path) -> None:
    tokentick("simulate", "toy", "--preset", "overload", "--out", str(tmp_path / "over"), "--quiet", cwd=runs)
    result = tokentick("report", "run", str(tmp_path / "over"), "--require", "e2e.max<=1500", cwd=runs)
    assert result.returncode == 1
    assert result.stdout.count("  met ") == result.stdout.count("  MISSED ") == 1


def test_a_miss_decides_over_what_nobody_can_tell() -> None:
    """Of one run as of several."""
    assert [worst(codes) for codes in ([], [0], [0, 4], [4, 1, 0])] == [0, 0, 4, 1]


def test_a_simulation_is_judged_when_it_ends(tmp_path: Path) -> None:
    """Quietly as well: the exit code is the answer."""
    for bound, code in ((288, 0), (287, 1)):
        words = ("--require", f"queue_delay.max<={bound}", "--out", str(bound), "--quiet")
        result = tokentick("simulate", *FLAGS, *words, cwd=tmp_path)
        assert (result.returncode, result.stdout) == (code, "")


@pytest.mark.parametrize(
    ("require", "word"),
    [
        ("e2e.p95=1500", "e2e.p95=1500"),
        ("class=none e2e.p95<=1500", "none"),
        ("e2e<=1500", "of which requests"),
    ],
)
def test_what_cannot_be_judged_is_refused_before_the_run(tmp_path: Path, require: str, word: str) -> None:
    """A bad word, or a class that the ledger has not: no run directory is made."""
    result = tokentick("simulate", *FLAGS, "--require", require, "--out", "x", cwd=tmp_path)
    refused(result, 2, "--require", word)
    assert not (tmp_path / "x").exists()


def test_without_an_slo_attainment_is_refused_before_the_run(tmp_path: Path) -> None:
    words = ("--num-prompts", "5", "--random-input-len", "5", "--random-output-len", "2", "--out", "x")
    refused(tokentick("simulate", *words, "--require", "attainment>=0.9", cwd=tmp_path), 2, "--goodput")
    assert not (tmp_path / "x").exists()


def test_a_measured_run_is_judged_when_it_ends(server: MockServer, tmp_path: Path) -> None:
    """All met: 0; one missed: 1, and the text says which. A client cannot see the queue delay."""
    words = ("run", "toy", "--request-rate", "50", "--base-url", server.url, "--no-preflight")
    for bound, code in (("error_rate<=0", 0), ("ttft.p50<=0.001", 1)):
        result = tokentick(*words, "--require", bound, "--out", bound[:4], cwd=tmp_path)
        if "CLIENT-LIMITED" in result.stdout:  # a machine that is too busy proves nothing, and says so
            assert result.returncode == 4
            assert "nothing is proven" in result.stdout
        else:
            assert result.returncode == code, result.stdout
            assert ("MISSED" in result.stdout) == bool(code)
    refused(tokentick(*words, "--require", "queue_delay.p95<=1", "--out", "q", cwd=tmp_path), 2, "queue")


def test_if_the_client_was_the_limit_nothing_is_proven(runs: Path, tmp_path: Path) -> None:
    """A measured run whose requests left late: 4, whether the requirement was met or not."""
    run = tmp_path / "late"
    run.mkdir()
    info = json.loads((runs / "run" / "run.json").read_text()) | {"kind": "measured"}
    (run / "run.json").write_text(json.dumps(info))
    rows = [json.loads(line) for line in (runs / "run" / "requests.jsonl").read_text().splitlines()]
    late = [row | {"sent_ns": row["arrival_ns"] + 50_000_000} for row in rows]
    (run / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in late))
    for bound in (10, 10_000):
        result = tokentick("report", "late", "--require", f"e2e.max<={bound}", cwd=tmp_path)
        assert result.returncode == 4, result.stdout
        assert "nothing is proven" in result.stdout


def test_if_rows_are_lost_nobody_can_tell(runs: Path, tmp_path: Path) -> None:
    """Of 16 requests 2 left no row: 4, unless they would change nothing."""
    run = tmp_path / "lost"
    shutil.copytree(runs / "run", run)
    rows = (run / "requests.jsonl").read_bytes().splitlines(keepends=True)
    (run / "requests.jsonl").write_bytes(b"".join(rows[:-2]))
    for words, code, said in (
        ("e2e.max<=1500", 4, "CANNOT TELL  e2e.max<=1500: 14 of 16 requests do; 2 left no row"),
        ("e2e.max<=100", 1, "MISSED  e2e.max<=100: "),
        ("e2e.p80<=1500", 0, "met     e2e.p80<=1500: "),
    ):
        result = tokentick("report", "lost", "--require", words, cwd=tmp_path)
        assert (result.returncode, said in result.stdout) == (code, True), result.stdout


def test_if_no_request_is_left_there_is_nothing_to_judge(runs: Path) -> None:
    """A warm-up of the whole run: bad usage, and no verdict."""
    result = tokentick("report", "run", "--warmup", "100", "--require", "e2e.p95<=1500", cwd=runs)
    refused(result, 2, "--require", "run", "--warmup")


def test_agree_judges_what_was_measured(tmp_path: Path) -> None:
    """Agreement and a requirement that is missed: 1. A stalled machine proves nothing: 4."""
    words = ("agree", *FLAGS, "--request-rate", "20", "--tick", "0.025", "--out", "out", "--json")
    result = tokentick(*words, "--require", "ttft.max<=1", cwd=tmp_path)
    answer = json.loads(result.stdout)
    (judged,) = answer["requirements"]["continuous"]
    assert not judged["met"]
    assert result.returncode == (4 if answer["verdict"] == "inconclusive" else 1)


def test_what_nobody_can_tell_is_no_miss_of_an_agreement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4, as of a run; whatever the agreement is, it is not 1 for that."""
    unknown = Judged("e2e.max<=1500", met=None, value=None, n=16, good=14, lost=2)
    monkeypatch.setattr(reports.cli, "verdicts", lambda *_: [unknown])
    monkeypatch.chdir(tmp_path)
    words = [
        "toy",
        "--request-rate",
        "20",
        "--tick",
        "0.025",
        "--policy",
        "chunked",
        "--out",
        "out",
        "--quiet",
    ]
    code = reports.cli.agree.main([*words, "--require", "e2e.max<=1500"], standalone_mode=False)
    assert code == (1 if '"verdict": "disagree"' in (tmp_path / "out/agreement.json").read_text() else 4)
