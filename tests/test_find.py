"""`tokentick sweep --find`: the answer is where theory has it, and what cannot be known is said."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from math import exp, log, sqrt
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from ledgers.metrics import Observations
from ledgers.options import ledger_from
from ledgers.requirements import parse_requirement
from ledgers.rows import RequestRow
from ledgers.settings import Slo
from reports.points import Seen, simulated
from reports.search import Verdict, answer, next_rate
from reports.sweep_cli import sweep
from reports.trial import Repeat, repeat_of, trial, verdict_of
from tests.conftest import COMMAND, json_lines, refused, tokentick
from tests.test_sweep import M_D_1, MADE, ONE_SERVER

COMPLETED: dict[str, Any] = {"prompt_tokens": 1, "output_tokens": 1, "outcome": "completed"}
LOW, HIGH = Fraction(1), Fraction(100)


def searched(verdict: Callable[[float], Verdict], resolution: float = 0.02) -> dict[Fraction, Verdict]:
    """All that a search tries, given the verdict on each rate."""
    verdicts: dict[Fraction, Verdict] = {}
    while (rate := next_rate(verdicts, LOW, HIGH, resolution)) is not None:
        assert rate not in verdicts
        assert LOW <= rate <= HIGH
        verdicts[rate] = verdict(float(rate))
    return verdicts


def find(path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and the answer of the only setting."""
    (path / "m_d_1.toml").write_text(M_D_1)
    made = tokentick("sweep", *arguments, "--find", "--out", "found", "--json", cwd=path)
    (found,) = json.loads(made.stdout)["settings"]
    assert json.loads((path / "found" / "find.json").read_text())["settings"] == [found]
    return made.returncode, found


@pytest.mark.parametrize("edge", [1.3, 7.77, 50, 99])
def test_a_search_ends_around_the_edge(edge: float) -> None:
    found = answer(searched(lambda rate: "kept" if rate <= edge else "missed"), 0.02)
    assert found.verdict == "found"
    assert found.rate is not None
    assert found.missed is not None
    assert found.rate <= edge < found.missed <= found.rate * 1.03


def test_a_search_tries_both_sides_of_its_answer() -> None:
    """A gap in what is kept, far below the edge, moves the answer below the gap; the rest is told."""
    verdicts = searched(lambda rate: "missed" if 6 < rate < 9.5 or rate > 10 else "kept")
    found = answer(verdicts, 0.02)
    assert found.rate == pytest.approx(6, rel=0.03)
    assert found.missed == pytest.approx(6, rel=0.03)
    assert any(9.5 <= rate <= 10 for rate in found.kept_above)


def test_a_search_leaves_an_open_question_between_two_rates() -> None:
    """What is open is on neither side: both of its edges are found."""

    def verdict(rate: float) -> Verdict:
        return "kept" if rate < 20 else "missed" if rate > 30 else "open"

    found = answer(searched(verdict), 0.02)
    assert found.verdict == "open"
    assert found.rate == pytest.approx(20, rel=0.03)
    assert found.missed == pytest.approx(30, rel=0.03)


def test_a_search_says_when_the_edge_is_beyond_its_rates() -> None:
    assert answer(searched(lambda rate: "kept"), 0.02).verdict == "always"
    assert answer(searched(lambda rate: "missed"), 0.02).verdict == "never"


@pytest.mark.parametrize(
    ("needed", "share", "edge"),
    [
        (20.0, lambda rate: 1.0 if rate <= 60 else 0.0, 60),
        (20.0, lambda rate: max(0.0, 1 - rate / 90), 60),  # r(1 − r/90) ≥ 20 from 30 to 60
        (22.0, lambda rate: max(0.0, 1 - rate / 90), 51.7),  # from 38.3
        (22.6, lambda rate: max(0.0, 1 - rate / 90), None),  # 22.5 at most
    ],
)
def test_what_needs_load_is_kept_in_a_window_of_rates(
    needed: float, share: Callable[[float], float], edge: float | None
) -> None:
    """The highest rate of the window, though the lowest and the highest that are tried are both missed."""
    verdicts: dict[Fraction, Verdict] = {}
    lifts: dict[Fraction, Fraction] = {}
    while (rate := next_rate(verdicts, LOW, HIGH, 0.02, lifts)) is not None:
        assert rate not in verdicts
        done = float(rate) * share(float(rate))
        verdicts[rate] = "kept" if done >= needed else "missed"
        if 0 < done < needed:
            lifts[rate] = rate * Fraction(needed / done) * Fraction(102, 100)
    found = answer(verdicts, 0.02, lifts)
    assert len(verdicts) < 40
    if edge is None:
        assert (found.verdict, found.rate) == ("never", None)
    else:
        assert found.verdict == "found"
        assert found.rate == pytest.approx(edge, rel=0.03)
        assert found.underloaded[0] == LOW


@pytest.mark.parametrize(
    "required", [("throughput>=1",), ("goodput>=0.5", "--goodput", "ttft:800", "--require", "throughput>=1")]
)
def test_a_throughput_is_searched_for_where_the_load_can_have_it(
    tmp_path: Path, required: tuple[str, ...]
) -> None:
    """A server that takes 5 req/s, from a fiftieth of that on: 1 is completed per second from 1 req/s on."""
    lengths = ("--num-prompts", "300", "--random-input-len", "10", "--random-output-len", "1")
    asked = (*lengths, *ONE_SERVER, "--resolution", "20%", "--max-requests", "4800", "--require", *required)
    _, found = find(tmp_path, *asked)
    assert found["candidates"][0]["rate"] < 0.2
    assert found["candidates"][0]["verdict"] == "missed"
    assert found["answer"]["verdict"] in ("found", "open")
    assert 2 <= found["answer"]["rate"] < 5
    assert found["answer"]["missed"] > found["answer"]["rate"]
    assert found["answer"]["underloaded"][-1] < 1.1


def test_a_throughput_that_is_beyond_the_server_does_not_lie_below(tmp_path: Path) -> None:
    """It completes 5 per second at most, so no rate has 10 of them, the lower ones least of all."""
    lengths = ("--num-prompts", "300", "--random-input-len", "10", "--random-output-len", "1")
    (tmp_path / "m_d_1.toml").write_text(M_D_1)
    asked = (*lengths, *ONE_SERVER, "--find", "--require", "throughput>=10", "--out", "found")
    made = tokentick("sweep", *asked, cwd=tmp_path)
    assert made.returncode == 1
    assert "kept at no rate tried, from 0.1 to 6.2" in made.stdout
    assert "below" not in made.stdout


def repeat(
    good: int, n: int, *, growth: float = 0.0, chance: float = 0.0, late_misses: bool = False
) -> Repeat:
    """So many of n did their part, the misses evenly spread or at the end."""
    misses = n - good
    flags = bytearray(b"\x01" * n)
    for k in range(misses):
        flags[n - 1 - k if late_misses else k * n // misses] = 0
    return Repeat(n, [bytes(flags)], [None], growth, chance)


@pytest.mark.parametrize(
    ("repeats", "verdict"),
    [
        ([repeat(990, 1_000)] * 4, "kept"),
        ([repeat(900, 1_000)] * 4, "missed"),
        ([repeat(952, 1_000)] * 4, "open"),
        ([repeat(1_000, 1_000)] * 3, "open"),
        ([repeat(0, 1_000)] * 3, "open"),
        ([repeat(good, 1_000) for good in (1_000, 1_000, 1_000, 900)], "open"),
        ([repeat(20, 20)] * 4, "open"),
        ([repeat(970, 1_000, late_misses=True)] * 4, "open"),
        ([repeat(1_000, 1_000, growth=g) for g in (0.05, 0.01, 0.03, 0.04)], "open"),
        ([repeat(1_000, 1_000, growth=g) for g in (0.05, 0.051, 0.049, 0.05)], "missed"),
        ([repeat(1_000, 1_000, growth=0.02, chance=0.02)] * 4, "open"),
        ([repeat(1_000, 1_000, growth=0.0, chance=0.02)] * 4, "open"),
        ([repeat(1_000, 1_000, growth=g) for g in (0.05, -0.05, 0.03, -0.04)], "open"),
        ([repeat(1_000, 1_000, growth=g) for g in (0.002, -0.002, 0.001, -0.001)], "kept"),
    ],
)
def test_a_verdict_needs_its_interval_on_one_side(repeats: list[Repeat], verdict: str) -> None:
    """95 % are needed: of all, of the second half, and without a queue that grows."""
    requirement = parse_requirement("e2e.p95<=100")
    assert verdict_of(1.0, [requirement], repeats, 1, 0.95).verdict == verdict


def test_a_later_look_must_be_surer() -> None:
    """So that looking often enough does not make a verdict of chance."""
    requirement = parse_requirement("e2e.p95<=100")
    looks = [verdict_of(1.0, [requirement], [repeat(1_930, 2_000)] * 4, look, 0.95) for look in (1, 8)]
    lows = [found.evidence[0].low or 0 for found in looks]
    assert lows[0] > lows[1]


def test_the_answer_for_one_server_is_where_m_d_1_has_it(tmp_path: Path) -> None:
    """P(W ≤ x) = (1 − ρ)·exp(λx) for x within a service of 0.2 s; ticks add 10 ms to waits on average.

    60 % within 100 ms: 2.63 req/s.
    """
    rate = 2.63
    assert (1 - rate * 0.2) * exp(rate * 0.09) == pytest.approx(0.6, abs=0.002)
    lengths = ("--num-prompts", "500", "--random-input-len", "10", "--random-output-len", "1")
    bounds = ("--request-rate", "1.5,4.5", "--resolution", "10%", "--max-requests", "4000")
    code, found = find(tmp_path, *lengths, *ONE_SERVER, *bounds, "--require", "queue_delay.p60<=100")
    assert found["answer"]["rate"] * 0.98 < rate < found["answer"]["missed"] * 1.02
    assert code == (0 if found["answer"]["verdict"] == "found" else 4)
    assert found["requests"] == sum(candidate["requests"] for candidate in found["candidates"])


def test_an_unstable_queue_keeps_nothing_however_lenient_the_limit(tmp_path: Path) -> None:
    """A limit of an hour on runs of a minute: the server takes 5 req/s, so nothing above is kept."""
    lengths = ("--num-prompts", "300", "--random-input-len", "10", "--random-output-len", "1")
    bounds = ("--request-rate", "2,10", "--resolution", "10%", "--max-requests", "2400")
    _, found = find(tmp_path, *lengths, *ONE_SERVER, *bounds, "--require", "e2e.p95<=3600000")
    assert 2 <= found["answer"]["rate"] < 5
    above = {each["rate"]: each for each in found["candidates"] if each["rate"] > 6}
    assert {each["verdict"] for each in above.values()} == {"missed"}
    assert "the queue grows" in above[10.0]["reason"]


def test_what_sixteen_requests_cannot_show_is_not_shown(tmp_path: Path) -> None:
    """The toy's arrivals are not drawn, so there is one run only, and nothing to judge a rate by."""
    arguments = ("toy", "--find", "--request-rate", "1,20", "--require", "attainment>=0.95")
    made = tokentick("sweep", *arguments, "--out", "found", cwd=tmp_path)
    assert made.returncode == 4
    said = " ".join(made.stdout.split())
    assert "not resolvable in 16 requests: fewer than 4 different runs; nothing here is drawn" in said
    assert max(map(len, made.stdout.splitlines())) <= 80


def test_a_single_request_is_one_run_however_often_it_is_made(tmp_path: Path) -> None:
    """Poisson arrivals of one request are all the same: 256 equal runs are no 256 independent ones."""
    lengths = ("--num-prompts", "1", "--random-input-len", "20", "--random-output-len", "5")
    code, found = find(tmp_path, *lengths, "--require", "e2e.p95<=10000")
    assert code == 4
    assert {(each["verdict"], each["requests"]) for each in found["candidates"]} == {("open", 1)}


def test_a_requirement_that_is_given_twice_is_judged_once(tmp_path: Path) -> None:
    """However it is written: with each one the others could be shown less surely."""
    asked = ("toy", "--request-rate", "1,20", "--require", "e2e.p95<=9", "--require", "e2el.p95  <= 9.0")
    _, found = find(tmp_path, *asked, "--require", "e2e.p95<9")
    assert [len(each["evidence"]) for each in found["candidates"]] == [2, 2]


def m_d_1(rho: float, limit: float, seed: int, *, n: int = 300, before: int = 0) -> Repeat:
    """A run of one server that takes 1 for each (Lindley): who waits no longer than the limit, what piles up.

    The first `before` requests are not looked at.
    """
    random = Random(seed)
    now = wait = 0.0
    arrivals: list[float] = []
    ends: list[float] = []
    flags = bytearray()
    for _ in range(before + n):
        gap = random.expovariate(rho)
        now, wait = now + gap, max(0.0, wait + 1 - gap) if arrivals else 0.0
        arrivals.append(now)
        ends.append(now + wait + 1)
        flags.append(wait <= limit)
    half, end = (bisect_right(arrivals, t) - bisect_right(ends, t) for t in (arrivals[before + n // 2], now))
    grown, chance = (end - half) / (n // 2), sqrt(end + half) / (n // 2)
    return Repeat(n, [bytes(flags[before:])], [None], grown, chance)


def verdicts_of(
    rho: float, share: float, limit: float, searches: int, *, settled: bool = False
) -> Counter[str]:
    """How often each verdict comes out of so many searches of up to 16 repeats.

    A `settled` queue is looked at after 200 requests, and known not to grow: its share alone decides.
    """
    wanted = [parse_requirement(f"queue_delay.p{share}<=1")]
    found: Counter[str] = Counter()
    for search in range(searches):
        seeds = 1_000 * search

        def run(numbers: range, seeds: int = seeds) -> list[Repeat]:
            runs = [m_d_1(rho, limit, seeds + k, before=200 * settled) for k in numbers]
            return [
                msgspec.structs.replace(each, growth=0.0, chance=0.0) if settled else each for each in runs
            ]

        found[trial(rho, wanted, 0.95, 16 * 300, run).verdict] += 1
    return found


def test_an_overloaded_rate_is_not_kept() -> None:
    """5 % more arrives than can leave: 0 of 100 searches take it for a rate that can be kept."""
    found = verdicts_of(1.05, 95, float("inf"), 100)
    assert found["kept"] <= 2
    assert found["missed"] >= 20


def test_a_rate_is_kept_that_a_server_bears() -> None:
    """Half of what can leave arrives, and 3 of 4 wait no longer than 1: P(W <= 1) = 0.5·exp(0.5) = 0.82."""
    assert verdicts_of(0.5, 75, 1.0, 30)["kept"] >= 15


@pytest.mark.parametrize("aim", [-1e-6, 1e-6])
def test_verdicts_are_wrong_no_more_often_than_they_say(aim: float) -> None:
    """What is needed is a hair beside the truth, so that every verdict on one side is wrong.

    P(W <= x) = (1 − ρ)·exp(ρx) for x up to a service: 40 % at x = ln(2)/0.8. Of a queue that has settled.
    """
    found = verdicts_of(0.8, 40 + aim, log(2) / 0.8, 200, settled=True)
    assert found["kept" if aim > 0 else "missed"] <= 10  # 5 %, of both sides together


def test_digits_of_a_rate_are_fine_enough_for_the_resolution() -> None:
    found = answer(searched(lambda rate: "kept" if rate <= 10.237 else "missed", 0.001), 0.001)
    assert found.verdict == "found"
    assert found.rate is not None
    assert found.missed is not None
    assert found.rate <= 10.237 < found.missed <= found.rate * 1.001


def test_a_client_that_was_the_limit_once_leaves_a_rate_open() -> None:
    """In whichever repeat: no more are made, for they would prove nothing."""
    made: list[int] = []

    def run(numbers: range) -> list[Repeat]:
        made.extend(numbers)
        return [msgspec.structs.replace(repeat(990, 1_000), client_limited=k == 1) for k in numbers]

    found = trial(1.0, [parse_requirement("e2e.p95<=100")], 0.95, 100_000, run)
    assert (found.verdict, found.reason) == ("open", "the load generator was the limit")
    assert made == [0, 1, 2, 3]


def test_requests_without_a_row_are_misses() -> None:
    """3 of 4 rows in time and 4 requests of which no row tells: 3 of 8, the lost ones in the second half."""
    seen = Observations(Slo())
    for k in range(4):
        ends = 10_000_000 * (k + 1 if k < 3 else 100)
        seen.add(RequestRow(**COMPLETED, id=str(k), arrival_ns=k, end_ns=ends, last_token_ns=ends))
    found = repeat_of([parse_requirement("e2e.p95<=100")], seen, 10**10, lost=4)
    assert (found.requests, found.flags) == (8, [b"\1\1\1\0\0\0\0\0"])
    assert repeat_of([parse_requirement("e2e.mean<=100")], seen, 10**10, lost=4).values == [None]


def test_a_measured_search_keeps_every_run(tmp_path: Path) -> None:
    """Of a mock server on the real clock: four runs of a rate at least, whose files stay when asked for."""
    lengths = (
        "--num-prompts",
        "8",
        "--random-input-len",
        "10",
        "--random-output-len",
        "2",
        "--tick",
        "0.005",
    )
    bounds = ("--mock", "--keep-runs", "--request-rate", "40,80", "--max-requests", "32")
    code, found = find(tmp_path, *lengths, *bounds, "--policy", "chunked", "--require", "e2e.p50<=60000")
    assert code in (0, 4)
    assert [(each["rate"], each["repeats"]) for each in found["candidates"]] == [(40.0, 4), (80.0, 4)]
    runs = sorted((tmp_path / "found" / "runs" / "0").iterdir())
    assert [run.name for run in runs] == [f"{rate}-{k}" for rate in (40, 80) for k in range(4)]
    rows: list[list[Any]] = [json_lines(run / "measured" / "requests.jsonl") for run in runs]
    assert [len(each) for each in rows] == [8] * 8


def test_runs_of_two_settings_do_not_overwrite_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each measured run has a directory of its own, whatever its setting, rate and seed."""
    directories: list[Path] = []

    def measured(options: Any, server: Any, directory: Path) -> Seen:
        directories.append(directory)
        return simulated(options, ledger_from(options))

    monkeypatch.setattr("reports.find.measured_rows", measured)
    lengths = ["--num-prompts", "8", "--random-input-len", "10", "--random-output-len", "2"]
    bounds = ["--mock", "--keep-runs", "--request-rate", "1,2", "--max-requests", "32", "--policy", "all"]
    asked = ["--find", "--require", "e2e.p50<=60000", "--out", str(tmp_path / "found"), "--quiet"]
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert sweep.main([*lengths, *bounds, *asked], standalone_mode=False) in (0, 4)
    assert len(directories) == len(set(directories)) > 16


@pytest.fixture(scope="module")
def whole_search(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """A search that takes some seconds, and what it leaves if nobody stops it."""
    path = tmp_path_factory.mktemp("search")
    asked = ["--find", "--require", "ttft.p95<=800", "--resolution", "5%", "--jobs", "1"]
    asked = ["sweep", *MADE, *asked, "--max-requests", "2400", "--policy", "static,chunked"]
    assert tokentick(*asked, "--out", "whole", cwd=path).returncode in (0, 4)
    return asked, path / "whole"


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_a_search_that_was_stopped_goes_on(
    whole_search: tuple[list[str], Path], tmp_path: Path, ending: signal.Signals
) -> None:
    """After kill -9 or Ctrl-C, and half a line: no rate is judged again, and the bytes end the same."""
    asked, whole = whole_search
    command = [*COMMAND, *asked, "--out", "found"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    rates = tmp_path / "found" / "rates.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (rates.exists() and rates.read_bytes().count(b"\n") >= 2):
        time.sleep(0.002)
    process.send_signal(ending)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == (-signal.SIGKILL if ending == signal.SIGKILL else 130), said
    assert "Traceback" not in said
    if ending == signal.SIGINT:
        assert "rates.jsonl has every rate judged; the same command with --out goes on" in said
    done = rates.read_bytes().count(b"\n")
    judged: list[dict[str, Any]] = [json.loads(line) for line in rates.read_bytes().splitlines()[:done]]
    assert {each["verdict"] for each in judged} <= {"kept", "missed", "open"}
    assert all(each["setting"] == 0 and each["repeats"] >= 4 for each in judged)
    with rates.open("ab") as file:
        file.write(b'{"setting":')
    refused(tokentick(*asked, "--out", "found", "--seed", "7", cwd=tmp_path), 2, "another search", "seed")
    again = tokentick(*asked, "--out", "found", cwd=tmp_path)
    assert again.returncode in (0, 4), again.stderr
    assert f"going on behind {done} rates" in again.stderr
    for name in ("rates.jsonl", "find.json"):
        assert (tmp_path / "found" / name).read_bytes() == (whole / name).read_bytes()


def test_a_search_that_was_refused_does_not_bind_its_directory(tmp_path: Path) -> None:
    """Nothing was judged under the flags that were wrong, so others may follow."""
    asked = ("--find", "--request-rate", "1,20", "--arrival", "poisson", "--require", "e2e.p95<=900")
    refused(tokentick("sweep", "toy", *asked, "--max-requests", "63", "--out", "o", cwd=tmp_path), 2, "64")
    again = tokentick("sweep", "toy", *asked, "--max-requests", "64", "--out", "o", cwd=tmp_path)
    assert again.returncode in (0, 1, 4), again.stderr
    assert json.loads((tmp_path / "o" / "search.json").read_text())["max_requests"] == 64


def test_a_class_that_is_not_there_is_refused(tmp_path: Path) -> None:
    arguments = ("toy", "--find", "--request-rate", "1,20", "--require", "class=tiny e2e.p95<=1500")
    made = tokentick("sweep", *arguments, "--out", "found", "--quiet", cwd=tmp_path)
    refused(made, 2, "tiny", "long, medium, short")


def test_an_interval_of_a_rate_is_never_below_nothing() -> None:
    """Four runs of which one did nearly all: Student's interval alone would reach below 0."""
    requirement = parse_requirement("throughput>=5")
    repeats = [Repeat(100, [None], [value], 0.0) for value in (0.1, 0.1, 0.1, 9.0)]
    (evidence,) = verdict_of(1.0, [requirement], repeats, 1, 0.95).evidence
    assert evidence.low == 0.0
    assert evidence.high is not None
    assert evidence.high > 9
    assert evidence.verdict == "open"
