"""The experiment of the lab against golden vectors, against `tokentick simulate`, and worked by hand."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ledgers.rows import RequestRow
from reports.diagnosis_waits import Admitted, waits
from reports.lab.experiment import experiment, makespan_ns, simulation, toy
from reports.lab.setting import POLICIES, SettingError, parse_strictly
from tests.conftest import tokentick

GOLDEN = Path(__file__).parent / "data" / "golden"
PRESETS = ("steady", "head-of-line", "busy", "overload")


def of(query: str, policy: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        each for each in experiment(parse_strictly(query))["policies"] if each["policy"] == policy
    )
    return found


def golden(preset: str, policy: str) -> dict[str, Any]:
    path = GOLDEN / f"toy_{preset.replace('-', '_')}_{policy}.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("preset", PRESETS)
def test_phases_and_ticks_are_the_golden_ones(preset: str, policy: str) -> None:
    """Another implementation made the vectors: each phase of each request, and each tick's lengths and KV."""
    right, found = golden(preset, policy), of(f"preset={preset}", policy)
    for request, row in zip(found["requests"], right["requests"], strict=True):
        phases = request["phases"]
        assert request["id"] == row["id"]
        assert request["arrival_ms"] == pytest.approx(row["arrival_ns"] / 1e6)
        for name in ("prefill_start", "prefill_end", "first_token", "last_token"):
            assert phases[f"{name}_ms"] == pytest.approx(100 * row[f"{name}_tick"])
        assert request["e2e_ms"] == pytest.approx(phases["last_token_ms"] - request["arrival_ms"])
    lengths = [
        {
            "tick": tick["tick"],
            **{name: len(tick[name]) for name in ("queue", "prefill", "ready", "emitted")},
            "kv_reserved": tick["kv_reserved"],
            "kv_cached": tick["kv_cached"],
        }
        for tick in found["ticks"]
    ]
    assert lengths == right["ticks"]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_summary_is_that_of_a_simulated_run(tmp_path: Path, policy: str) -> None:
    """The same JSON that `tokentick simulate` writes; the figures beside it are some of its own."""
    result = tokentick(
        *("simulate", "toy", "--preset=overload", f"--policy={policy}", "--out=run", "--json"), cwd=tmp_path
    )
    found = of("preset=overload", policy)
    assert json.loads(json.dumps(found["summary"])) == json.loads(result.stdout)
    figures, summary = found["figures"], found["summary"]
    assert figures["ttft_p95_ms"] == summary["ttft_ms"]["p95"]
    assert figures["slo_met"] == sum(request["met_slo"] for request in found["requests"])
    assert summary["unfinished"] == sum(request["censored"] for request in found["requests"]) > 0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("query", ["preset=busy", "preset=overload", "rate=30&batch=2&chunk=16&slo=500"])
def test_every_tick_that_is_waited_has_its_reason(query: str, policy: str) -> None:
    """As often as a request stands in the queue after a tick, one reason for that is given, and no other."""
    found = of(query, policy)
    in_queue = Counter(id for tick in found["ticks"] for id in tick["queue"])
    given = Counter(
        wait["id"] for tick in found["ticks"] for wait in tick["waits"] if wait["id"] in tick["queue"]
    )
    assert given == in_queue
    for tick in found["ticks"]:
        ids = [wait["id"] for wait in tick["waits"]]
        assert len(ids) == len(set(ids))
        assert all(wait["id"] not in wait["for"] for wait in tick["waits"])
        assert not set(ids) & set(tick["emitted"])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("query", ["preset=head-of-line", "preset=overload", "rate=40&batch=3&wait=0.5"])
def test_the_head_waits_for_what_the_diagnosis_says(query: str, policy: str) -> None:
    """The diagnosis draws the reasons from ticks of requests alone: as many ticks of the head for each.

    It tells a batch in prefill from one in service, which under immediate and static is one reason here; and
    of a head that did not fit into the batch of its tick it says that the batch keeps it.
    """
    setting = parse_strictly(query)
    run, admitted = simulation(setting, policy, toy(setting)), Admitted()
    for row in run.rows():
        admitted.add(row)
    diagnosed = waits(run.ticks(), setting.scheduler(policy), admitted)
    assert diagnosed is not None
    one_batch = policy in ("immediate", "static")
    expected: Counter[str] = Counter()
    for cause, ticks in diagnosed.waiting.items():
        expected["service" if one_batch and cause == "prefill" else cause] += ticks
    found: Counter[str] = Counter()
    for tick in of(query, policy)["ticks"]:
        started = policy == "continuous" and any("prefill_start" in event for event in tick["events"])
        if tick["queue"]:
            found["prefill" if started else tick["waits"][0]["why"]] += 1
    assert found == expected


def waits_of(query: str, policy: str, id: str) -> dict[tuple[str | None, str], int]:
    request = next(each for each in of(query, policy)["requests"] if each["id"] == id)
    return {(wait["id"], wait["why"]): wait["ticks"] for wait in request["waits_for"]}


def test_behind_a_long_one_the_queue_waits_for_it() -> None:
    """immediate: R01 is served in ticks 0 to 12, and R02, which came in tick 1, waits for it in 1 to 11."""
    assert waits_of("preset=head-of-line", "immediate", "R02") == {("R01", "service"): 11}


def test_a_batch_waits_to_be_full_for_nobody() -> None:
    """continuous: R01 comes in tick 0 and leaves in tick 2, when it has waited for 0.2 s."""
    assert waits_of("preset=head-of-line", "continuous", "R01") == {(None, "forming"): 2}


def test_under_a_full_kv_cache_the_small_wait_for_the_large_head() -> None:
    """overload, continuous: of 72 tokens 70 are reserved by five in tick 5, and 62 by four in tick 6.

    R08 needs 24, R09 7, R10 11: in tick 6 there is room for R09, which must not overtake R08.
    """
    ticks = of("preset=overload", "continuous")["ticks"]
    assert ticks[5]["queue"] == ticks[6]["queue"] == ("R08", "R09", "R10")
    found = [
        [(wait["id"], wait["why"], set(wait["for"])) for wait in tick["waits"] if wait["id"] in tick["queue"]]
        for tick in ticks[5:7]
    ]
    five, four = {"R01", "R03", "R05", "R06", "R07"}, {"R01", "R05", "R06", "R07"}
    assert found[0] == [("R08", "kv", five), ("R09", "kv", five), ("R10", "kv", five)]
    assert found[1] == [("R08", "kv", four), ("R09", "fifo", {"R08"}), ("R10", "kv", four)]


def test_more_in_the_rotation_than_slots_take_turns() -> None:
    """overload, continuous, tick 3: four are ready for three slots, and R04 is the last in the rotation."""
    tick = of("preset=overload", "continuous")["ticks"][3]
    assert tick["emitted"] == ("R01", "R02", "R03")
    assert {"id": "R04", "why": "rotation", "for": ("R01", "R02", "R03")} in tick["waits"]


def test_chunked_waits_for_slots() -> None:
    """overload, chunked, tick 2: R01 lacks 2 of 18 tokens, R02 and R03 are done; R04 came with no slot left.

    Three slots: R02 and R03 each emit a token, R01 has the last of its chunks.
    """
    tick = of("preset=overload", "chunked")["ticks"][2]
    assert tick["emitted"] == ("R02", "R03")
    waits = {wait["id"]: wait for wait in tick["waits"]}
    assert waits[tick["queue"][0]]["why"] == "slots"
    assert set(waits[tick["queue"][0]]["for"]) == {"R01", "R02", "R03"}


def test_what_would_take_too_many_ticks_is_refused() -> None:
    """150 s of arrivals in ticks of 20 ms are 7,500 of them."""
    with pytest.raises(SettingError, match="more than 3,000 ticks"):
        experiment(parse_strictly("rate=0.1&tick=0.02"))


def test_a_makespan_begins_with_the_first_arrival() -> None:
    rows = [
        RequestRow(id="R", prompt_tokens=1, output_tokens=1, arrival_ns=arrival, end_ns=end)
        for arrival, end in ((30, 90), (20, 70))
    ]
    assert makespan_ns(rows) == 70


def test_nothing_is_computed_for_the_policy_in_focus_alone() -> None:
    one, other = (experiment(parse_strictly(f"policy={policy}")) for policy in ("static", "chunked"))
    assert one["policies"] == other["policies"]
    assert (one["setting"]["policy"], other["setting"]["policy"]) == ("static", "chunked")
