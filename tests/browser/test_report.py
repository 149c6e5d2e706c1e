"""A report as an HTML file, opened from disk."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.browser.conftest import Open, violations
from tests.conftest import COMMAND


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a simulated run."""
    place = tmp_path_factory.mktemp("report")
    for arguments in (
        ["simulate", "toy", "--preset", "busy", "--quiet", "--out", "run"],
        ["report", "run", "--html", "run.html"],
    ):
        subprocess.run([*COMMAND, *arguments], cwd=place, check=True, capture_output=True, timeout=60)
    return place / "run.html"


@pytest.mark.parametrize(
    "options",
    [{}, {"color_scheme": "dark", "viewport": {"width": 360, "height": 740}}],
    ids=["light", "dark and narrow"],
)
def test_a_report_needs_nothing_but_itself(report: Path, opened: Open, options: dict[str, object]) -> None:
    """It asks for no other file, has no violation that axe knows of, and is no wider than a phone."""
    asked: list[str] = []
    page = opened(report.as_uri(), **options)
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    assert asked == [report.as_uri()]
    assert violations(page) == []
    assert page.locator("h1").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
