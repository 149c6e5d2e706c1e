"""What is left out at both ends of a run, and the rule that finds the end of a warm-up."""

from __future__ import annotations

import json
from math import exp
from pathlib import Path
from random import Random

import pytest

from ledgers.rows import RequestRow
from ledgers.rundir import LedgerInfo, Run, RunConfig, RunInfo, RunWriter
from ledgers.settings import Slo
from ledgers.summary import summarize, write_summary
from ledgers.trim import mser5
from reports.agreement_text import PolicyResult
from reports.cli import request_text
from reports.diagnosis_facts import facts_of
from tests.conftest import refused, tokentick

MS, S = 1_000_000, 1_000_000_000


def test_mser_cuts_what_is_not_like_the_rest() -> None:
    """100 values of 500 around 100, then around 10: the first 100 go, give or take a batch."""
    random = Random(1)
    values = [random.gauss(100 if i < 100 else 10, 1) for i in range(500)]
    assert mser5(values) == 100


def test_mser_cuts_little_of_what_is_alike() -> None:
    """Of 200 seeded samples without a warm-up, it leaves out a fifth or less on average."""
    cuts = [mser5([Random(seed * 1_000 + i).gauss(0, 1) for i in range(400)]) for seed in range(200)]
    known = [cut for cut in cuts if cut is not None]
    assert len(known) >= 0.85 * len(cuts)
    assert sum(known) / len(known) <= 80


def test_mser_takes_away_the_bias_of_a_warm_up() -> None:
    """What comes down to 10 from 60 with a time constant of 30 requests: the mean of the rest is near 10."""
    for seed in range(20):
        random = Random(seed)
        values = [10 + 50 * exp(-i / 30) + random.gauss(0, 1) for i in range(1_000)]
        cut = mser5(values)
        assert cut is not None
        assert 60 <= cut <= 250
        assert sum(values[cut:]) / (1_000 - cut) == pytest.approx(10, abs=0.2)
        assert sum(values) / 1_000 > 11


def test_mser_finds_no_end_where_nothing_settles() -> None:
    assert mser5(list(range(1_000))) is None
    assert mser5([1.0] * 49) is None  # too few


def request(i: int, ttft_ms: int = 50) -> RequestRow:
    """One per 100 ms that takes 200 ms."""
    arrival = i * 100 * MS
    return RequestRow(
        id=f"R{i:03}", prompt_tokens=10, output_tokens=5, arrival_ns=arrival, sent_ns=arrival,
        first_token_ns=arrival + ttft_ms * MS, last_token_ns=arrival + 200 * MS, end_ns=arrival + 200 * MS,
        tokens=5, events=5, streamed=True, outcome="completed",
    )  # fmt: skip


def run(path: Path, rows: list[RequestRow], **config: object) -> Path:
    info = RunInfo(kind="simulated", config=RunConfig(**config), ledger=LedgerInfo("x"))  # type: ignore[arg-type]
    writer = RunWriter(path / "run", info)
    for row in rows:
        writer.add(row)
    writer.close(complete=True)
    return path / "run"


def test_what_arrives_in_the_cut_is_in_no_figure_and_counted(tmp_path: Path) -> None:
    """100 requests in 9.9 s; without 2 s and 1 s those from 2.0 to 8.9 s are left, observed until 9.1 s."""
    rows = [request(i, 150 if i < 20 else 50) for i in range(100)]
    summary = summarize(Run(run(tmp_path, rows, warmup_s=2.0, cooldown_s=1.0, slo=Slo(ttft_ms=100))))
    assert (summary["scheduled"], summary["completed"], summary["trim"]["left_out"]) == (70, 70, 30)
    assert summary["window_s"] == pytest.approx(7.1)
    assert summary["arrivals_s"] == pytest.approx(6.9)
    assert summary["throughput_rps"] == pytest.approx(70 / 7.1)
    assert summary["ttft_ms"]["max"] == 50
    assert summary["attainment"] == 1.0
    assert summary["concurrency_mean"] == pytest.approx(2.0, abs=0.05)  # those left out were in flight too
    assert summary["concurrency_peak"] == 2


def test_without_a_cut_everything_counts(tmp_path: Path) -> None:
    summary = summarize(Run(run(tmp_path, [request(i) for i in range(100)])))
    assert (summary["scheduled"], summary["trim"], summary["window_s"]) == (100, None, pytest.approx(10.1))


def test_auto_leaves_out_until_the_ttft_has_settled(tmp_path: Path) -> None:
    """The first 50 of 300 requests wait longer."""
    rows = [request(i, 50 + (100 if i < 50 else i % 3)) for i in range(300)]
    summary = summarize(Run(run(tmp_path, rows, warmup_s="auto")))
    assert summary["trim"]["settled"] is True
    assert summary["trim"]["begin_s"] == pytest.approx(5.0)
    assert summary["scheduled"] == 250


def test_a_cut_that_leaves_nothing_is_a_run_without_figures(tmp_path: Path) -> None:
    summary = summarize(Run(run(tmp_path, [request(i) for i in range(10)], warmup_s=100.0)))
    assert (summary["scheduled"], summary["trim"]["left_out"], summary["ttft_ms"]) == (0, 10, None)


def test_gaps_between_tokens_are_of_those_that_are_kept(tmp_path: Path) -> None:
    """Five tokens each, so four gaps, of 50 requests of 100; from histograms nobody can take any out."""
    rows = [request(i) for i in range(100)]
    for row in rows:
        first, last = row.first_token_ns or 0, row.last_token_ns or 0
        row.token_ns = [first + (last - first) * n // 4 for n in range(5)]
    summary = summarize(Run(run(tmp_path, rows, warmup_s=3.0, cooldown_s=2.0)))
    assert (summary["completed"], summary["itl_ms"]["n"], summary["itl_partial"]) == (50, 200, False)
    (tmp_path / "without").mkdir()
    summary = summarize(Run(run(tmp_path / "without", [request(i) for i in range(100)], warmup_s=3.0)))
    assert summary["itl_partial"]


@pytest.mark.parametrize("cut", [{"cooldown_s": 60.0}, {"warmup_s": 60.0}])
def test_a_cut_longer_than_the_run_is_said(tmp_path: Path, cut: dict[str, float]) -> None:
    """In one line: figures of nothing are not the server's fault."""
    path = run(tmp_path, [request(i) for i in range(10)], **cut)
    assert summarize(Run(path))["warnings"] == [
        "--warmup and --cooldown leave no request: the last one arrives at 0.9 s"
    ]
    write_summary(path)
    assert "leave no request" in tokentick("report", "run", cwd=tmp_path).stdout


def test_a_diagnosis_is_of_the_requests_that_are_kept(tmp_path: Path) -> None:
    """As many as the summary counts: T_obs is no shorter for a warm-up, and those left out are in neither."""
    path = run(tmp_path, [request(i) for i in range(100)], warmup_s=5.0, cooldown_s=1.0)
    found = Run(path)
    summary = summarize(found)
    facts = facts_of(found, summary)
    assert facts.n == summary["completed"] == 40
    assert [facts.completed["origin"][i] for i in (0, -1)] == [5 * S, 8_900 * MS]


def test_agree_judges_requests_by_the_whole_window(tmp_path: Path) -> None:
    """Requests that end behind T_obs - warm-up have completed all the same."""
    (tmp_path / "served").mkdir()
    measured = run(tmp_path, [request(i) for i in range(10)], warmup_s=0.5)
    measured.rename(tmp_path / "measured")
    run(tmp_path / "served", [request(i) for i in range(10)]).rename(tmp_path / "served" / "x")
    for file in (tmp_path / "served" / "x").iterdir():
        file.rename(tmp_path / "served" / file.name)
    summary = summarize(Run(tmp_path / "measured"))
    result = PolicyResult("chunked", None, summary, {}, {})  # type: ignore[arg-type]
    text = "\n".join(request_text(tmp_path, result))
    assert "R009" in text
    assert "unfinished" not in text


def test_a_summary_with_a_cut_is_rebuilt_to_the_same_bytes(tmp_path: Path) -> None:
    """The settings are in run.json."""
    arguments = ("--preset", "busy", "--warmup", "0.5", "--cooldown", "0.25", "--out", "run")
    assert tokentick("simulate", "toy", *arguments, cwd=tmp_path).returncode == 0
    summary = tmp_path / "run" / "summary.json"
    before = summary.read_bytes()
    assert json.loads(before)["trim"]["left_out"] > 0
    summary.unlink()
    write_summary(tmp_path / "run")
    assert summary.read_bytes() == before


def test_report_shows_another_cut_and_changes_no_file(tmp_path: Path) -> None:
    path = run(tmp_path, [request(i) for i in range(100)])
    write_summary(path)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    result = tokentick("report", "run", "--warmup", "2", "--cooldown", "1", cwd=tmp_path)
    assert (
        "70 scheduled = 70 completed\n  30 more left out, which arrived in the first 2 s or the last 1 s"
        in (result.stdout)
    )
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
    refused(tokentick("report", "run", "--warmup", "soon", cwd=tmp_path), 2, "--warmup", "soon")
