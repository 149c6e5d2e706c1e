"""What summaries and reports say of how well their figures are known."""

from __future__ import annotations

import json
from collections import Counter
from heapq import heappop, heappush
from math import inf, log
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ledgers.distributions import PERCENTILES
from ledgers.queueing import mm1_percentile
from ledgers.rows import RequestRow
from ledgers.rundir import LedgerInfo, Run, RunConfig, RunInfo, RunWriter
from ledgers.settings import Slo
from ledgers.summary import summarize
from ledgers.uncertainty import sorted_batches, spread_ms
from reports.certainty_text import certainty
from tests.conftest import tokentick

MS, S = 1_000_000, 1_000_000_000
MADE = ("--num-prompts", "3000", "--random-input-len", "200", "--random-output-len", "40")
HARDWARE = ("--hardware", "medium", "--max-wait", "0", "--arrival", "poisson")


def sojourns_ns(random: Random, rho: float, n: int) -> list[int]:
    """Times in an M/M/1 queue with a service of 1 ms on average, from when it has filled up."""
    found, now, free = [], 0.0, 0.0
    for _ in range(n + 500):
        now -= log(1 - random.random()) / rho
        free = max(free, now) - log(1 - random.random())
        found.append(round((free - now) * MS))
    return found[500:]


@pytest.mark.parametrize(
    ("rho", "n", "seeds", "least"), [(0.5, 1_000, 200, 0.92), (0.8, 4_000, 200, 0.9), (0.9, 16_000, 60, 0.8)]
)
def test_intervals_hold_the_truth_of_a_queue(rho: float, n: int, seeds: int, least: float) -> None:
    """As often as this at least, against the known percentiles of the M/M/1 queue.

    Near its limit a queue remembers for thousands of requests, so that batches still depend on one another:
    there they hold it less often than is said.
    """
    held: Counter[int] = Counter()
    for seed in range(seeds):
        found = spread_ms(*sorted_batches(sojourns_ns(Random(seed), rho, n)))
        assert found is not None
        for percent in PERCENTILES:
            limits, truth = found[f"p{percent}"], mm1_percentile(rho, 1, percent)
            held[percent] += (limits.low or 0) <= truth <= (inf if limits.high is None else limits.high)
    assert all(held[percent] >= least * seeds for percent in PERCENTILES), held


def queued_run(path: Path, count: int, slo: Slo) -> Path:
    """A run of one request after another, 100 per second on average, each for 1 to 9 ms."""
    random, now, free = Random(3), 0.0, 0.0
    writer = RunWriter(path, RunInfo(kind="simulated", config=RunConfig(slo=slo), ledger=LedgerInfo("x")))
    ended: list[tuple[int, int, RequestRow]] = []
    for i in range(count):
        now -= log(1 - random.random()) / 100
        begun = max(free, now)
        free = begun + random.uniform(0.001, 0.009)
        arrival, first, last = (round(time * S) for time in (now, begun + 0.0005, free))
        row = RequestRow(
            id=f"R{i:05}", prompt_tokens=10, output_tokens=5, arrival_ns=arrival, sent_ns=arrival,
            first_token_ns=first, last_token_ns=last, end_ns=last, tokens=5, events=5, streamed=True,
            class_="even" if i % 2 == 0 else "odd", outcome="completed",
        )  # fmt: skip
        heappush(ended, (last, i, row))
    while ended:
        writer.add(heappop(ended)[2])
    writer.close(complete=True)
    return path


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = queued_run(tmp_path_factory.mktemp("certainty") / "run", 2_000, Slo(e2e_ms=10))
    return summarize(Run(path))


def test_every_interval_holds_its_own_figure(summary: dict[str, Any]) -> None:
    found = summary["intervals"]
    for key in ("ttft_ms", "tpot_ms", "e2e_ms"):
        for name, limits in found[key].items():
            assert limits["low"] <= summary[key][name] <= (limits["high"] or float("inf")), (key, name)
    for key in ("throughput_rps", "token_throughput_tps", "attainment", "goodput_rps"):
        assert found[key]["low"] < summary[key] < found[key]["high"], key


def test_requests_that_queue_are_worth_fewer(summary: dict[str, Any]) -> None:
    """Latencies that hang together count as fewer than there are; a class has half of them."""
    worth = summary["intervals"]["e2e_ms"]["p50"]["effective_n"]
    assert 100 < worth < 1_700
    assert summary["by_class"]["odd"]["intervals"]["e2e_ms"]["p50"]["effective_n"] < 900


def test_rates_are_as_well_known_as_their_arrivals(summary: dict[str, Any]) -> None:
    """2,000 Poisson arrivals: a rate of 100 is known to 2 · 100/√2000 = 4.5 either way."""
    limits = summary["intervals"]["throughput_rps"]
    assert (limits["high"] - limits["low"]) / 2 == pytest.approx(4.5, rel=0.5)


def test_without_an_slo_there_is_no_interval_of_goodput(tmp_path: Path) -> None:
    found = summarize(Run(queued_run(tmp_path / "run", 100, Slo())))["intervals"]
    assert (found["attainment"], found["goodput_rps"]) == (None, None)
    assert found["e2e_ms"]["p99"]["high"] is None  # 100 values say nothing of how high a p99 may be


def test_few_requests_have_no_intervals(tmp_path: Path) -> None:
    summary = summarize(Run(queued_run(tmp_path / "run", 24, Slo(e2e_ms=10))))
    assert {key for key, found in summary["intervals"].items() if found} == {"confidence"}
    assert certainty(summary) == ""


def test_limits_that_are_not_known_are_left_open(tmp_path: Path) -> None:
    summary = summarize(Run(queued_run(tmp_path / "run", 200, Slo(e2e_ms=10))))
    lines = certainty(summary).splitlines()
    assert max(map(len, lines)) <= 80
    (e2e,) = (line for line in lines if line.startswith("E2E"))
    assert e2e.endswith("..")
    assert "an open end: too few requests to say how high" in lines


@pytest.mark.parametrize(
    ("rate", "rho", "verdict"), [(40, 0.5, "steady"), (64, 0.8, "steady"), (104, 1.3, "overload")]
)
def test_the_verdict_on_a_simulated_run(tmp_path: Path, rate: int, rho: float, verdict: str) -> None:
    """64 slots and 40 tokens of 20 ms each: 80 requests per second is what the hardware can do."""
    arguments = (*MADE, *HARDWARE, "--request-rate", str(rate), "--seed", "5", "--out", "run")
    result = tokentick("simulate", *arguments, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_bytes())
    assert summary["stability"]["verdict"] == verdict
    assert summary["stability"]["rho"] == pytest.approx(rho, rel=0.06)
    lines = result.stdout.splitlines()
    assert any(line.startswith(f"{verdict}: ") for line in lines)
    assert max(map(len, lines)) <= 80
    (line,) = (line for line in lines if line.startswith("throughput") and ".." in line)
    low, high = (float(limit) for limit in line.split()[1].split(".."))
    assert low < summary["throughput_rps"] < high


def test_a_burst_that_drains_is_no_overload(tmp_path: Path) -> None:
    """Half of what the hardware can do, but for 10 s of 1.5 times as much."""
    made = ("--random-input-len", "200", "--random-output-len", "40", *HARDWARE)
    stages = ("--stages", "40:20,120:10,40:40")
    assert tokentick("simulate", *made, *stages, "--out", "run", cwd=tmp_path).returncode == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_bytes())
    assert summary["stability"]["verdict"] in ("steady", "undetermined")
    assert summary["stability"]["low"] < 0


def test_a_closed_loop_has_no_verdict(tmp_path: Path) -> None:
    """How many are in flight was set there, not found."""
    path = tmp_path / "run"
    config = RunConfig(extra={"closed_loop": True})
    writer = RunWriter(path, RunInfo(kind="measured", config=config, ledger=LedgerInfo("x")))
    writer.close(complete=True)
    assert summarize(Run(path))["stability"] is None
