"""A real browser and a lab for it. Whatever a page does, it may ask its own origin only, and not complain."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

from tests.conftest import COMMAND

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LIMIT_MS = 20_000
Open = Callable[..., Page]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.fail(f"no browser: none of {', '.join(NAMES)} is installed (make chromium)")
    expect.set_options(timeout=LIMIT_MS)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def lab() -> Iterator[str]:
    """The origin of a running lab."""
    process = subprocess.Popen([*COMMAND, "lab", "--port", "0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("lab: http://127.0.0.1:"), line
        yield line.split()[1].rstrip("/")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        process.stdout.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[Open]:
    """Opens an address in a context of its own; what it must not do is looked for at the end."""
    asked: list[tuple[str, str]] = []
    complaints: list[str] = []
    contexts = []

    def visit(address: str, **options: Any) -> Page:
        context = browser.new_context(**{"locale": "en-US", "reduced_motion": "reduce", **options})
        contexts.append(context)
        context.set_default_timeout(LIMIT_MS)
        page = context.new_page()

        def said(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                complaints.append(message.text)

        def requested(request: Request) -> None:
            asked.append((address, request.url))

        page.on("console", said)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", requested)
        page.goto(address)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert complaints == []
    for address, url in asked:
        origin = "/".join(address.split("/", 3)[:3])
        assert url == address or url.startswith((f"{origin}/", "data:")), url


def violations(page: Page) -> list[str]:
    """What axe finds wrong with a page, in a line each."""
    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {node['html'][:200]}" for each in found for node in each["nodes"]]
