"""The pages keep their word: their commands run, what they show was printed, their links lead somewhere."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from ledgers.health import HealthSample
from ledgers.rows import RequestRow, TickRow, Ticks
from ledgers.rundir import Clock, LedgerInfo, RunConfig, RunInfo
from ledgers.server_metrics import ServerSample
from tests.documents import (
    DEMO,
    FENCED,
    PLAN,
    Fence,
    Page,
    Reader,
    alike,
    anchors,
    bash,
    fences,
    links,
    pages,
    why_not,
)
from tests.pages import ROOT

NAMES = [page.relative_to(ROOT).as_posix() for page in pages()]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def plan(name: str) -> Page:
    return PLAN.get(name.removeprefix("docs/"), Page())


def to_run(name: str) -> list[Fence]:
    elsewhere = plan(name).elsewhere
    return [
        fence
        for fence in fences(read(name))
        if fence.commands and not (elsewhere and fence.kind.startswith("sh"))
    ]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """What `make demo` leaves, and what it prints."""
    cwd = tmp_path_factory.mktemp("demo")
    done = bash(f"{DEMO} || [[ $? == [14] ]]", cwd)
    assert done.returncode == 0, done.stderr
    return cwd / "runs/demo", done.stdout


@pytest.mark.parametrize("name", [name for name in NAMES if to_run(name)])
def test_every_command_of_the_page_runs(
    tmp_path: Path, name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, in a fresh directory, as a reader would; what is shown below a block was printed by it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ".state"))
    with ExitStack() as stack:
        reader = Reader(tmp_path, name, stack)
        for fence in to_run(name):
            printed = ""
            if "make demo" in fence.text:
                left, printed = request.getfixturevalue("demo")
                (tmp_path / "runs").mkdir(exist_ok=True)
                (tmp_path / "runs/demo").symlink_to(left)
            printed += reader.type(fence)
            if fence.printed is not None and "INCONCLUSIVE" not in printed:
                assert alike(fence.printed, printed, exactly=fence.kind == "sh"), (
                    f"line {fence.line}:\n{printed}"
                )


def test_a_block_of_commands_is_known_by_its_programs() -> None:
    """So a page cannot have commands that nobody runs, for want of a mark."""
    blocks = ("\ntokentick simulate toy", "\n4 scheduled", "sh\nls", "toml\nmake = 1")
    page = "\n".join(f"```{block}\n```\n" for block in blocks)
    assert [fence.commands for fence in fences(page)] == [True, False, True, False]


@pytest.mark.parametrize("name", sorted(PLAN))
def test_what_is_said_of_a_page_is_of_its_commands(name: str) -> None:
    """A command that was shortened, and is no longer there, or is short by now, is found here."""
    page = next(page for page in NAMES if page.removeprefix("docs/") == name)
    lines = [line for fence in fences(read(page)) if fence.commands for line in fence.lines]
    for start in PLAN[name].shorter:
        assert any(line.lstrip().startswith(start) and not why_not(line) for line in lines), start


def test_what_was_not_printed_is_found() -> None:
    assert alike("a 1\n...\nc 3\n", "a 1\nb 2\nc 3\n", exactly=True)
    assert not alike("a 1\n...\nc 3\n", "a 1\nb 2\nc 4\n", exactly=True)
    assert alike("a  1.5\n", "a 22.25\n", exactly=False)
    assert not alike("a 1\n", "b 1\n", exactly=False)


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_to_a_page_and_a_heading(name: str) -> None:
    for target in links(read(name)):
        path, _, anchor = target.partition("#")
        page = (ROOT / name).parent / path if path else ROOT / name
        assert page.exists(), target
        if anchor:
            assert anchor in anchors(page.read_text(encoding="utf-8")), target


def test_the_index_names_every_page() -> None:
    index = {target.partition("#")[0] for target in links(read("docs/README.md"))}
    there = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert there <= index


def named_on_the_page_on_files() -> set[str]:
    code = re.findall(r"`([^`]+)`", FENCED.sub("", read("docs/files.md")))
    return set(re.findall(r"\w+", " ".join(code)))


def test_the_page_on_files_has_every_field_of_every_row() -> None:
    """Of requests, their ticks, ticks, health and server samples, and of run.json and its parts."""
    rows: list[type[msgspec.Struct]] = [RequestRow, Ticks, TickRow, HealthSample, ServerSample]
    parts: list[type[msgspec.Struct]] = [RunInfo, RunConfig, LedgerInfo, Clock]
    fields = {field.encode_name for type_ in (*rows, *parts) for field in msgspec.structs.fields(type_)}
    assert fields <= named_on_the_page_on_files()


def test_the_page_on_files_has_every_figure_of_a_summary(tmp_path: Path) -> None:
    done = bash("tokentick simulate toy --json --out run", tmp_path)
    assert set(json.loads(done.stdout)) <= named_on_the_page_on_files()
