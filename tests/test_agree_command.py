"""The main job from end to end: three processes, real sockets, real ticks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ledgers.rundir import Run
from tests.conftest import COMMAND, refused, tokentick, wait_for_first_row

QUICK = ["agree", "toy", "--request-rate", "20", "--tick", "0.025", "--out", "out"]


def read(path: Path) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(path.read_text())
    return answer


@pytest.mark.parametrize(
    ("last_s", "said"),
    [("0.35", "in 0.35 s and more"), ("0", "at once"), ("0.004", "in 0.004 s and more")],
)
def test_how_long_a_replay_takes_is_never_nothing(tmp_path: Path, last_s: str, said: str) -> None:
    """A short ledger takes a part of a second, not 0 s."""
    (tmp_path / "plan.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n0,2,1\n{last_s},2,1\n")
    result = tokentick("agree", "plan.csv", "--tick", "0.02", "--policy", "chunked", cwd=tmp_path)
    assert f"replaying 2 requests {said} under chunked" in result.stderr


def test_served_and_simulated_ticks_are_equal_for_every_request(tmp_path: Path) -> None:
    """The toy ledger at 25 ms ticks: the schedule exactly, every token within 5 ms at the median."""
    result = tokentick(*QUICK, "--policy", "chunked", "--json", cwd=tmp_path)
    answer = json.loads(result.stdout)
    found = answer["policies"]["chunked"]
    assert found["schedule"]["requests_equal"] == found["schedule"]["requests"] == 16
    assert found["schedule"]["ticks_equal"] == found["schedule"]["ticks"] > 0
    assert found["plan"]["differ_before"] == []
    assert found["timing"]["missing_tokens"] == []
    assert found["timing"]["tokens"]["n"] == 63  # the toy ledger's output tokens
    assert found["timing"]["tokens"]["p50"] < 5
    assert found["timing"]["outcome_different"] == []
    assert result.returncode == {"agree": 0, "disagree": 1, "inconclusive": 4}[answer["verdict"]]
    for name in ("served", "measured", "simulated", "resimulated"):
        assert Run(tmp_path / "out" / "chunked" / name).info.complete
    assert read(tmp_path / "out" / "agreement.json") == answer


def test_the_planned_ledger_is_replayed_to_the_nanosecond(tmp_path: Path) -> None:
    """Simulated and measured rows have the same arrivals and lengths, and digests that say so."""
    tokentick(*QUICK, "--quiet", cwd=tmp_path)
    runs = [Run(tmp_path / "out" / "continuous" / name) for name in ("simulated", "measured")]
    plans = [
        {row.id: (row.arrival_ns, row.prompt_tokens, row.output_tokens, row.class_) for row in run.rows()}
        for run in runs
    ]
    assert plans[0] == plans[1]
    assert runs[0].info.ledger.sha256 == runs[1].info.ledger.sha256


def test_a_request_that_can_never_fit_is_rejected_on_all_sides(tmp_path: Path) -> None:
    """400 for the client, rejected for server and simulator, and they agree about everything else."""
    ledger = tmp_path / "ledger.csv"
    ledger.write_text("prompt_tokens,output_tokens,arrival_s\n5,3,0\n70,5,0.1\n5,3,0.2\n")
    result = tokentick("agree", "ledger.csv", "--tick", "0.02", "--out", "out", "--json", cwd=tmp_path)
    found = json.loads(result.stdout)["policies"]["continuous"]
    assert found["schedule"]["requests_equal"] == 3
    outcomes = {
        name: [
            row.outcome
            for row in sorted(Run(tmp_path / "out" / "continuous" / name).rows(), key=lambda r: r.id)
        ]
        for name in ("measured", "served", "simulated")
    }
    assert outcomes["measured"] == ["completed", "http_error", "completed"]
    assert outcomes["served"] == outcomes["simulated"] == ["completed", "rejected", "completed"]


@pytest.mark.skipif(sys.platform != "linux", reason="finds the server in /proc")
def test_a_server_that_was_stopped_in_between_is_inconclusive(tmp_path: Path) -> None:
    """SIGSTOP for 0.6 s: ticks run late, so time proves nothing, and yet the schedule is equal."""
    command = [*COMMAND, *QUICK, "--request-rate", "10", "--quiet"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    wait_for_first_row(tmp_path / "out" / "continuous" / "measured")
    server = next(pid for pid in children(process.pid) if b"serve" in cmdline(pid))
    os.kill(server, signal.SIGSTOP)
    time.sleep(0.6)
    os.kill(server, signal.SIGCONT)
    process.communicate(timeout=60)
    found = read(tmp_path / "out" / "agreement.json")["policies"]["continuous"]
    assert process.returncode == 4
    assert found["verdict"] == "inconclusive"
    assert found["schedule"]["agrees"]
    assert found["tick_late_max_ms"] > 250


@pytest.mark.skipif(sys.platform != "linux", reason="finds the load generator in /proc")
def test_a_load_generator_that_was_interrupted_is_not_taken_for_an_agreement(tmp_path: Path) -> None:
    """SIGINT to it alone: the rows it has are right, but not all; exit code 3 and one line."""
    command = [*COMMAND, *QUICK, "--request-rate", "5", "--quiet"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    wait_for_first_row(tmp_path / "out" / "continuous" / "measured")
    os.kill(next(pid for pid in children(process.pid) if b"--num-warmups" in cmdline(pid)), signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 3
    assert len(errors.strip().splitlines()) == 1


def test_a_command_that_is_told_to_end_does_not_wait_for_answers(tmp_path: Path) -> None:
    """SIGTERM with an answer of 200 s in flight: exit code 130 in seconds, and the rows so far are there.

    Also of a command in the background of a script, where Ctrl-C is ignored.
    """
    (tmp_path / "long.csv").write_text("prompt_tokens,output_tokens,arrival_s\n5,2,0\n5,2000,0\n")
    command = [*COMMAND, "agree", "long.csv", "--hardware", "medium", "--tick", "0.1", "--out", "out"]
    in_background = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    process = subprocess.Popen(in_background, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    measured = tmp_path / "out" / "continuous" / "measured"
    wait_for_first_row(measured)
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in errors.splitlines()[-1]
    assert {row.outcome for row in Run(measured).rows()} == {"completed", "cancelled"}


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_processes_end_when_the_command_is_killed(tmp_path: Path) -> None:
    """Kill -9 of `agree` leaves no server behind."""
    process = subprocess.Popen([*COMMAND, *QUICK, "--quiet"], cwd=tmp_path)
    deadline = time.monotonic() + 30
    while not children(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (server, *_) = children(process.pid)
    process.kill()
    process.wait()
    while Path(f"/proc/{server}").exists() and b"tokentick" in cmdline(server):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["agree", "nothing.csv"], ["nothing.csv"]),
        (["agree", "toy", "--policy", "best"], ["best"]),
        (["agree", "toy", "--hardware", "nothing.toml"], ["nothing.toml"]),
        (["agree", "toy", "--request-rate", "0"], ["--request-rate"]),
        (["agree", "toy", "--stall-limit", "0"], ["--stall-limit"]),
        (["agree", "toy", "--stall-limit", "nan"], ["--stall-limit"]),
        (["serve", "--grace", "inf"], ["--grace"]),
        (["serve", "--host", ""], ["--host"]),
        (
            ["run", "toy", "--base-url", "http://127.0.0.1:9", "--request-timeout", "nan"],
            ["--request-timeout"],
        ),
        (
            ["run", "toy", "--base-url", "http://127.0.0.1:9", "--connect-timeout", "inf"],
            ["--connect-timeout"],
        ),
        (["agree", "toy", "--goodput", "e2e:-1"], ["e2e:-1"]),
        (["agree", "toy", "--out", "/proc/out"], ["/proc/out"]),
        (["report", "nothing"], ["nothing", "run.json"]),
        (["simulate"], ["LEDGER"]),
        (["simulate", "toy", "--max-batch", "0"], ["--max-batch"]),
        (["simulate", "toy", "--tick", "nan"], ["--tick"]),
        (["simulate", "toy", "--nothing"], ["--nothing"]),
        (["nothing"], ["nothing"]),
        (["serve", "--port", "99999"], ["--port"]),
        (["serve", "--host", "256.1.1.1"], ["256.1.1.1"]),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(
    tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    """Exit code 2, what and where on stderr, nothing on stdout, nothing left behind."""
    refused(tokentick(*arguments, cwd=tmp_path), 2, *words)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_use_is_not_touched(tmp_path: Path) -> None:
    """Results of an earlier run are never mixed with those of a new one."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("x")
    for command in (["agree", "toy"], ["simulate", "toy"], ["serve", "--port", "0"]):
        refused(tokentick(*command, "--out", "out", cwd=tmp_path), 2, "out", "not empty")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["precious"]
