"""What several tests need: a mock server as a process of its own, and commands run as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import pytest

from tests import forked

COMMAND = [sys.executable, "-m", "tokentick"]


@pytest.fixture(autouse=True, scope="module")
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test looks at, or touches, what the user's own runs or other tests have left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


class MockServer(NamedTuple):
    """A running server."""

    url: str
    process: subprocess.Popen[str]
    out: Path

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@contextmanager
def serving(out: Path, *arguments: str, stderr: IO[str] | None = None) -> Iterator[MockServer]:
    """`tokentick serve` on a free port, its run directory at `out`; killed at the end if it still runs."""
    process = subprocess.Popen(
        [*COMMAND, "serve", "--port", "0", "--json", "--out", str(out), *arguments],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        yield MockServer(json.loads(line)["url"], process, out)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def tokentick(
    *arguments: str, cwd: Path, timeout: float = 60, command: Sequence[str] = COMMAND
) -> subprocess.CompletedProcess[str]:
    """A command run to its end in `cwd`: forked where it can be, in an interpreter of its own otherwise."""
    as_we_started = "PYTHONIOENCODING" not in os.environ  # which only an interpreter that starts looks at
    has_workers = "--workers" in arguments  # which are forked from a process without a past
    if command is COMMAND and as_we_started and not has_workers and sys.platform == "linux":
        return forked.run(arguments, cwd, timeout)
    environment = {**os.environ, "COLUMNS": "80"}
    return subprocess.run(
        [*command, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout
    )


def on_full_disk(most_bytes: int) -> list[str]:
    """The front door in a process that cannot make a file larger than this."""
    script = (
        "import resource, tokentick\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({most_bytes}, {most_bytes}))\n"
        "tokentick.main()"
    )
    return [sys.executable, "-c", script]


def wait_for_first_row(run: Path, seconds: float = 30) -> None:
    """Until the first request of a run that is going on has ended."""
    rows = run / "requests.jsonl"
    deadline = time.monotonic() + seconds
    while not (rows.exists() and rows.stat().st_size):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def json_lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def refused(result: subprocess.CompletedProcess[str], code: int, *words: Sequence[str] | str) -> None:
    """The command ended with `code` and one line on stderr that has all the words; stdout is empty."""
    assert result.returncode == code, result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    for word in words:
        assert word in lines[0]
    assert result.stdout == ""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockServer]:
    """A server with short ticks and toy hardware, shared by the tests of a module."""
    with serving(
        tmp_path_factory.mktemp("server") / "served", "--tick", "0.01", "--policy", "chunked"
    ) as mock:
        yield mock
