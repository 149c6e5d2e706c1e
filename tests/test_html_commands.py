"""`--html FILE` as a user runs it: what is refused before any work, what is written, and pages made again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ledgers.errors import InputError
from ledgers.html_file import save_page
from tests.conftest import on_full_disk, refused, tokentick
from tests.test_compare_command import make
from tests.test_html_pages import parsed

MADE = ("--num-prompts", "100", "--random-input-len", "20", "--random-output-len", "4")
SWEEP = ("sweep", *MADE, "--request-rate", "1,2,3", "--policy", "static,chunked", "--jobs", "1")
BOUNDED = ("--request-rate", "1,4", "--max-requests", "800", "--jobs", "1")
FIND = ("sweep", *MADE, "--find", "--require", "e2e.p95<=1500", *BOUNDED)
LONG = {
    "agree": ("agree", "toy", "--out", "out"),
    "calibrate": ("calibrate", "--out", "out"),
    "sweep": (*SWEEP, "--out", "out"),
    "find": (*FIND, "--out", "out"),
}


@pytest.mark.parametrize("command", LONG)
def test_a_page_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path, command: str) -> None:
    result = tokentick(*LONG[command], "--html", "none/page.html", cwd=tmp_path)
    refused(result, 2, "--html none/page.html", "No such file or directory")
    assert not (tmp_path / "out").exists()


OWN_FILES = {"agree": "agreement.json", "calibrate": "calibration.json", "sweep": "points.jsonl"}


@pytest.mark.parametrize("command", OWN_FILES)
def test_a_page_takes_the_place_of_none_of_the_command_s_files(tmp_path: Path, command: str) -> None:
    """Neither of one below --out, nor of that directory itself or one above it: nothing is begun."""
    for file in (f"out/{OWN_FILES[command]}", f"./x/../out/{OWN_FILES[command]}", "out", "."):
        refused(tokentick(*LONG[command], "--html", file, cwd=tmp_path), 2, f"--html {Path(file)}")
    (tmp_path / "below").mkdir()
    nested = (*LONG[command][:-1], "below/out")
    refused(tokentick(*nested, "--html", "below", cwd=tmp_path), 2, "--html below")
    assert os.listdir(tmp_path) == ["below"]


def test_what_is_there_and_is_no_page_stays(tmp_path: Path) -> None:
    """A directory, a file of something else, a device: each with one line that names it."""
    runs = [str(make(tmp_path / name)) for name in ("before", "after")]
    (tmp_path / "folder").mkdir()
    (tmp_path / "trace.csv").write_text("arrival_s,prompt_tokens\n")
    for file in ("folder", "trace.csv", "/dev/null"):
        refused(tokentick("compare", *runs, "--html", file, cwd=tmp_path), 2, f"--html {file}")
        with pytest.raises(InputError):  # nor where it has come in the meantime
            save_page(tmp_path / file, "<!doctype html>")
    assert (tmp_path / "trace.csv").read_text() == "arrival_s,prompt_tokens\n"
    assert not Path("/dev/null").is_file()


def test_a_comparison_is_written_as_well_and_replaced(tmp_path: Path) -> None:
    """The terminal gets what it always gets; the page is the same each time."""
    runs = [str(make(tmp_path / "before")), str(make(tmp_path / "after", slower=1.5))]
    plain = tokentick("compare", *runs, cwd=tmp_path)
    pages = []
    for _ in range(2):
        result = tokentick("compare", *runs, "--html", "page.html", cwd=tmp_path)
        assert (result.returncode, result.stdout) == (plain.returncode, plain.stdout)
        pages.append((tmp_path / "page.html").read_text())
    assert pages[0] == pages[1]
    assert "REGRESSION" in " ".join(parsed(pages[0])["p"])
    alone = tokentick("compare", *runs, "--html", "-", cwd=tmp_path)
    assert (alone.returncode, alone.stdout) == (plain.returncode, pages[0])
    assert sorted(os.listdir(tmp_path)) == ["after", "before", "page.html"]


def test_a_full_disk_leaves_the_page_that_was_there(tmp_path: Path) -> None:
    """The verdict is printed before the page is written, so it is not lost."""
    runs = [str(make(tmp_path / name, count=20)) for name in ("before", "after")]
    (tmp_path / "page.html").write_text("<!doctype html>old")
    result = tokentick("compare", *runs, "--html", "page.html", cwd=tmp_path, command=on_full_disk(8_000))
    assert (result.returncode, result.stderr) == (2, "tokentick: page.html: File too large\n")
    assert "verdict: " in result.stdout
    assert (tmp_path / "page.html").read_text() == "<!doctype html>old"
    assert sorted(os.listdir(tmp_path)) == ["after", "before", "page.html"]


@pytest.mark.parametrize("command", ["sweep", "find"])
def test_a_page_can_be_made_again_from_the_directory(tmp_path: Path, command: str) -> None:
    made = tokentick(*LONG[command], "--html", "page.html", cwd=tmp_path)
    assert made.returncode in (0, 1, 4), made.stderr
    again = tokentick("report", "out", "--html", "again.html", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    page = (tmp_path / "page.html").read_bytes()
    assert page == (tmp_path / "again.html").read_bytes()
    parsed(page.decode())


def test_a_sweep_that_has_not_ended_has_no_page(tmp_path: Path) -> None:
    tokentick(*SWEEP, "--out", "out", "--quiet", cwd=tmp_path)
    (tmp_path / "out" / "curves.json").unlink()
    refused(tokentick("report", "out", "--html", "page.html", cwd=tmp_path), 2, "curves.json")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("swept")
    tokentick(*SWEEP, "--out", "out", "--quiet", cwd=path)
    return path


@pytest.mark.parametrize(
    "flags",
    [
        ["--json"],
        ["--warmup", "1"],
        ["--against", "x"],
        ["--format", "csv", "--detailed"],
        ["--require", "e2e.p95<=1"],
    ],
)
def test_flags_for_a_run_are_refused_beside_a_directory_of_several(swept: Path, flags: list[str]) -> None:
    result = tokentick("report", "out", "--html", "page.html", *flags, cwd=swept)
    refused(result, 2, f"{flags[0]}: is for a run", "out")
    assert not (swept / "page.html").exists()


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("sweep.json", "{}", "ledger"),
        ("sweep.json", '{"ledger": {"name": "x"}}', "requests"),
        ("find.json", '{"settings": []}', "require"),
        ("agreement.json", '{"policies": {}}', "has no policies"),
        ("agreement.json", "{", "truncated"),
        ("calibration.json", "{}", "calibrated_at"),
    ],
)
def test_a_damaged_directory_is_named(tmp_path: Path, file: str, content: str, words: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / file).write_text(content)
    refused(tokentick("report", "out", "--html", "page.html", cwd=tmp_path), 2, f"out/{file}: ", words)


def test_a_directory_of_nothing_known_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(
        tokentick("report", "empty", "--html", "page.html", cwd=tmp_path), 2, "empty: not a run directory"
    )


def test_an_agreement_leaves_its_page_and_says_where(tmp_path: Path) -> None:
    """The last line names it; the page has the verdict of the JSON. So has one policy's directory."""
    quick = ("--request-rate", "20", "--tick", "0.025", "--policy", "chunked", "--out", "out")
    result = tokentick("agree", "toy", *quick, "--html", "page.html", cwd=tmp_path)
    assert result.returncode in (0, 1, 4), result.stderr
    assert result.stdout.splitlines()[-1] == "page:    page.html"
    page = (tmp_path / "out" / "agreement.html").read_text()
    assert page == (tmp_path / "page.html").read_text()
    verdict = json.loads((tmp_path / "out" / "agreement.json").read_text())["verdict"]
    texts = parsed(page)
    assert texts["h1"] == [f"Agreement of toy: {verdict}"]
    assert "16 of 16" in texts["td"]
    assert any(title.startswith("chunked: 16 requests") for title in texts["h3"])
    again = tokentick("report", "out", "--html", "-", cwd=tmp_path)
    assert again.stdout == page
    one = tokentick("report", "out/chunked", "--html", "-", cwd=tmp_path)
    assert parsed(one.stdout)["h1"] == texts["h1"]
    summary = tmp_path / "out" / "chunked" / "simulated" / "summary.json"
    summary.write_text("{")
    refused(tokentick("report", "out", "--html", "-", cwd=tmp_path), 2, "simulated/summary.json: Input data")
    summary.unlink()
    refused(
        tokentick("report", "out", "--html", "-", cwd=tmp_path), 2, "simulated/summary.json: No such file"
    )


def test_a_simulation_leaves_its_page(tmp_path: Path) -> None:
    """The same as `report --html` makes of it, and named; with `-` it is all that is printed."""
    made = tokentick("simulate", "toy", "--out", "run", "--html", "run.html", cwd=tmp_path)
    again = tokentick("report", "run", "--html", "-", cwd=tmp_path)
    assert "page:  run.html" in made.stdout.splitlines()
    assert (tmp_path / "run.html").read_text() == again.stdout
    alone = tokentick("simulate", "toy", "--out", "other", "--html", "-", cwd=tmp_path)
    assert alone.stdout.startswith("<!doctype html>")
    assert alone.stdout.rstrip().endswith("</html>")


@pytest.mark.parametrize("command", [("simulate", "toy"), ("run", "toy", "--base-url", "http://127.0.0.1:9")])
def test_a_page_that_cannot_be_is_refused_before_the_run(tmp_path: Path, command: tuple[str, ...]) -> None:
    """Nothing is sent, and no run directory is made."""
    refused(
        tokentick(*command, "--out", "run", "--html", "no/page.html", cwd=tmp_path), 2, "--html no/page.html"
    )
    assert not (tmp_path / "run").exists()
