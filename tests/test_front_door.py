"""What every command owes whoever starts it: streams may be closed or piped, and text is only text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ledgers.recipes import RECIPES
from ledgers.rundir import Run
from ledgers.summary import summarize
from tests.conftest import COMMAND, MockServer, refused, tokentick
from tests.scripted_server import Request, plain, scripted_server
from tests.test_loadgen_run import ledger, tokentick_run, url


def closed(streams: str) -> list[str]:
    """The front door started by a shell that has closed these streams."""
    return ["/bin/sh", "-c", f'exec "$0" "$@" {streams}', *COMMAND]


@pytest.mark.parametrize("streams", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_run_survives_closed_streams(server: MockServer, tmp_path: Path, streams: str) -> None:
    """Its files are whole, and its summary is there; what cannot be printed is not missed."""
    arguments = ["run", "toy", "--request-rate", "50", "--base-url", server.url, "--out", "run"]
    result = tokentick(*arguments, cwd=tmp_path, command=closed(streams))
    assert result.returncode in (0, 4), result.stderr  # 4 on a busy machine
    run = Run(tmp_path / "run")
    assert (run.info.complete, len(list(run.rows()))) == (True, 16)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["scheduled"] == 16
    assert ("16 scheduled" in result.stdout) is (">&-" not in streams.replace("2>&-", ""))


@pytest.mark.parametrize("streams", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_report_survives_closed_streams(tmp_path: Path, streams: str) -> None:
    assert tokentick("simulate", "toy", "--out", "run", "--quiet", cwd=tmp_path).returncode == 0
    result = tokentick("report", "run", cwd=tmp_path, command=closed(streams))
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("words", ["convert toy - --request-rate 1", "make - --recipe burst", "describe toy"])
def test_a_result_for_a_closed_output_is_refused(tmp_path: Path, words: str) -> None:
    """Where all of the result is what is printed, a closed standard output is no success."""
    words = words.replace("burst", next(iter(RECIPES))) + (" --num-prompts 20" if "make" in words else "")
    command = ["trace", *words.split()]
    assert tokentick(*command, cwd=tmp_path).returncode == 0
    refused(tokentick(*command, cwd=tmp_path, command=closed(">&-")), 2, "standard output is closed")


@pytest.mark.parametrize(
    "words", ["trace convert toy - --request-rate 1 --num-prompts 9", "trace describe toy"]
)
def test_a_reader_that_left_is_no_verdict(tmp_path: Path, words: str) -> None:
    """As a shell says it, whether much was written or little: never 1, which is a bad verdict."""
    command = ["/bin/sh", "-c", 'sleep 0.1; exec "$0" "$@"', *COMMAND, *words.split()]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read().decode()
    assert process.returncode == 141
    assert "Traceback" not in said


def test_ctrl_c_while_modules_load_ends_without_a_traceback(tmp_path: Path) -> None:
    """It comes when click is imported, which the front door does before anything else."""
    (tmp_path / "click.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[1]}"}
    command = [sys.executable, "-c", "from tokentick import main; main()", "trace", "describe", "toy"]
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=30, cwd=tmp_path
    )
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


def test_a_mistake_keeps_its_exit_code_without_a_stderr(tmp_path: Path) -> None:
    result = tokentick("report", "nothing", cwd=tmp_path, command=closed("2>&-"))
    assert (result.returncode, result.stdout, result.stderr) == (2, "", "")


def test_piped_output_has_neither_colours_nor_lines_written_over(server: MockServer, tmp_path: Path) -> None:
    """No escape and no carriage return on either stream: what goes to a file reads like a file."""
    commands = [
        ["run", "toy", "--request-rate", "50", "--base-url", server.url, "--out", "run"],
        ["simulate", "toy", "--out", "simulated", "--record-events"],
        ["report", "run", "simulated"],
        ["report", "simulated", "--ticks"],
        ["report", "--help"],
        ["report", "nothing"],
    ]
    for command in commands:
        result = tokentick(*command, cwd=tmp_path)
        printed = result.stdout + result.stderr
        assert printed
        assert not set(printed) & set("\r\x1b\b"), command


async def test_a_server_cannot_drive_the_terminal(tmp_path: Path) -> None:
    """Its error comes with a title, colours and a text turned round: run and report show them as signs."""

    async def hostile(request: Request, writer: object) -> None:
        body = json.dumps({"error": {"message": "\x1b]0;owned\x07\x1b[31mred\u202edesrever\x9b2J"}})
        writer.write(plain(500, body.encode()))  # type: ignore[attr-defined]

    out = tmp_path / "run"
    async with scripted_server(hostile) as server:  # type: ignore[arg-type]
        code, printed, _ = await tokentick_run(
            ledger(tmp_path, [0, 10]), "--base-url", url(server), "--no-preflight", "--out", out
        )
    assert code == 1
    again = tokentick("report", str(out), cwd=tmp_path).stdout
    for text in (printed, again):
        assert not set(text) & set("\x1b\x07\x9b\u202e")
        assert r"\x1b[31mred\u202edesrever" in "".join(line.strip() for line in text.splitlines())
    assert "\x1b[31mred" in summarize(Run(out))["failures"][0]["error"]  # the files keep what came


def test_a_file_name_cannot_drive_the_terminal(tmp_path: Path) -> None:
    """What a user typed comes back escaped."""
    refused(tokentick("report", "run\x1b[31m\u202e", cwd=tmp_path), 2, r"run\x1b[31m\u202e")


def test_a_command_that_is_nearly_one_is_said(tmp_path: Path) -> None:
    refused(tokentick("simulat", "toy", cwd=tmp_path), 2, "'simulat'. Did you mean 'simulate'?")
    far = tokentick("fly", cwd=tmp_path)
    refused(far, 2, "No such command 'fly'")
    assert "mean" not in far.stderr
