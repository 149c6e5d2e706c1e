"""`--plain`: the same figures for a screen reader. And the lines that tell how far a command is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ledgers.rows import TickRow
from ledgers.telling import Teller, left
from reports.tables import joined, plainly, table
from reports.ticks_text import tick_lines
from tests.conftest import tokentick

COLUMNS = ["ms", "p50", "p99"]
ROWS = [["TTFT", "1.2", "3.4"], ["TPOT", "-", "-"], ["a\x1b[2J", "5.6*", "-"]]


def test_a_row_is_a_line_of_names_and_values() -> None:
    """What is not known is not read out, and what a terminal would obey is escaped there, too."""
    with plainly():
        text = table(COLUMNS, ROWS)
    assert text.splitlines() == ["ms:", "TTFT: p50 1.2, p99 3.4", "TPOT: nothing", "a\\x1b[2J: p50 5.6*"]


def test_a_table_is_aligned_where_nothing_else_is_asked_for() -> None:
    lines = table(COLUMNS, ROWS[:1]).splitlines()
    assert lines == ["ms    p50  p99", "----  ---  ---", "TTFT  1.2  3.4"]


def test_figures_are_parted_by_what_is_read_as_a_pause() -> None:
    parts = ["throughput 1.00 req/s", "L peak 3"]
    assert joined(parts) == "throughput 1.00 req/s | L peak 3"
    with plainly():
        assert joined(parts) == "throughput 1.00 req/s; L peak 3"


def test_a_tick_is_a_line_with_all_that_happened_in_it() -> None:
    tick = TickRow(tick=7, queue=1, prefill=2, ready=3, emitted=2, kv_reserved=40, kv_cached=30)
    tick.events = [("token", "A"), ("finish", "B"), ("token", "B")]
    with plainly():
        (line,) = tick_lines([tick], {"A": "R01"})
    assert line == (
        "tick 7: queue 1, prefill 2, ready 3, emitted 2, reserved 40, cached 30; token R01 B; finish B"
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two simulations of the same ledger."""
    cwd = tmp_path_factory.mktemp("plain")
    for policy in ("continuous", "chunked"):
        words = ["simulate", "toy", "--preset", "overload", "--policy", policy, "--quiet", "--out", policy]
        assert tokentick(*words, cwd=cwd).returncode == 0
    return cwd


@pytest.mark.parametrize(
    "words",
    [
        ["report", "continuous"],
        ["report", "continuous", "--ticks"],
        ["compare", "continuous", "chunked", "--allow", "policy"],
        ["simulate", "toy", "--preset", "overload"],
        ["sweep", "toy", "--request-rate", "2:8:2", "--policy", "continuous,chunked", "--jobs", "1"],
    ],
)
def test_nothing_is_drawn_and_every_figure_is_there(runs: Path, words: list[str]) -> None:
    """No rules, bars or columns; the figures are those of the tables."""
    usual, plain = (tokentick(*words, *flags, cwd=runs) for flags in ([], ["--plain"]))
    assert plain.returncode == usual.returncode
    told, as_usual = (re.sub(", about .* left", "", each.stderr) for each in (plain, usual))
    assert told == as_usual
    assert not re.search(r"---|===|\S   +\S|[─━]", plain.stdout), plain.stdout
    if words[0] != "sweep":  # whose pictures have figures of their own, on their axes
        figures = re.compile(r"(?<![\w.:-])\d+\.\d+(?![\w.:-])")
        assert set(figures.findall(usual.stdout)) == set(figures.findall(plain.stdout))


@pytest.mark.parametrize("uptime_s", [0.0, 1e6])
def test_plain_lines_tell_every_tenth(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, uptime_s: float
) -> None:
    """Where there is no terminal; a sweep that goes on behind 4 points does not count them into its pace."""
    now_s = uptime_s
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    tell = Teller()
    for done in range(5, 101):
        now_s += 0.5
        tell.counted(done, 100, "points")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        *(f"{done} of 100 points, about {(100 - done) // 2} s left" for done in range(10, 100, 10)),
        "100 of 100 points",
    ]


def test_time_left_is_at_the_pace_of_what_was_done_last(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start takes 20 s and is nobody's pace; then each takes 0.1 s, and from the 500th on 1 s."""
    now_s = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    tell = Teller()
    for done in range(1, 1_001):
        now_s += 20 if done == 1 else 0.1 if done < 500 else 1
        tell.counted(done, 1_000, "points")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "1 of 1,000 points"
    assert "100 of 1,000 points, about 90 s left" in lines
    assert "700 of 1,000 points, about 5 min 00 s left" in lines


def test_a_terminal_has_one_line_that_goes_when_something_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    tell = Teller(screen=True)
    tell.begun("first", 1, 2)
    tell.begun("second", 2, 2)
    tell("said")
    said = capsys.readouterr().err
    assert said.startswith("\r1 of 2: first\x1b[K\r2 of 2: second\x1b[K")
    assert said.endswith("\r\x1b[Ksaid\n")


def test_silence_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    tell = Teller(silent=True, screen=True)
    tell.begun("first", 1, 2)
    tell.counted(1, 1, "points")
    tell("said")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("done", "total", "elapsed_s", "said"),
    [
        (0, 9, 5, ""),
        (9, 9, 5, ""),
        (9, 10, 4, ""),
        (1, 4, 10, ", about 30 s left"),
        (1, 3, 100, ", about 3 min 20 s left"),
    ],
)
def test_what_is_left_takes_as_long_as_what_was_done(
    done: int, total: int, elapsed_s: float, said: str
) -> None:
    assert left(done, total, elapsed_s) == said
