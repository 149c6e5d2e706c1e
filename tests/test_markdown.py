"""Markdown for issues and pull requests: the tables, and that text from elsewhere stays text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ledgers.rows import RequestRow
from ledgers.rundir import Run
from ledgers.summary import summarize
from reports.forms import Shown, lines
from reports.markdown import bullets, escaped, table
from tests.conftest import tokentick
from tests.test_forms import CONFIG, ROWS
from tests.test_summary import MS, write_run


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", "a\\|b"),
        ("`rm -rf`", "\\`rm -rf\\`"),
        ("<img src=x onerror=y>", "\\<img src=x onerror=y\\>"),
        ("&lt;b&gt;", "&amp;lt;b&amp;gt;"),
        ("[x](javascript:1) ![y](z)", "\\[x\\](javascript:1) !\\[y\\](z)"),
        ("*_~", "\\*\\_\\~"),
        ("two\r\nlines\n# heading", "two lines \\# heading"),
        ("ask @maintainers", "ask @&#8203;maintainers"),
        ("see #123, org/repo#7, GH-9", "see \\#&#8203;123, org/repo\\#&#8203;7, GH-&#8203;9"),
        ("https://x.y, www.x.y", "https:&#8203;//x.y, www&#8203;.x.y"),
        ("$x$", "&dollar;x&dollar;"),
        ("\x1b[2J\u202e", "\\\\x1b\\[2J\\\\u202e"),
        ("80 % of 12.5 ms at -3 (50/95), λ=1", "80 % of 12.5 ms at -3 (50/95), λ=1"),
    ],
)
def test_text_stays_text(text: str, shown: str) -> None:
    """No table cell ends, no HTML begins, nobody is called, nothing is linked."""
    assert escaped(text) == shown


def test_a_line_of_a_list_begins_no_other_list() -> None:
    """`1. x` would be a list in the list; a number is a number."""
    assert bullets(["1. x", "- y", "+", "1.5 ms", "-3"]) == "- 1\\. x\n- \\- y\n- \\+\n- 1.5 ms\n- -3"


def test_a_table_has_names_to_the_left_and_figures_to_the_right() -> None:
    assert table(("a", "b"), [("x|y", "1")]) == "| a | b |\n| --- | ---: |\n| x\\|y | 1 |"


def test_a_run_is_a_few_small_tables(tmp_path: Path) -> None:
    """What was run, percentiles first and the mean behind them, rates, failures."""
    run = Run(write_run(tmp_path / "run", ROWS, CONFIG, kind="measured", requests=5))
    text = "\n".join(lines("markdown", [Shown(run, summarize(run))], detailed=False))
    head, counted, *_ = text.split("\n\n")
    assert head == f"## {escaped(str(tmp_path))}/run: measured test"
    assert counted.splitlines()[:2] == [
        "- verdict: valid; the client kept up; 1 of 5 did not complete (†); steadiness not known",
        "- 5 scheduled = 4 completed + 1 failed",
    ]
    for line in (
        "| setting | value |",
        "| request rate | 10 req/s |",
        "| at a time | 8 |",
        "| SLO | TTFT 105 ms |",
        "| window | 1.30 s |",
        "| tp | 2 |",
        "| ms | p50 | p90 | p95 | p99 | max | mean | n |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| TTFT | 200.0† | 305.0\\*† | 305.0\\*† | 305.0\\*† | 305.0† | 205.0† | 3 |",
        "| throughput, req/s | 3.08 |",
        "| attainment | 0.0% |",
        "- 1 http\\_error, 10.0 ms after the send: overloaded",
    ):
        assert line in text.splitlines(), line
    assert "TTFC" not in text  # there was no reasoning, before which it is TTFT


def test_an_error_of_a_server_cannot_break_out_of_the_report(tmp_path: Path) -> None:
    """Its text is in one line of the list of failures."""
    failed = RequestRow(
        id="x",
        prompt_tokens=1,
        output_tokens=1,
        arrival_ns=0,
        sent_ns=0,
        end_ns=MS,
        outcome="http_error",
        error="oops |\n\n# <b> @everyone fixes #1",
    )
    run = Run(write_run(tmp_path / "run", [failed], CONFIG, kind="measured"))
    text = "\n".join(lines("markdown", [Shown(run, summarize(run))], detailed=False))
    assert "- verdict: NOT VALID, nothing completed" in text.splitlines()
    assert (
        "- 1 http\\_error, 1.00 ms after the send: oops \\| \\# \\<b\\> @&#8203;everyone fixes \\#&#8203;1"
    ) in text.splitlines()


def test_requirements_are_in_the_report(tmp_path: Path) -> None:
    write_run(tmp_path / "run", ROWS, CONFIG, kind="simulated")
    words = (
        "report",
        "run",
        "--format",
        "markdown",
        "--require",
        "ttft.mean<=1",
        "--require",
        "e2e.p50<=705",
    )
    result = tokentick(*words, cwd=tmp_path)
    assert result.returncode == 1
    shown = result.stdout.splitlines()
    assert "- met e2e.p50\\<=705: 705.0 ms (3 of 5 requests)" in shown
    assert any(line.startswith("- MISSED ttft.mean\\<=1: ") for line in shown)


def rows_of(text: str) -> list[list[str]]:
    """The cells of all tables; a bar in a cell is escaped."""
    return [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in text.splitlines() if line.startswith("| ")]


def test_a_sweep_has_a_row_per_setting_and_load(tmp_path: Path) -> None:
    settings = ("--request-rate", "2,8", "--policy", "static,continuous", "--jobs", "1")
    words = ("sweep", "toy", *settings, "--out", "sweep")
    text = tokentick(*words, "--format", "markdown", cwd=tmp_path).stdout
    firsts = [row[0] for row in rows_of(text)]
    assert text.startswith("## Sweep sweep\n")
    assert firsts[:4] == ["setting", "---", "static", "continuous"]
    assert [cell[0] for cell in firsts[4:]] == ["r", "-", "2", "8", "r", "-", "2", "8"]
    assert json.loads(tokentick(*words, "--format", "json", cwd=tmp_path).stdout)["curves"]


def test_a_search_has_its_answer_and_a_row_per_rate(tmp_path: Path) -> None:
    flags = ("--num-prompts", "50", "--random-input-len", "20", "--random-output-len", "5")
    words = (
        "sweep",
        *flags,
        "--find",
        "--require",
        "ttft.p50<=800",
        "--max-requests",
        "300",
        "--jobs",
        "1",
        "--out",
        "found",
    )
    text = tokentick(*words, "--format", "markdown", cwd=tmp_path).stdout
    tried = [row for row in rows_of(text) if row[0] == "ttft.p50\\<=800"]
    assert text.startswith("## Search found\n\n**")
    assert 2 <= len(tried) == len((tmp_path / "found" / "rates.jsonl").read_text().splitlines())


def test_an_agreement_has_its_verdict_first(tmp_path: Path) -> None:
    """A row per policy of what agrees, and a column of figures, measured and simulated."""
    words = (
        "agree",
        "toy",
        "--request-rate",
        "20",
        "--tick",
        "0.025",
        "--policy",
        "continuous",
        "--out",
        "out",
    )
    result = tokentick(*words, "--format", "markdown", "--require", "completed>=1", cwd=tmp_path)
    assert result.returncode == 2  # no such metric: refused before anything runs
    flags = ("--format", "markdown", "--plain", "--require", "error_rate<=0")  # plain is for text
    result = tokentick(*words, *flags, cwd=tmp_path)
    verdict = {0: "AGREE", 1: "DISAGREE", 4: "INCONCLUSIVE"}[result.returncode]
    heads, bold, *_ = result.stdout.split("\n\n")
    assert heads == "## Agreement out"
    assert bold.startswith(f"**{verdict}: ")
    found = {row[0]: row for row in rows_of(result.stdout) if row[0] in ("continuous", "completed")}
    assert found["continuous"][2] == "16/16"
    assert found["completed"][1] == "16\\|16"
    assert "- continuous: met error\\_rate\\<=0: 0 (16 of 16 requests)" in result.stdout.splitlines()
