"""`tokentick simulate` from a file to its figures, on ledgers small enough to be worked by hand."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import COMMAND, json_lines, tokentick, wait_for_first_row


def simulate(tmp_path: Path, ledger: str, *flags: str, hardware: str = "") -> dict[str, Any]:
    """The summary; the run is in `tmp_path / "run"`."""
    (tmp_path / "ledger.csv").write_text(ledger)
    (tmp_path / "hardware.toml").write_text(hardware)
    arguments = ["simulate", "ledger.csv", "--hardware", "hardware.toml", *flags, "--out", "run", "--json"]
    result = tokentick(*arguments, cwd=tmp_path)
    summary: dict[str, Any] = json.loads(result.stdout)
    assert result.returncode == (0 if summary["completed"] else 1), result.stderr
    assert summary == json.loads((tmp_path / "run" / "summary.json").read_text())
    return summary


def test_a_slot_that_gets_no_prefill_tokens_is_not_used(tmp_path: Path) -> None:
    """Two prompts of 4 share 4 tokens a tick: in tick 0 one takes all, so 4 of 6 slot ticks advanced."""
    ledger = "id,at,prompt_tokens,output_tokens\na,0,4,1\nb,0,4,1\n"
    hardware = "prefill_tokens_per_tick = 4\ndecode_slots = 2\n"
    summary = simulate(tmp_path, ledger, "--policy", "chunked", "--rate", "1", hardware=hardware)
    assert summary["batch_utilization"] == pytest.approx(4 / 6)


def test_itl_is_over_the_requests_that_completed_in_the_window(tmp_path: Path) -> None:
    """The long request ends after the window: its gaps are in no percentile."""
    ledger = "id,at,prompt_tokens,output_tokens\na,0,1,3\nb,0,1,20\n"
    flags = ["--rate", "inf", "--policy", "immediate", "--tail", "0.5"]
    summary = simulate(tmp_path, ledger, *flags)
    assert (summary["completed"], summary["unfinished"]) == (1, 1)
    assert summary["itl_ms"]["n"] == 2


def test_a_drained_window_ends_with_what_was_served_not_with_a_rejection(tmp_path: Path) -> None:
    """The last request is rejected at tick 8; its arrival at 1/1.3 s ends the window, not the tick."""
    ledger = "id,at,prompt_tokens,output_tokens\na,0,1,1\nb,1,100,1\n"
    summary = simulate(tmp_path, ledger, "--rate", "1.3", "--tail", "drain", "--policy", "immediate")
    assert summary["window_s"] == pytest.approx(1 / 1.3, abs=1e-9)
    assert (summary["completed"], summary["rejected"], summary["censored"]) == (1, 1, False)


def test_all_rejected_is_no_completion_and_no_law(tmp_path: Path) -> None:
    """Nothing ran: rates are zero, latencies unknown, and Little's law has nothing to apply to."""
    ledger = "id,arrival_s,prompt_tokens,output_tokens\na,0,100,1\nb,1,100,1\n"
    summary = simulate(tmp_path, ledger)
    assert (summary["rejected"], summary["completed"], summary["throughput_rps"]) == (2, 0, 0)
    assert summary["e2e_ms"] is None
    assert not (summary["littles_law"] or {"applies": False})["applies"]
    assert (tmp_path / "run" / "ticks.jsonl").read_bytes() == b""


def test_idle_hours_cost_nothing(tmp_path: Path) -> None:
    """Ten days between two requests at 1 ms ticks: leapt over, and the grid is where it was."""
    ledger = "id,arrival_s,prompt_tokens,output_tokens\na,0,50,3\nb,864000.0005,50,3\n"
    begin = time.monotonic()
    simulate(tmp_path, ledger, "--tick", "0.001", "--ticks", "none", "--max-wait", "0")
    assert time.monotonic() - begin < 20  # 864 million ticks would take hours
    rows = {row["id"]: row for row in json_lines(tmp_path / "run" / "requests.jsonl")}
    ticks: Any = rows["b"]["ticks"]
    assert ticks["received"] == ticks["prefill_start"] == 864_000_001


def test_idle_ticks_have_rows(tmp_path: Path) -> None:
    """Every tick from 0 through the last token, in order, those between two requests empty."""
    ledger = "id,arrival_s,prompt_tokens,output_tokens\na,0,1,1\nb,1,1,1\n"
    simulate(tmp_path, ledger, "--policy", "immediate")
    ticks = json_lines(tmp_path / "run" / "ticks.jsonl")
    assert [tick["tick"] for tick in ticks] == list(range(12))
    assert [tick["emitted"] for tick in ticks] == [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    assert set(ticks[5]) == {"tick", "queue", "prefill", "ready", "emitted", "kv_reserved", "kv_cached"}


def test_an_interrupted_simulation_has_a_summary(tmp_path: Path) -> None:
    """Ctrl-C in the middle: exit code 130, what ended is there, and the directory says what it is."""
    command = [*COMMAND, "simulate", "--num-prompts", "20000", "--random-input-len", "100"]
    command += ["--random-output-len", "300", "--request-rate", "inf", "--hardware", "medium", "--out", "run"]
    process = subprocess.Popen([*command, "--ticks", "none"], cwd=tmp_path)
    wait_for_first_row(tmp_path / "run")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["interrupted"]
    assert 0 < summary["completed"] < summary["scheduled"] == 20000
