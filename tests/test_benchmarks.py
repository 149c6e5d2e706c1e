"""The benchmarks count every request and all CPU, and put what they found where it belongs.

The server here is a stand-in in Python: the one in C is for who runs the benchmarks.
"""

from __future__ import annotations

import sys
from array import array
from pathlib import Path

import pytest

from benchmarks.clients import Client, aiohttp_client, run_client, tokentick
from benchmarks.processes import read_truths, run_to_end
from benchmarks.results import Result, Tally
from benchmarks.scenarios import FULL, QUICK, SCENARIOS, Length, Setting
from benchmarks.simulator import measure as measure_simulator
from benchmarks.simulator import write_trace
from benchmarks.table import BEGIN, END, Report, markdown, replace_block
from benchmarks.workload import Workload
from ledgers.distributions import distribution
from ledgers.load import load_ledger
from reports.stamp_errors import Truth

FAKE_TRUTH = [sys.executable, str(Path(__file__).with_name("fake_truth.py"))]
README = Path(__file__).parent.parent / "README.md"
FEW = Workload(
    arrivals_ns=[0, 0, 50_000_000], tokens=4, ttft_ms=30, gap_ms=10, record_tokens=True
)  # fmt: skip


@pytest.mark.parametrize("client", [tokentick(), aiohttp_client()], ids=lambda client: client.name)
def test_a_client_is_measured_against_what_the_server_logged(client: Client, tmp_path: Path) -> None:
    """Three requests of four tokens, nine gaps; nothing is off by a second, nor dated before it was."""
    measured = run_client(client, FEW, FAKE_TRUTH, tmp_path, watch_memory=True)
    tally = Tally()
    tally.add(client.name, measured, FEW.requests)
    result = tally.result(Setting("few", "3", FEW), client.name, start_cpu_s=0)
    assert (result.runs, result.requests, result.tokens) == (1, 3, 12)
    for figures, count in (
        (result.first_ms, 3), (result.last_ms, 3), (result.each_ms, 12), (result.send_lag_ms, 3)
    ):  # fmt: skip
        assert figures is not None
        assert figures.n == count
        assert -1 < figures.p50 < 1000
    assert result.gap_ms is not None
    assert result.gap_error_ms is not None
    assert (result.gap_ms.n, result.gap_error_ms.n) == (9, 9)
    assert 5 < result.gap_ms.p50 < 1000
    assert result.cpu_s_per_million == pytest.approx(result.cpu_s / 12 * 1e6)
    assert 0.05 < result.cpu_s < 60
    assert result.peak_rss_mb is not None
    assert 10 < result.peak_rss_mb < 1000


def test_a_request_that_is_not_there_ends_the_benchmark(tmp_path: Path) -> None:
    measured = run_client(aiohttp_client(), FEW, FAKE_TRUTH, tmp_path)
    with pytest.raises(SystemExit, match="aiohttp: 3 rows for 4 requests"):
        Tally().add("aiohttp", measured, 4)


def test_a_client_that_fails_ends_the_benchmark(tmp_path: Path) -> None:
    """Its last line says why."""
    failing = tokentick("failing", "--no-such-flag")
    with pytest.raises(SystemExit, match=r"failing: ended with code 2: .*no-such-flag"):
        run_client(failing, FEW, FAKE_TRUTH, tmp_path)


def test_only_what_the_server_answered_to_the_end_is_known(tmp_path: Path) -> None:
    """Columns go by name, so that the log of another server may have more; token times are beside it."""
    log = tmp_path / "truth.csv"
    log.write_text(
        "x_request_id,req,status,more,recv_ns,first_ns,last_ns,sent\n"
        "a,7,ok,,10,20,30,2\nb,8,abort,,10,20,30,2\nc,9,ok,,1,2,2,1\n"
    )
    (tmp_path / "truth.bin").write_bytes(array("Q", [8, 1, 20, 7, 2, 20, 30]).tobytes())
    truths = read_truths(log)
    assert list(truths) == ["a", "c"]
    assert (truths["a"], list(truths["a"].token_ns or ())) == (
        Truth(10, 20, 30, 2, truths["a"].token_ns),
        [20, 30],
    )
    assert truths["c"] == Truth(1, 2, 2, 1, None)


def test_the_cpu_of_a_clients_own_processes_counts() -> None:
    """A process that does nothing but wait for another, which works for 0.3 s."""
    work = "import time\nwhile time.process_time() < 0.3: pass"
    usage = run_to_end(
        [sys.executable, "-c", f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {work!r}])"]
    )
    assert usage.exit_code == 0
    assert 0.3 <= usage.cpu_s < 10


def test_the_memory_of_a_client_is_not_that_of_who_started_it() -> None:
    """The one that starts them is large here, `sleep` is not; one that fills 100 MB is seen to."""
    small = run_to_end(["sleep", "0.3"], watch_memory=True)
    filling = "import time; block = bytearray(100_000_000); time.sleep(0.3)"
    large = run_to_end([sys.executable, "-c", filling], watch_memory=True)
    assert small.peak_rss_mb is not None
    assert large.peak_rss_mb is not None
    assert small.peak_rss_mb < 8
    assert 95 < large.peak_rss_mb < 200


@pytest.mark.parametrize("length", [FULL, QUICK], ids=["full", "quick"])
def test_every_client_gets_the_same_schedule_written_down_exactly(length: Length, tmp_path: Path) -> None:
    """A constant rate, which the C client computes itself, is the schedule that the others read."""
    for make in SCENARIOS.values():
        for setting in make(length):
            workload = setting.workload
            lines = workload.write_plan(tmp_path / "plan.csv").read_text().splitlines()[1:]
            assert [round(float(line.split(",")[0]) * 1e9) for line in lines] == workload.arrivals_ns
            if workload.rate:
                assert workload.arrivals_ns == [round(i / workload.rate * 1e9) for i in range(len(lines))]


def test_streams_whose_cost_is_measured_overlap_and_bring_few_enough_tokens() -> None:
    """All of a round begin before one ends, and the next after; 25,000 tokens a second is the most."""
    for setting in SCENARIOS["cost"](FULL):
        workload, streams = setting.workload, int(setting.label.replace(",", ""))
        life_ns = (workload.ttft_ms + (workload.tokens - 1) * workload.gap_ms) * 1e6
        begins = workload.arrivals_ns
        for first in range(0, workload.requests, streams):
            assert begins[first + streams - 1] < begins[first] + life_ns
            assert first == 0 or begins[first] > begins[first - 1] + life_ns
        assert streams / workload.gap_ms * 1000 <= 25_000
        assert workload.requests * workload.tokens >= 15_000


def result(scenario: str, label: str, client: str, **fields: object) -> Result:
    nothing = dict.fromkeys(
        [
            "first_ms",
            "last_ms",
            "each_ms",
            "gap_ms",
            "gap_error_ms",
            "send_lag_ms",
            "cpu_s_per_million",
            "peak_rss_mb",
        ]
    )
    common = {"runs": 1, "requests": 1, "tokens": 1, "cpu_s": 0.5, "client_limited": False}
    return Result(scenario=scenario, label=label, client=client, **{**nothing, **common, **fields})  # type: ignore[arg-type]


def test_the_tables_show_what_was_measured_and_on_what() -> None:
    """A row for each client, a column for each setting, a dash for what is not known."""
    lag = distribution([1_000_000, 2_000_000, 3_250_000])
    text = markdown(
        Report(
            date="2026-01-02",
            command="python -m benchmarks --quick",
            repeats=3,
            version="1",
            cpu="A CPU",
            host={"cpus": 2, "system": "Linux 6.18.4-local", "python": "3.11.7"},
            results=[
                result("start-up", "1 request", "ours", cpu_s=0.25),
                result("staggered", "300", "ours", first_ms=lag),
                result("send-lag", "constant", "ours", send_lag_ms=lag),
                result("cost", "10", "ours", cpu_s_per_million=12.34),
                result("cost", "1,000", "ours", cpu_s_per_million=9, peak_rss_mb=80.4, client_limited=True),
                result("cost", "1,000", "theirs", cpu_s_per_million=20),
            ],
        )
    )
    lines = text.splitlines()
    conditions = " ".join(text.partition("\n\n")[0].split())
    assert "2026-01-02 on A CPU (2 cores, Linux 6.18, Python 3.11.7)" in conditions
    assert "`python -m benchmarks --quick`; runs of each client, in turns: 3." in conditions
    assert "| ours | 0.25 | 80 |" in lines
    assert "| 300 staggered | ours | 2.00 / 3.25 / 3.25 | - | - | - |" in lines
    assert "| ours | 2.00 / 3.25 |" in lines
    assert "| client | 10 | 1,000 |" in lines
    assert "| ours | 12.3 | 9.0 ‡ |" in lines
    assert "| theirs | - | 20.0 |" in lines
    assert lines[-1].startswith("‡ ")


def test_the_readme_has_one_place_for_the_tables() -> None:
    """Nothing around it changes, and writing the same again changes nothing."""
    before = README.read_text()
    after = replace_block(before, "| new |")
    head, tail = before.split(BEGIN)[0], before.split(END)[1]
    assert after == f"{head}{BEGIN}\n| new |\n{END}{tail}"
    assert replace_block(after, "| new |") == after


@pytest.mark.parametrize("text", ["", BEGIN, END + BEGIN, BEGIN + END + END])
def test_a_readme_without_the_place_is_left_alone(text: str) -> None:
    with pytest.raises(ValueError, match="needs"):
        replace_block(text, "x")


def test_the_simulator_is_measured_in_both_forms(tmp_path: Path) -> None:
    """On a trace that a seed makes anew; a row for the policy: both forms, the command, its memory."""
    trace = write_trace(tmp_path / "trace.csv", 60, seed=3)
    assert trace.read_text() == write_trace(tmp_path / "again.csv", 60, seed=3).read_text()
    ledger = load_ledger(str(trace))
    assert len(ledger.rows) == 60
    ((policy, *figures),) = measure_simulator(trace, ledger, ("continuous",), "all", True, 1, tmp_path)
    assert policy == "continuous"
    assert all(float(figure) >= 0 for figure in figures)
    assert len(figures) == 4
