"""The simulator that leaps over ticks is equal to the one that takes each: rows, token times, tick rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from ledgers.ledger import Ledger
from ledgers.metrics import gaps_ns
from ledgers.rows import RequestRow, TickRow, encode
from ledgers.rundir import LedgerInfo, RunConfig, RunInfo, RunWriter, settings_config
from ledgers.settings import Hardware, SchedulerSettings, WindowSettings
from ledgers.tick_runs import TickLines, TickRun
from ledgers.traffic import Traffic, TrafficClass
from ledgers.units import to_ns
from mock_server import simulation
from mock_server.leaps import LEAPERS
from mock_server.leaps.driver import leap
from mock_server.policies import POLICIES, make_scheduler
from mock_server.simulate import simulate
from mock_server.simulation import write_simulation
from tests.memory import bytes_each
from tests.test_scheduler_golden import VECTORS, lengths
from tests.test_scheduler_golden import run as run_golden

CASES = 600  # of each policy
FAULTS = ("cut:after=2", "error-event:after=3", "malformed-event:after=1")


class Case(NamedTuple):
    """Something to simulate."""

    settings: SchedulerSettings
    requests: list[RequestRow]
    cancels: dict[str, int]


def random_case(policy: str, random: Random) -> Case:
    """From an idle machine to one where slots, prefill tokens or KV are short for a long time."""
    hardware = Hardware(
        tick_s=random.choice([0.1, 0.02, 0.033]),
        prefill_tokens_per_tick=random.choice([1, 3, 7, 24, 100]),
        decode_slots=random.choice([1, 2, 3, 4, 8]),
        kv_budget_tokens=random.choice([10, 30, 72, 200, 1000]),
    )
    settings = SchedulerSettings(
        policy,
        max_batch=random.randint(1, 5),
        max_wait_ns=random.choice([0, 50_000_000, 200_000_000, 1_000_000_000]),
        prefill_chunk=random.choice([1, 2, 5, 8, 30]),
        hardware=hardware,
        max_queue=random.choice([None, None, 1, 3]),
        max_model_len=random.choice([None, None, 20]),
        traffic=random_traffic(hardware.decode_slots, random),
    )
    requests = random_requests(hardware.tick_ns, random)
    cancels = {
        row.id: max(0, (row.arrival_ns or 0) // hardware.tick_ns + random.randint(-2, 30))
        for row in requests
        if random.random() < 0.2
    }
    return Case(settings, requests, cancels if random.random() < 0.6 else {})


def random_traffic(slots: int, random: Random) -> Traffic:
    free, classes = slots - 1, {}
    for name in random.sample(["a", "b", "*"], random.randint(0, 3)):
        reserved = random.randint(0, free)
        free -= reserved
        max_batch, max_wait_s = random.choice([None, 1, 3]), random.choice([None, 0, 0.5])
        classes[name] = TrafficClass(max_batch, max_wait_s, reserved, random.randint(-2, 2))
    return Traffic(random.choice([0.1, 1.0]), classes)


def random_requests(tick_ns: int, random: Random) -> list[RequestRow]:
    """Many at one instant, on ticks or between them, some with an outcome already, some with a fault.

    In some cases turns wait for the answer before them.
    """
    mean_gap_ns = random.choice([0, 10**7, 10**8, 5 * 10**8, 3 * 10**9])
    on_ticks, longest_prompt = random.random() < 0.3, random.choice([5, 20, 60])
    longest_output = random.choice([3, 10, 40])
    sessions = random.choice([0, 0, 1, 5])
    thinks_ns = random.choice([(0,), (0, tick_ns, 10**8, 10**9 + 7)])
    last_ns: dict[str, int] = {}  # of each session, the earliest possible arrival of its last turn
    requests, time_ns = [], 0
    for number in range(random.randint(1, 40)):
        if random.random() < 0.7:
            time_ns += int(random.expovariate(1) * mean_gap_ns)
        row = RequestRow(
            id=f"r{number}",
            class_=random.choice([None, "a", "b"]),
            prompt_tokens=random.randint(1, longest_prompt),
            output_tokens=random.randint(1, longest_output),
            arrival_ns=time_ns // tick_ns * tick_ns if on_ticks else time_ns,
        )
        if random.random() < 0.05:
            row.outcome, row.end_ns = "rejected", time_ns + random.randint(0, 10**9)
        elif random.random() < 0.1:
            row.fault, row.streamed = random.choice(FAULTS), random.choice([True, False, None])
        elif sessions:
            row.session = f"s{random.randrange(sessions)}"
            if row.session in last_ns:
                row.think_ns = random.choice(thinks_ns)
                row.arrival_ns = last_ns[row.session] + row.think_ns
            last_ns[row.session] = row.arrival_ns or 0
        requests.append(row)
    return sorted(requests, key=lambda row: row.arrival_ns or 0)


def plain(case: Case) -> tuple[list[RequestRow], list[TickRow]]:
    ticks: list[TickRow] = []
    scheduler = make_scheduler(case.settings)
    return list(simulate(scheduler, case.requests, cancels=case.cancels, on_tick=ticks.append)), ticks


def leaping(case: Case, runs: list[TickRun]) -> list[RequestRow]:
    """The rows with their token times, of which the gaps are those that were told."""
    rows, tick_ns = [], case.settings.hardware.tick_ns
    leaper = LEAPERS[case.settings.policy](case.settings)
    for row, flight in leap(case.settings, leaper, case.requests, cancels=case.cancels, on_ticks=runs.append):
        if flight:
            row.token_ns = [tick * tick_ns for tick in flight.token_ticks()]
            assert flight.gaps_ns(tick_ns) == Counter(gaps_ns(row))
        rows.append(row)
    return rows


def met(case: Case, rows: list[RequestRow], ticks: list[TickRow], runs: list[TickRun]) -> Iterator[str]:
    """Which of the things happened that are hard to get right."""
    slots = case.settings.hardware.decode_slots
    full = [tick.ready > slots for tick in ticks]
    if any(after and not before for before, after in pairwise(full)) and not full[-1]:
        yield "slots short, then not"
    if any(tick.starved for tick in ticks):
        yield "starved"
    if any(run.ticks > 3 and run.emitted for run in runs):
        yield "leapt while decoding"
    if any(run.ticks > 1 and run.prefill for run in runs):
        yield "leapt in prefill"
    ends = Counter(row.ticks.last_token for row in rows if row.ticks and row.ticks.last_token is not None)
    if max(ends.values(), default=0) > 1:
        yield "ended together"
    planned_ns = {row.id: row.arrival_ns for row in case.requests}
    if any(row.arrival_ns not in (None, planned_ns[row.id]) for row in rows):
        yield "a turn waited"
    if any(row.outcome == "not_sent" for row in rows):
        yield "a session was lost"
    for row in rows:
        if row.error in ("queue_full", "context_length_exceeded"):
            yield row.error
        if row.ticks and row.ticks.cancel is not None:
            known = (row.ticks.prefill_start, row.ticks.prefill_end)
            yield ("cancelled in queue", "cancelled in prefill", "cancelled ready")[2 - known.count(None)]


ALWAYS = {
    "leapt while decoding",
    "leapt in prefill",
    "a turn waited",
    "a session was lost",
    "queue_full",
    "context_length_exceeded",
    "cancelled in queue",
    "cancelled in prefill",
    "cancelled ready",
}
HARD = {
    "immediate": ALWAYS,
    "static": ALWAYS | {"slots short, then not", "ended together"},
    "continuous": ALWAYS | {"slots short, then not", "ended together"},
    "classes": ALWAYS | {"slots short, then not", "ended together"},
    "chunked": ALWAYS | {"starved", "ended together"},
}


@pytest.mark.parametrize("policy", POLICIES)
def test_leaping_changes_nothing(policy: str) -> None:
    """Random ledgers: each row, its token times, the order of the rows and each tick row are equal."""
    happened: Counter[str] = Counter()
    for seed in range(CASES):
        case = random_case(policy, Random(f"{policy} {seed}"))
        runs: list[TickRun] = []
        rows, ticks = plain(case)
        assert leaping(case, runs) == rows, f"seed {seed}"
        assert [tick for run in runs for tick in run.rows()] == ticks, f"seed {seed}"
        happened.update(set(met(case, rows, ticks, runs)))
    assert all(happened[what] >= 5 for what in HARD[policy]), happened


def test_who_was_passed_over_is_more_urgent_when_slots_are_enough_again() -> None:
    """In ticks 2 and 3, p and y emit and x does not; p leaves. In tick 4, x comes before y; both end."""
    traffic = Traffic(classes={"a": TrafficClass(max_batch=2), "b": TrafficClass()})
    settings = SchedulerSettings("classes", max_wait_ns=0, hardware=Hardware(decode_slots=2), traffic=traffic)
    lengths = {"p": ("a", 3), "y": ("a", 4), "x": ("b", 1)}
    requests = [
        RequestRow(id=id, class_=name, prompt_tokens=1, output_tokens=tokens, arrival_ns=0)
        for id, (name, tokens) in lengths.items()
    ]
    case = Case(settings, requests, {})
    rows = leaping(case, [])
    assert [row.id for row in rows] == ["p", "x", "y"]
    assert rows == plain(case)[0]


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_golden_vectors_hold_for_leaps_as_well(path: Path) -> None:
    """The rows and ticks of each are those that hold for the plain form, golden vectors themselves."""
    golden = json.loads(path.read_text())
    rows, ticks = run_golden(golden)
    settings = SchedulerSettings(
        golden["policy"],
        max_batch=golden["max_batch"],
        max_wait_ns=to_ns(golden["max_wait_s"]),
        hardware=Hardware(**golden["hardware"]),
    )
    planned = [
        RequestRow(
            id=row["id"],
            prompt_tokens=lengths()[row["id"]][0],
            output_tokens=lengths()[row["id"]][1],
            arrival_ns=row["arrival_ns"],
        )
        for row in golden["requests"]
    ]
    runs: list[TickRun] = []
    assert leaping(Case(settings, planned, {}), runs) == rows
    leapt = [
        {field: getattr(row, field) for field in golden["ticks"][0]} for run in runs for row in run.rows()
    ]
    assert leapt == golden["ticks"]
    assert len(ticks) == len(leapt)


def many(count: int, gap_ns: int = 5 * 10**9) -> Iterator[RequestRow]:
    for number in range(count):
        yield RequestRow(id=f"r{number}", prompt_tokens=9, output_tokens=40, arrival_ns=number * gap_ns)


@pytest.mark.parametrize("policy", POLICIES)
def test_memory_grows_with_what_is_in_flight(policy: str) -> None:
    """Of requests that come one by one nothing stays, nor of their tokens and ticks."""
    settings = SchedulerSettings(policy, hardware=Hardware(decode_slots=8, kv_budget_tokens=10_000))

    def hold(count: int) -> None:
        for _ in leap(settings, LEAPERS[policy](settings), many(count), on_ticks=lambda _: None):
            pass

    hold(3_000)  # what the first use of anything leaves is there for good, and only once
    assert bytes_each(hold, 500, 3_000) < 4


def written(path: Path, ledger: Ledger, settings: SchedulerSettings, **flags: Any) -> Mapping[str, bytes]:
    """The files of a simulation but for `run.json`, by name."""
    config = settings_config(RunConfig(), settings, WindowSettings())
    planned = LedgerInfo(name="test", requests=len(ledger.rows))
    writer = RunWriter(path, RunInfo(kind="simulated", config=config, ledger=planned))
    write_simulation(writer, ledger, settings, **flags)
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != "run.json"}


@pytest.mark.parametrize("record_tokens", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_files_are_the_same_to_the_byte(
    policy: str, record_tokens: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, ticks, histograms and the summary, against those of the plain form."""
    settings = SchedulerSettings(policy, hardware=Hardware(decode_slots=2), max_queue=8)
    ledger = Ledger(name="test", rows=list(many(50, gap_ns=3 * 10**8)))
    fast = written(tmp_path / "fast", ledger, settings, record_tokens=record_tokens)
    monkeypatch.setattr(simulation, "LEAPERS", {})
    assert fast == written(tmp_path / "plain", ledger, settings, record_tokens=record_tokens)
    assert set(fast) == {"requests.jsonl", "ticks.jsonl", "histograms.hlog", "summary.json"}


def test_recorded_events_are_those_of_the_plain_form(tmp_path: Path) -> None:
    """With them every tick is taken; all else in the rows of requests is what leaps give."""
    settings = SchedulerSettings("chunked", hardware=Hardware())
    ledger = Ledger(name="test", rows=list(many(20)))
    fast = written(tmp_path / "fast", ledger, settings)
    told = written(tmp_path / "told", ledger, settings, record_events=True)
    assert b'"events":[["arrive","r0"],["prefill_start","r0"]]' in told.pop("ticks.jsonl")
    assert fast.pop("ticks.jsonl")
    assert fast == told


@pytest.mark.parametrize("run", [
    TickRun(0, 1, 0, 0, 0, 0, 0, 0),
    TickRun(7, 1, 1, 2, 3, 4, 5, 6, 0, 8),
    TickRun(99, 3_000, 1, 0, 3, 3, 500, 60, 3),
    TickRun(10, 2_048, 0, 4, 3, 3, 500, 60, 7, 1),
])  # fmt: skip
def test_lines_of_a_run_are_its_rows_encoded(run: TickRun) -> None:
    """To the byte, one line a tick, however long the run is."""
    lines: list[bytes] = []
    file = TickLines(lines.append)
    file.add(run)
    file.flush()
    assert b"".join(lines) == b"".join(encode(row) + b"\n" for row in run.rows())
    assert b"".join(lines).count(b"\n") == run.ticks
