"""The rules of the house that keep the measurement honest."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "ledgers": {"ledgers"},
    "mock_server": {"mock_server", "ledgers"},
    "loadgen": {"loadgen", "ledgers"},
    "reports": {"reports", "ledgers", "mock_server"},
}
OURS = {*MAY_IMPORT, "tokentick"}
CLIENT_CORES = (
    "alike.py",
    "answers.py",
    "sse.py",
    "http1.py",
    "inflate.py",
    "recorder.py",
    "pacing.py",
    "requests.py",
    "token_times.py",
    "negotiation.py",
    "wording.py",
)
PURE = [
    *(ROOT / "mock_server" / "policies").glob("*.py"),
    *(ROOT / "mock_server" / "leaps").glob("*.py"),
    *(
        ROOT / "mock_server" / name
        for name in (
            "scheduler.py",
            "simulate.py",
            "engine.py",
            "faults.py",
            "fault_choice.py",
            "metrics.py",
            "openai.py",
            "results.py",
            "sse.py",
            "tokenize.py",
            "unsupported.py",
        )
    ),
    *(ROOT / "loadgen" / name for name in CLIENT_CORES),
    *(ROOT / "loadgen" / "dialects").glob("*.py"),
    *(ROOT / "loadgen" / "live" / name for name in ("progress.py", "view.py")),
    *(
        ROOT / "ledgers" / name
        for name in (
            "calibration.py",
            "client.py",
            "columns.py",
            "concurrency.py",
            "demand.py",
            "description.py",
            "description_text.py",
            "distributions.py",
            "health.py",
            "ledger.py",
            "metrics.py",
            "profile.py",
            "queueing.py",
            "requirements.py",
            "server_metrics.py",
            "steady.py",
            "taken.py",
            "tick_runs.py",
            "traffic.py",
            "trim.py",
            "uncertainty.py",
            "units.py",
            "vocabulary.py",
            "work.py",
        )
    ),
    *(ROOT / "reports" / "charts").glob("*.py"),
    *(
        ROOT / "reports" / name
        for name in (
            "agree_charts.py",
            "agree_page.py",
            "agreement.py",
            "calibration.py",
            "calibration_page.py",
            "calibration_text.py",
            "certainty_text.py",
            "compare.py",
            "compare_metrics.py",
            "compare_page.py",
            "compare_settings.py",
            "compare_text.py",
            "diagnosis.py",
            "diagnosis_changes.py",
            "diagnosis_outcomes.py",
            "diagnosis_pairs.py",
            "diagnosis_rules.py",
            "diagnosis_text.py",
            "diagnosis_waits.py",
            "find_page.py",
            "findings.py",
            "plan.py",
            "required_text.py",
            "run_charts.py",
            "run_state_charts.py",
            "schedule.py",
            "server_text.py",
            "requests_text.py",
            "stamp_errors.py",
            "sweep_page.py",
            "tables.py",
            "text.py",
            "ticks_text.py",
            "timing.py",
            "lab/chart.py",
            "lab/setting.py",
            "lab/states.py",
            "lab/view.py",
            "lab/waits.py",
        )
    ),
]
NOT_IN_PURE = {
    "asyncio",
    "socket",
    "time",
    "os",
    "random",
    "aiohttp",
    "subprocess",
    "threading",
    "tempfile",
    "sqlite3",
}
DOORS = {
    "ledgers.rundir",  # a core is handed a run that it opened, and writes none
    "reports.compare_effects",  # draws with a seed of its own
    "reports.find",  # a page is handed its answers
}


def imports(path: Path) -> set[str]:
    """The top-level names that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_what_it_stands_on(package: str) -> None:
    """The measuring side and the measured side share nothing but the nouns."""
    for path in (ROOT / package).rglob("*.py"):
        assert imports(path) & OURS <= MAY_IMPORT[package], path


def test_the_load_generator_speaks_over_its_own_sockets() -> None:
    """Importing an HTTP client would nearly double what a start costs."""
    for path in (ROOT / "loadgen").rglob("*.py"):
        assert "aiohttp" not in imports(path), path


@cache
def loaded(path: Path) -> frozenset[str]:
    """The full names of what a file imports when it runs, wherever in it."""
    tree = ast.parse(path.read_text())
    for_types = {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    names: set[str] = set()
    for node in {*ast.walk(tree)} - for_types:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
    return frozenset(names)


def source(name: str) -> Path | None:
    """Of a module of ours."""
    path = ROOT.joinpath(*name.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if name.split(".")[0] in OURS and file.is_file()), None)


def reached(path: Path) -> dict[str, Path]:
    """All that a file stands on, and which file of ours imports it; not what lies behind a door."""
    found: dict[str, Path] = {}
    left = [path]
    while left:
        file = left.pop()
        for name in loaded(file) - found.keys():
            found[name] = file
            if name not in DOORS and (inside := source(name)):
                left.append(inside)
    return found


@pytest.mark.parametrize("path", PURE, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_core_knows_no_clock_no_socket_and_no_loop(path: Path) -> None:
    """Nor does what it stands on. Time and randomness come in as arguments."""
    found = {name: file for name, file in reached(path).items() if name.split(".")[0] in NOT_IN_PURE}
    assert found == {}


def test_what_a_module_stands_on_is_found_however_far_below() -> None:
    """The one that describes traces goes to disk, which it leaves to others; its figures do not."""
    assert {"sqlite3", "tempfile"} <= reached(ROOT / "ledgers/describer.py").keys()
    assert "ledgers.spilling" not in reached(ROOT / "ledgers/description.py")


def test_the_top_level_is_what_a_newcomer_can_read() -> None:
    """No file or folder but the agreed ones, and dot files."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    top = {line.split("/")[0] for line in listed.stdout.splitlines()}
    allowed = (
        "mock_server loadgen ledgers reports tests benchmarks docs pyproject.toml README.md CHANGELOG.md"
    )
    assert {name for name in top if not name.startswith(".")} <= {
        *allowed.split(),
        "tokentick.py",
        "Makefile",
    }


def test_a_simulation_loads_no_server_and_no_load_generator() -> None:
    """Commands start with what they need: no HTTP library for a simulation."""
    heavy = "{'aiohttp', 'uvloop', 'loadgen', 'prometheus_client'}"
    code = f"import mock_server.cli, sys; print(sorted({heavy} & set(sys.modules)))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == "[]"
