"""`tokentick report --diagnose` as a user runs it: text, Markdown, JSON, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reports.diagnosis import PAIRS, RULES, Diagnosis
from reports.diagnosis_text import diagnosis_markdown, diagnosis_text, figure_value
from reports.findings import Figure, Finding
from tests.conftest import json_lines, refused, tokentick

DOCS = Path(__file__).parent.parent / "docs" / "diagnosis.md"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy one at a time and in chunks."""
    path = tmp_path_factory.mktemp("runs")
    for policy in ("immediate", "chunked"):
        made = tokentick("simulate", "toy", "--policy", policy, "--out", policy, "--quiet", cwd=path)
        assert made.returncode == 0
    return path


def test_text_fits_a_terminal_and_names_the_blocker(runs: Path) -> None:
    """80 columns at most; the finding, its evidence, what it cannot tell, and what was looked at."""
    result = tokentick("report", "immediate", "--diagnose", cwd=runs)
    assert (result.returncode, result.stderr) == (0, "")
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "Head of line: R01 (prompt 18, output 12) kept 6 waiting" in result.stdout
    assert "Cannot tell: " in result.stdout
    assert "Looked at, and nothing found: " in result.stdout


def test_nothing_stands_out_is_said(runs: Path) -> None:
    result = tokentick("report", "chunked", "--diagnose", cwd=runs)
    assert "Nothing stands out." in result.stdout


def test_json_can_be_recomputed_from_the_files(runs: Path) -> None:
    """The split of TTFT, from the rows; a baseline and several runs change the shape as elsewhere."""
    found = json.loads(tokentick("report", "immediate", "--diagnose", "--json", cwd=runs).stdout)
    assert found["against"] is None
    names = [finding["rule"] for finding in found["findings"]]
    assert sorted([*names, *found["nothing"], *found["unable"]]) == sorted(RULES)
    split = {figure["name"]: figure["value"] for figure in found["ttft"]}
    rows = json_lines(runs / "immediate" / "requests.jsonl")
    window_ns = (3.75 + 1.4) * 1e9
    queues = [
        int(row["prefill_start_ns"]) - int(row["arrival_ns"])  # type: ignore[call-overload]
        for row in rows
        if int(row["last_token_ns"]) <= window_ns  # type: ignore[call-overload]
    ]
    assert split["requests"] == len(queues)
    assert split["queue"] == pytest.approx(sum(queues) / len(queues) / 1e6)
    both = tokentick(
        "report", "immediate", "chunked", "--diagnose", "--json", "--against", "chunked", cwd=runs
    )
    several = json.loads(both.stdout)
    assert list(several) == ["immediate", "chunked"]
    assert {*PAIRS} <= {*several["chunked"]["nothing"], *several["chunked"]["unable"]}


def test_what_does_not_go_together_is_refused(runs: Path) -> None:
    """One line, exit code 2."""
    for flags in (["--against", "chunked"], ["--diagnose", "--ticks"]):
        refused(tokentick("report", "immediate", *flags, cwd=runs), 2, "--diagnose")
    refused(tokentick("report", "nothing", "--diagnose", cwd=runs), 2, "nothing")


def test_what_servers_say_is_shown_as_it_is() -> None:
    """Neither control characters nor Markdown of an error get through."""
    evil = Finding("failures", "a|b\x1b[2J `c` <b>", [Figure("x|y\n# z", None, "ms")], "*nothing*")
    found = Diagnosis("run", None, None, [evil], [], {})
    for shown in (diagnosis_text(found), diagnosis_markdown(found)):
        assert "\x1b" not in shown
    markdown = diagnosis_markdown(found)
    assert "| x\\|y \\# z | - |" in markdown
    assert "\\`c\\` \\<b\\>" in markdown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(999.7, "1,000 ms"), (306.2, "306 ms"), (0.1234, "0.123 ms"), (4096, "4,096 ms"), (None, "-")],
)
def test_figures_have_three_digits_and_no_powers_of_ten(value: float | None, shown: str) -> None:
    assert figure_value(Figure("x", value, "ms")) == shown


def test_every_rule_is_documented() -> None:
    """A row of the table in the docs for each, and none for others."""
    lines = [line for line in DOCS.read_text().splitlines() if line.startswith("| `")]
    assert sorted(line.split("`")[1] for line in lines) == sorted([*RULES, *PAIRS])
