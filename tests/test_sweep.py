"""`tokentick sweep`: its points are those of `simulate`, it goes on where it stopped, it marks the knee."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reports.knee import knee, power
from tests.conftest import COMMAND, json_lines, refused, tokentick

MADE = ("--num-prompts", "300", "--random-input-len", "20", "--random-output-len", "4")
GRID = (*MADE, "--request-rate", "1:3:0.5", "--policy", "static,chunked", "--max-batch", "2,4")
M_D_1 = """tick_s = 0.02
prefill_tokens_per_tick = 1
decode_slots = 1
kv_budget_tokens = 1000
"""
FIND = ("--find", "--require", "e2e.p95<=1500")
ONE_SERVER = ("--hardware", "m_d_1.toml", "--policy", "immediate", "--max-batch", "1", "--max-wait", "0")


def sweep(path: Path, out: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return tokentick("sweep", *arguments, "--out", out, cwd=path)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One sweep in this process, which leaves its runs, and beside it the same one in a pool."""
    path = tmp_path_factory.mktemp("sweeps")
    serial = sweep(path, "serial", *GRID, "--repeats", "2", "--jobs", "1")
    pooled = sweep(path, "pooled", *GRID, "--repeats", "2", "--jobs", "3")
    assert (serial.returncode, pooled.returncode) == (0, 0), serial.stderr + pooled.stderr
    assert max(map(len, serial.stdout.splitlines())) <= 80
    return path


def test_a_pool_leaves_the_same_bytes(swept: Path) -> None:
    """Whichever worker is done first: the points are in the order of the grid."""
    for name in ("points.jsonl", "sweep.json"):
        assert (swept / "serial" / name).read_bytes() == (swept / "pooled" / name).read_bytes()
    assert len(json_lines(swept / "serial" / "points.jsonl")) == 5 * 2 * 2 * 2


def test_a_point_says_what_simulate_says(swept: Path) -> None:
    """Every figure of a point in the middle of the grid is that of `simulate` with its settings."""
    point: dict[str, Any] = json_lines(swept / "serial" / "points.jsonl")[22]
    setting = json.loads((swept / "serial" / "sweep.json").read_text())["settings"][point["setting"]]
    flags = ("--policy", setting["policy"], "--max-batch", str(setting["max_batch"]))
    drawn = ("--request-rate", str(point["rate"]), "--seed", str(point["seed"]))
    made = tokentick("simulate", *MADE, *drawn, *flags, "--out", "one", "--json", cwd=swept)
    summary = json.loads(made.stdout)
    figures = {name: value for name, value in point.items() if name in summary}
    assert len(figures) > 20
    assert figures == {name: summary[name] for name in figures}
    assert point["offered_rps"] == pytest.approx(299 / summary["arrivals_s"])


def test_kept_runs_are_run_directories(tmp_path: Path) -> None:
    """One for each point, with the figures that the point has."""
    made = sweep(tmp_path, "kept", "toy", "--request-rate", "2,8", "--keep-runs", "--json")
    points: list[dict[str, Any]] = json_lines(tmp_path / "kept" / "points.jsonl")
    runs = sorted((tmp_path / "kept" / "runs").iterdir())
    found = [json.loads((run / "summary.json").read_text())["e2e_ms"] for run in runs]
    assert found == [point["e2e_ms"] for point in points]
    (curve,) = json.loads(made.stdout)["curves"]
    assert [load["e2e_ms"]["p95"] for load in curve["loads"]] == [each["p95"] for each in found]
    assert json.loads((tmp_path / "kept" / "curves.json").read_text())["curves"] == [curve]


def test_tails_that_rest_on_the_largest_value_are_marked(tmp_path: Path) -> None:
    """16 requests carry no p95 (20) and no p99 (100), 300 carry both; what the mark means is said once."""
    few = sweep(tmp_path, "few", "toy", "--request-rate", "2,8").stdout
    assert len(re.findall(r"\d/\d+\*/\d+\*", few)) >= 4
    assert few.count("* rests on the largest sample") == 1
    assert max(map(len, few.splitlines())) <= 80
    assert "*" not in sweep(tmp_path, "many", *MADE, "--request-rate", "1,2").stdout


def test_a_load_of_which_requests_were_rejected_is_marked(tmp_path: Path) -> None:
    """Its tails are over the survivors: marked as not all completed, with how many are missing."""
    none = sweep(tmp_path, "none", "toy", "--request-rate", "1", "--max-model-len", "3").stdout
    assert re.search(r"^1 †  ", none, re.MULTILINE)
    assert "16 of 16 requests rejected" in none
    flags = ("--max-queue", "1", "--policy", "immediate", "--request-rate", "1,20", "--json")
    (curve,) = json.loads(sweep(tmp_path, "some", *MADE, *flags).stdout)["curves"]
    points: list[dict[str, Any]] = json_lines(tmp_path / "some" / "points.jsonl")
    assert all(0 < point["rejected"] == 300 - point["completed"] for point in points)
    assert [load["rejected"] for load in curve["loads"]] == [point["rejected"] for point in points]
    assert [load["censored"] for load in curve["loads"]] == [True, True]
    every = sweep(tmp_path, "every", "toy", "--request-rate", "1", "--tail", "drain").stdout
    assert "†" not in every
    assert "rejected" not in every


def test_repeats_of_a_single_request_would_all_be_the_same(tmp_path: Path) -> None:
    """It arrives at 0 whatever the seed, and its lengths are given."""
    one = ("--num-prompts", "1", "--random-input-len", "20", "--random-output-len", "5")
    flags = ("--request-rate", "1", "--repeats", "2")
    refused(sweep(tmp_path, "one", *one, *flags), 2, "every repeat would be the same")
    assert sweep(tmp_path, "other", *one, *flags, "--random-range-ratio", "0.9").returncode == 0


@pytest.fixture(scope="module")
def long_sweep(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], bytes]:
    """The flags of a sweep that takes a second or more, and the points that it leaves if nobody stops it."""
    path = tmp_path_factory.mktemp("long")
    flags = [*MADE, "--request-rate", "1:3:0.1", "--policy", "static,chunked", "--max-batch", "2,4"]
    flags += ["--repeats", "2", "--jobs", "2"]
    assert sweep(path, "whole", *flags).returncode == 0
    return flags, (path / "whole" / "points.jsonl").read_bytes()


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_that_was_stopped_goes_on(
    long_sweep: tuple[list[str], bytes], tmp_path: Path, ending: signal.Signals
) -> None:
    """After kill -9 or Ctrl-C, and half a line, the same command ends with the bytes of one that was not."""
    flags, whole = long_sweep
    arguments = [*flags, "--out", "killed"]
    command = [*COMMAND, "sweep", *arguments]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    points = tmp_path / "killed" / "points.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (points.exists() and points.read_bytes().count(b"\n") >= 4):
        time.sleep(0.002)
    process.send_signal(ending)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == (-signal.SIGKILL if ending == signal.SIGKILL else 130)
    assert "Traceback" not in said
    done, all_points = points.read_bytes().count(b"\n"), whole.count(b"\n")
    assert 4 <= done < all_points
    with points.open("ab") as file:
        file.write(b'{"point":')
    again = tokentick("sweep", *arguments, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert f"going on behind {done} of {all_points} points" in again.stderr
    assert points.read_bytes() == whole


def test_another_sweep_is_not_mixed_in(swept: Path) -> None:
    """A directory of other settings is refused, and says in what they differ; so is one of something else."""
    before = (swept / "pooled" / "points.jsonl").read_bytes()
    refused(sweep(swept, "pooled", *GRID, "--repeats", "3"), 2, "another sweep", "repeats")
    refused(sweep(swept, "pooled", *GRID, "--repeats", "2", "--tick", "0.2"), 2, "settings")
    assert (swept / "pooled" / "points.jsonl").read_bytes() == before
    (swept / "other").mkdir()
    (swept / "other" / "notes").write_text("mine")
    refused(sweep(swept, "other", *GRID), 2, "not empty")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda line: line.replace(b'"scheduled":16', b'"scheduled":null'), ["scheduled"]),
        (lambda line: line.replace(b'"censored":', b'"censured":'), ["censored"]),
        (lambda line: line.replace(b'"point":1', b'"point":7'), ["point 7"]),
        (lambda line: b"\xff" + line, []),
    ],
)
def test_a_damaged_point_is_named_by_its_line(
    tmp_path: Path, damage: Callable[[bytes], bytes], words: list[str]
) -> None:
    """Figures that nobody has, and lines that are none: nothing is drawn from them."""
    flags = ("toy", "--request-rate", "2,4,8")
    assert sweep(tmp_path, "made", *flags).returncode == 0
    points = tmp_path / "made" / "points.jsonl"
    first, second, third = points.read_bytes().splitlines(keepends=True)
    points.write_bytes(first + damage(second) + third)
    refused(sweep(tmp_path, "made", *flags), 2, "points.jsonl: line 2: ", *words)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--request-rate", "1:2"), "4:16:2"),
        (("--request-rate", "0,1"), "above 0"),
        (("--max-batch", "1.5"), "whole numbers"),
        (("--request-rate", "4:2:1"), "4:2:1 ends below its beginning"),
        (("--request-rate", "1:2:0"), "the step of 1:2:0 is not above 0"),
        (("--request-rate", "1:1e9:1"), "more than 1,000 numbers"),
        (("--policy", "static,fast"), "fast"),
        (("--policy", "all,static"), "nothing beside it"),
        (("--hardware", "toy,nothing.toml"), "nothing.toml"),
        (("--repeats", "2", "--request-rate", "1"), "every repeat would be the same"),
        (("--find",), "--require"),
        (("--find", "--require", "e2e<=3"), "of which requests"),
        (("--find", "--require", "e2e.max<=3"), "no sample"),
        (("--find", "--require", "attainment>=0.9", "--preset", "busy", "--repeats", "2"), "--repeats"),
        ((*FIND, "--request-rate", "1,5,20"), "lowest and the highest"),
        ((*FIND, "--request-rate", "1,20", "--keep-runs"), "--keep-runs"),
        ((*FIND, "--request-rate", "1,20", "--max-requests", "15"), "16 in the ledger"),
        ((*FIND, "--request-rate", "1,20", "--arrival", "poisson", "--max-requests", "63"), "64 requests"),
        ((*FIND, "--request-rate", "1,20", "--warmup", "1"), "--warmup"),
        (("--cooldown", "1"), "--cooldown"),
        ((*FIND, "--stages", "1:5"), "--stages: --find sets the rates itself"),
        ((*FIND, "--max-model-len", "3"), "--find: no request completes"),
        (("--request-rate", "auto", "--max-model-len", "3"), "--request-rate auto: no request completes"),
        (("--find", "--require", "error_rate<=0"), "say error_rate<=0.001"),
        (("--find", "--require", "attainment>=1", "--goodput", "e2e:9"), "say attainment>=0.999"),
        (("--find", "--require", "class=short e2e.max<=3"), "say class=short e2e.p99.9<=3"),
        ((*FIND, "--confidence", "0"), "'0' is not a share between 0 and 1"),
        ((*FIND, "--confidence", "1"), "'1' is not a share between 0 and 1"),
        ((*FIND, "--confidence", "150%"), "'150%' is not a share between 0 and 1"),
        (("--require", "e2e.p95<=3"), "belongs to --find"),
        (("--base-url", "http://127.0.0.1:9", "--policy", "static"), "server's own"),
        (("--base-url", "http://127.0.0.1:9", "--request-rate", "auto"), "say the rates"),
        (("--run-options", "--model x"), "--base-url"),
        ((*FIND, "--request-rate", "1,2", "--mock", "--run-options", "--warmup=5"), "--run-options --warmup"),
    ],
)
def test_bad_flags_get_one_line(tmp_path: Path, arguments: tuple[str, ...], word: str) -> None:
    refused(sweep(tmp_path, "bad", "toy", *arguments), 2, word)


def test_the_knee_of_a_known_curve_is_where_theory_has_it() -> None:
    """Power ρ/W is largest at 1/2 for M/M/1 and at 2 − √2 for M/D/1 (by differentiation)."""
    loads = [k / 100 for k in range(10, 100)]
    waits = {"M/M/1": lambda r: 1 / (1 - r), "M/D/1": lambda r: 1 + r / (2 * (1 - r))}
    for name, best in (("M/M/1", 0.5), ("M/D/1", 2 - 2**0.5)):
        found = knee([power(rho, rho * waits[name](rho)) for rho in loads])
        assert found is not None
        assert found.side == "inside"
        assert loads[found.place] == pytest.approx(best, abs=0.005)


def test_a_curve_that_ends_before_its_knee_has_none_inside() -> None:
    found = knee([power(rho, rho / (1 - rho)) for rho in (0.1, 0.2, 0.3)])
    assert found is not None
    assert found.side == "last"
    assert knee([1.0, None, 2.0]) is None


def test_a_simulated_single_server_bends_where_m_d_1_does(tmp_path: Path) -> None:
    """Prompts of 10 tokens at one per 20 ms, Poisson: utilization 2 − √2 is 2.93 req/s."""
    (tmp_path / "m_d_1.toml").write_text(M_D_1)
    lengths = ("--num-prompts", "1500", "--random-input-len", "10", "--random-output-len", "1")
    rates = ("--request-rate", "1.5,2.5,3,3.5,4.5")
    made = sweep(tmp_path, "knee", *lengths, *ONE_SERVER, *rates, "--json")
    (curve,) = json.loads(made.stdout)["curves"]
    assert curve["loads"][curve["knee"]]["rate"] == pytest.approx(2.93, abs=0.5)
    assert curve["knee_side"] == "inside"


def test_auto_reaches_from_light_load_to_beyond_capacity(tmp_path: Path) -> None:
    """A server that takes 0.2 s for each completes 5 req/s."""
    (tmp_path / "m_d_1.toml").write_text(M_D_1)
    lengths = ("--num-prompts", "100", "--random-input-len", "10", "--random-output-len", "1")
    made = sweep(tmp_path, "auto", *lengths, *ONE_SERVER, "--request-rate", "auto", "--json")
    rates = json.loads(made.stdout)["rates"]
    assert (rates[0], rates[-1]) == (0.5, 6.0)


def test_a_measured_sweep_has_the_mock_of_each_setting(tmp_path: Path) -> None:
    """Each point on the real clock: all of the toy's tokens came, and no files stay."""
    flags = ("--mock", "--policy", "static,chunked", "--request-rate", "20", "--tick", "0.01")
    made = sweep(tmp_path, "measured", "toy", *flags, "--tail", "drain")
    assert made.returncode in (0, 4), made.stderr  # 4 on a busy machine
    points: list[dict[str, Any]] = json_lines(tmp_path / "measured" / "points.jsonl")
    assert [point["completed"] for point in points] == [16, 16]
    left = sorted(path.name for path in (tmp_path / "measured").iterdir())
    assert left == ["curves.json", "points.jsonl", "sweep.json"]
