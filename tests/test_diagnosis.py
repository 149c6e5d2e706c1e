"""The rules of diagnosis over one run: each with a cause planted, and with a near miss."""

from __future__ import annotations

import csv
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from ledgers.health import HealthSample
from ledgers.intervals import share_of_batches, wilson
from ledgers.rows import RequestRow
from ledgers.rundir import RunConfig
from ledgers.settings import PRESETS, Hardware, Slo
from ledgers.summary import write_summary
from ledgers.traffic import Traffic, TrafficClass
from ledgers.units import to_ns
from reports.diagnosis import PAIRS, RULES, diagnose
from reports.diagnosis_facts import Facts
from reports.diagnosis_outcomes import attainment_apart
from tests.diagnosed import (
    AT_ONCE,
    ROOMY,
    TOY,
    S,
    answered,
    by_hand,
    found,
    read,
    requests,
    silent,
    simulated,
    staged,
    unable,
    value,
)


def toy(path: Path, preset: str, policy: str) -> Facts:
    """The toy ledger, stretched to the rate of a preset."""
    lines = list(csv.DictReader((TOY / "toy_ledger.csv").read_text().splitlines()))
    rate, span = float(PRESETS[preset].request_rate), float(lines[-1]["at"])
    rows = [
        RequestRow(
            id=line["id"],
            class_=line["class"],
            prompt_tokens=int(line["prompt_tokens"]),
            output_tokens=int(line["output_tokens"]),
            arrival_ns=round(float(line["at"]) / span * 15 / rate * 1e9),
        )
        for line in lines
    ]
    return simulated(path, rows, PRESETS[preset].slo, to_ns(PRESETS[preset].tail_s), policy=policy)


def test_who_blocked_whom_in_the_toy_one_at_a_time(tmp_path: Path) -> None:
    """R01 is prefilled in tick 0 and emits in ticks 1 to 12, R02 starts in tick 12: in ticks 1 to 11 R02 to
    R07, who come by then, wait beside two or three idle slots.
    """
    facts = toy(tmp_path / "run", "head-of-line", "immediate")
    assert facts.waits
    top = facts.waits.blockers[0]
    assert (top.id, top.ticks, top.causes) == ("R01", 11, {"service": 11})
    assert (top.victims, top.victim_count) == (["R02", "R03", "R04", "R05", "R06"], 6)
    finding = found(facts, "head-of-line")
    assert "R01 (prompt 18, output 12) kept 6 waiting" in finding.title
    # R16 waits to the last. Each keeps others for as many ticks as it has tokens, R01 for one less;
    # the nine that do so in at least three ticks: 11 + 3 + 5 + 4 + 8 + 3 + 6 + 3 + 4.
    assert value(finding, "ticks with idle slots in which one kept others waiting") == 47


def test_who_blocked_whom_in_the_toy_in_static_batches(tmp_path: Path) -> None:
    """R01 to R03 are a batch: ready in tick 4, R01 emits until 15. R04 comes in tick 4, and from tick 6 on,
    when R02 is done, a slot is idle: 9 ticks in which R01 keeps R04 and who comes after.
    """
    facts = toy(tmp_path / "run", "head-of-line", "static")
    assert facts.waits
    top = facts.waits.blockers[0]
    assert (top.id, top.ticks, top.victims) == ("R01", 9, ["R04", "R05", "R06", "R07"])


@pytest.mark.parametrize("policy", ["continuous", "chunked"])
def test_nobody_is_blocked_where_latecomers_get_in(policy: str, tmp_path: Path) -> None:
    """With the same ledger: R04 waits for its batch while all slots are busy, and nobody keeps it."""
    assert silent(toy(tmp_path / "run", "head-of-line", policy), "head-of-line")


def test_a_run_without_anything_wrong_says_so(tmp_path: Path) -> None:
    """The toy at its steady rate, prefilled in chunks: nothing stands out, and no rule is left out."""
    diagnosis = diagnose(toy(tmp_path / "run", "steady", "chunked"))
    assert not diagnosis.findings
    assert {*diagnosis.nothing, *diagnosis.unable} == {*RULES}
    assert {"queueing", "head-of-line", "kv-limited"} <= {*diagnosis.nothing}
    assert diagnosis.unable["backlog"] == "7 arrivals are too few to tell"  # after it has filled up


def test_a_long_prompt_in_prefill_blocks_the_queue(tmp_path: Path) -> None:
    """Every eighth prompt takes 10 ticks of prefill, and no other batch starts; at 2 nobody waits."""
    prompts = [240, *[8] * 7]
    finding = found(simulated(tmp_path / "long", requests(40, 0.3, prompts), **AT_ONCE), "head-of-line")
    # R1 is prefilled in ticks 0 to 9; R2, R3, R4 come in ticks 3, 6, 9.
    assert "R1 (prompt 240, output 4) kept 3 waiting" in finding.title
    prompts[0] = 48
    assert silent(simulated(tmp_path / "short", requests(40, 0.3, prompts), **AT_ONCE), "head-of-line")


def test_the_longest_prompt_of_a_batch_is_to_blame(tmp_path: Path) -> None:
    """It is neither the first of its batch nor the last to end."""
    rows = requests(12, 0, [8, 240, 8, 8], [4, 1, 4, 4])
    for i, row in enumerate(rows):  # three at once, and one that comes three ticks later
        row.arrival_ns = i // 4 * 20 * S + i % 4 // 3 * S * 3 // 10
    facts = simulated(tmp_path / "run", rows, **AT_ONCE)
    assert facts.waits
    assert [(blocker.id, blocker.victims) for blocker in facts.waits.blockers] == [
        ("R2", ["R4"]),
        ("R6", ["R8"]),
        ("R10", ["R12"]),
    ]


def test_a_head_that_left_is_not_guessed(tmp_path: Path) -> None:
    """R2 waits for room until it is cancelled: rows do not tell of it, and no batch had to form."""
    small = msgspec.structs.replace(ROOMY, kv_budget_tokens=72)
    rows = requests(3, 0.5, [10, 10, 4], [30, 30, 4])
    settings = {**AT_ONCE, "hardware": small, "max_batch": 1, "max_wait_ns": 10 * S}
    facts = simulated(tmp_path / "run", rows, cancels={"R2": 20}, **settings)
    assert facts.waits
    assert facts.waits.waiting == {"other": 15}  # from tick 5, when R2 came; R3 would fit beside R1


def test_prefill_tokens_that_a_tick_has_no_more_of(tmp_path: Path) -> None:
    """Two slots share 4 tokens a tick: one holder gets none, so that its slot is idle while R3 waits."""
    hardware = msgspec.structs.replace(ROOMY, prefill_tokens_per_tick=4, decode_slots=2)
    facts = simulated(tmp_path / "run", requests(3, 0, [4], [3]), policy="chunked", hardware=hardware)
    assert facts.waits
    # Tick 0: R2 starves. In 1 R1 emits and R2 is prefilled, in 2 and 3 both emit, in 4 R3 gets in.
    assert facts.waits.waiting == {"tokens": 1, "slots": 3}
    assert facts.waits.idle == {"tokens": 1}


def test_what_does_not_fit_into_the_kv_budget(tmp_path: Path) -> None:
    """Of 40 tokens each, a budget of 72 takes one at a time; one of 400 takes them as they come."""
    rows = requests(40, 0.5, [10], [30])
    small = msgspec.structs.replace(ROOMY, kv_budget_tokens=72)
    finding = found(simulated(tmp_path / "small", rows, **{**AT_ONCE, "hardware": small}), "kv-limited")
    assert value(finding, "KV budget") == 72
    assert value(finding, "reserved in these ticks, mean") == pytest.approx(100 * 40 / 72)
    assert value(finding, "of the ticks with a queue") == pytest.approx(97, abs=1)
    assert silent(simulated(tmp_path / "again", rows, **{**AT_ONCE, "hardware": small}), "head-of-line")
    large = msgspec.structs.replace(ROOMY, kv_budget_tokens=400)
    assert silent(simulated(tmp_path / "large", rows, **{**AT_ONCE, "hardware": large}), "kv-limited")


def test_a_head_that_does_not_fit_blocks_those_who_would(tmp_path: Path) -> None:
    """70 of 72 tokens must wait for the 40 before; small ones behind could go beside it, and may not."""
    small = msgspec.structs.replace(ROOMY, kv_budget_tokens=72)
    rows = requests(12, 0.5, [10, 10, 4, 4], [30, 60, 4, 4])
    for i, row in enumerate(rows):
        row.arrival_ns = i // 4 * 20 * S + i % 4 * S // 2
    finding = found(simulated(tmp_path / "run", rows, **{**AT_ONCE, "hardware": small}), "head-of-line")
    # R1 emits in ticks 1 to 30. R2 comes in tick 5, R3 in 10, R4 in 15: from 10 to 29 R2 keeps them.
    blockers = [figure for figure in finding.evidence if "kept R" in figure.name]
    assert [figure.value for figure in blockers] == [21, 21, 21]
    assert blockers[0].name == (
        "R2 (prompt 10, output 60) kept R3 R4: 20 for room in the KV budget, 1 for a batch in prefill"
    )


def test_waiting_for_a_batch_to_form(tmp_path: Path) -> None:
    """Arrivals 1 s apart never fill a batch: each waits 5 ticks of 100 ms, five sixths of its TTFT of 600."""
    rows = requests(20, 1.0)
    facts = simulated(tmp_path / "wait", rows, **{**AT_ONCE, "max_wait_ns": 500_000_000})
    finding = found(facts, "forming")
    assert value(finding, "wait per request") == pytest.approx(500)
    assert value(finding, "of mean TTFT") == pytest.approx(100 * 5 / 6)
    assert value(found(facts, "queueing"), "queue, of TTFT") == pytest.approx(100 * 5 / 6)
    short = requests(20, 5.0, [240])  # a tick of waiting, and ten of prefill
    assert silent(simulated(tmp_path / "short", short, **{**AT_ONCE, "max_wait_ns": S // 10}), "forming")
    at_once = simulated(tmp_path / "none", rows, **AT_ONCE)
    assert silent(at_once, "forming")
    assert silent(at_once, "queueing")


def test_more_prefilled_than_there_are_slots(tmp_path: Path) -> None:
    """Six of 30 tokens in 3 slots take turns, so that TPOT is about two ticks; three have a turn in each."""
    hardware = msgspec.structs.replace(ROOMY, decode_slots=3, prefill_tokens_per_tick=1000)
    settings = {**AT_ONCE, "hardware": hardware, "max_batch": 8}
    crowd = [
        msgspec.structs.replace(row, arrival_ns=i // 6 * 10 * S) for i, row in enumerate(requests(24, 0))
    ]
    for row in crowd:
        row.output_tokens = 30
    finding = found(simulated(tmp_path / "crowded", crowd, **settings), "decode-share")
    assert value(finding, "decode turns per prefilled request and tick, mean") == pytest.approx(
        30.5 / 60
    )  # the last three end alone
    assert value(finding, "TPOT, mean") == pytest.approx(200, rel=0.05)
    few = [row for i, row in enumerate(crowd) if i % 6 < 3]
    assert silent(simulated(tmp_path / "few", few, **settings), "decode-share")


def test_most_of_ttft_is_after_prefill(tmp_path: Path) -> None:
    """One slot for six: the last waits 5 ticks for its first turn after one tick of prefill."""
    hardware = msgspec.structs.replace(ROOMY, decode_slots=1, prefill_tokens_per_tick=1000)
    settings = {**AT_ONCE, "hardware": hardware, "max_batch": 8}
    crowd = [
        msgspec.structs.replace(row, arrival_ns=i // 6 * 10 * S) for i, row in enumerate(requests(24, 0))
    ]
    finding = found(simulated(tmp_path / "one", crowd, **settings), "first-turn")
    # Turns 0, 1, ... 5 ticks after the end of prefill, 250 ms on average, beside the 100 of prefill.
    assert value(finding, "first decode turn, of TTFT") == pytest.approx(100 * 250 / 350)
    assert silent(simulated(tmp_path / "many", crowd, **AT_ONCE), "first-turn")


def test_more_is_asked_than_there_is(tmp_path: Path) -> None:
    """Twelve tokens a second per slot are not to be had of ticks of 100 ms; eight are."""
    hardware = msgspec.structs.replace(ROOMY, decode_slots=2)
    settings = {**AT_ONCE, "hardware": hardware}
    over = simulated(tmp_path / "over", requests(100, 0.5, [8], [12]), **settings)
    finding = found(over, "backlog")
    assert value(finding, "load ρ of decode") == pytest.approx(1.2)
    assert value(finding, "load ρ of prefill") == pytest.approx(2 * 8 / 240)
    under = simulated(tmp_path / "under", requests(100, 0.5, [8], [8]), **settings)
    assert silent(under, "backlog")


def test_a_backlog_that_a_client_sees(tmp_path: Path) -> None:
    """Each answer takes 1 % of the run longer than the one before, against all alike."""
    grows = [answered(i, ttft_ms=100 + 500 * i) for i in range(100)]
    growing = by_hand(tmp_path / "grows", grows)
    assert growing.summary["stability"]["verdict"] == "overload"
    finding = found(growing, "backlog")
    assert "grew" in finding.title
    assert finding.confidence == 0.95
    assert value(finding, "change of the number in flight, low") > 0
    assert silent(by_hand(tmp_path / "alike", [answered(i) for i in range(100)]), "backlog")
    short = by_hand(tmp_path / "short", [answered(i, gap_s=0.01) for i in range(30)])
    assert unable(short, "backlog") == short.summary["stability"]["reason"]


def test_more_in_flight_is_no_backlog_while_the_server_keeps_up(tmp_path: Path) -> None:
    """A rate that rises, and answers that take long from the first to the last."""
    rising = [answered(i, ttft_ms=3000) for i in range(50)]
    rising += [answered(200 + i, ttft_ms=3000, gap_s=0.25) for i in range(200)]
    assert "to tell" in unable(by_hand(tmp_path / "rising", rising), "backlog")
    long = by_hand(tmp_path / "long", [answered(i, ttft_ms=15_000) for i in range(100)])
    assert long.summary["completed_by_last_arrival"] < 90
    assert silent(long, "backlog")


def test_the_wait_of_a_queue_stands_beside_the_estimate(tmp_path: Path) -> None:
    """One at a time, all alike, twice as much time as is needed: ρ = 1/2, C_s = 0, W_q = 1/2 of a service."""
    diagnosis = simulated(tmp_path / "run", requests(200, 0.8), policy="immediate", hardware=ROOMY)
    from reports.diagnosis_rules import load_figures

    figures = {figure.name: figure.value for figure in load_figures(diagnosis)}
    # 8 prompt tokens take a tick, and the next may start in the tick of the fourth of 4 tokens: 0.4 s.
    assert figures["load ρ of the server"] == pytest.approx(0.5)
    assert figures["C_s of the demand for the server"] == 0
    assert figures["M/G/1 wait for the server"] == pytest.approx(200)
    assert figures["queue delay, mean"] == 0  # arrivals are even: the estimate is for Poisson's


def test_prefill_alone_is_longer_than_the_bound(tmp_path: Path) -> None:
    """48 tokens take 200 ms of prefill, 8 take 100: a bound of 150 ms is out of reach of every fourth."""
    rows = requests(40, 2.0, [48, 8, 8, 8])
    finding = found(simulated(tmp_path / "tight", rows, Slo(ttft_ms=150), **AT_ONCE), "prefill-bound")
    assert value(finding, "requests") == 10
    assert value(finding, "their prompts, mean") == 48
    assert silent(simulated(tmp_path / "loose", rows, Slo(ttft_ms=250), **AT_ONCE), "prefill-bound")
    rows = requests(200, 2.0, [48, *[8] * 199])
    assert silent(simulated(tmp_path / "one", rows, Slo(ttft_ms=150), **AT_ONCE), "prefill-bound")


def slo_run(path: Path, missed: int, **fields: Any) -> Facts:
    """Every sixtieth misses TTFT, until so many have: they do not come in clumps."""
    late = range(0, 60 * missed, 60)
    rows = [answered(i, ttft_ms=900 if i in late else 100, **fields) for i in range(200)]
    return by_hand(path, rows, RunConfig(slo=Slo(ttft_ms=500, tpot_ms=50)))


def test_which_bound_is_missed(tmp_path: Path) -> None:
    """Two of 200 are not worth a word; three are, and it is TTFT that they miss.

    Wilson's lower limit of 98.5 % by hand, of 200 / (2.0930/1.9600)^2 = 175.4 values: t/z of 20 batches.
    """
    assert silent(slo_run(tmp_path / "two", 2), "slo-misses")
    finding = found(slo_run(tmp_path / "three", 3), "slo-misses")
    assert "TTFT" in finding.title
    assert value(finding, "missed: TTFT") == 3
    assert finding.confidence == 0.95
    assert value(finding, "attainment, low") == pytest.approx(95.40, abs=0.01)


def test_failures_are_misses(tmp_path: Path) -> None:
    """Ten of twenty failed, whatever they would have taken."""
    rows = [answered(i, outcome="timeout" if i % 2 else "completed") for i in range(20)]
    finding = found(by_hand(tmp_path / "run", rows, RunConfig(slo=Slo(ttft_ms=500))), "slo-misses")
    assert value(finding, "missed: failed") == 10


def test_wilsons_interval_of_a_known_case() -> None:
    """Newcombe (1998), Statistics in Medicine 17, table I: 81 of 263, and 0 of 20."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0, 0.1611), abs=5e-5)


def test_one_class_waits_longer(tmp_path: Path) -> None:
    """Batch work at a lower priority waits; with the same rules both wait alike."""
    rows = [
        msgspec.structs.replace(row, class_="chat" if i % 2 else "batch")
        for i, row in enumerate(requests(200, 0.095))
    ]
    first = Traffic(classes={"chat": TrafficClass(priority=100), "batch": TrafficClass()})
    alike = Traffic(classes={"chat": TrafficClass(), "batch": TrafficClass()})
    settings = {**AT_ONCE, "policy": "classes", "max_batch": 1}
    finding = found(simulated(tmp_path / "first", rows, **settings, traffic=first), "unfair")
    assert finding.title == "Class batch waits longer than class chat"
    assert silent(simulated(tmp_path / "alike", rows, **settings, traffic=alike), "unfair")


def test_one_class_meets_its_slo_less_often(tmp_path: Path) -> None:
    """15 of 30 against 30 of 30; 29 of 30 proves nothing, and as little would do 10 of 20: too few."""
    for missed, count, said in ((15, 30, True), (1, 30, False), (10, 20, False)):
        late = range(1, 4 * missed, 4)  # every second one of class b
        rows = [
            answered(i, tpot_ms=90 if i in late else 20, class_="b" if i % 2 else "a")
            for i in range(2 * count)
        ]
        facts = by_hand(tmp_path / str(missed), rows, RunConfig(slo=Slo(tpot_ms=50)))
        if said:
            assert found(facts, "unfair").title == "Class b meets its SLO less often than class a"
        else:
            assert silent(facts, "unfair")


def test_misses_that_come_in_clumps_are_rarely_called_unfair() -> None:
    """Three classes of one attainment, whose misses go on for a while: at most 5 % of runs tell them apart.

    Taken for independent, as Wilson's intervals of their counts do, they are told apart in a third of them.
    """
    called = naive = 0
    for seed in range(200):
        random = Random(seed)
        classes = {name: attainment_figures(clumped(random, 400, 0.8)) for name in "abc"}
        called += attainment_apart(classes) is not None
        counts = sorted(figures["slo_met"] for figures in classes.values())
        naive += wilson(counts[0], 400)[1] < wilson(counts[-1], 400)[0]
    assert called <= 0.05 * 200
    assert naive >= 0.33 * 200


def clumped(random: Random, count: int, carried: float) -> list[int]:
    """0s and 1s, half of each on average, each of which is that before it with this probability, or new."""
    flags = [random.randrange(2)]
    for _ in range(count - 1):
        flags.append(flags[-1] if random.random() < carried else random.randrange(2))
    return flags


def attainment_figures(flags: list[int]) -> dict[str, Any]:
    """What a summary says of the attainment of so many requests."""
    interval = share_of_batches(flags)
    assert interval
    return {
        "scheduled": len(flags),
        "slo_met": sum(flags),
        "attainment": sum(flags) / len(flags),
        "intervals": {"attainment": {"effective_n": interval.effective_n}},
    }


def test_a_wait_that_nobody_notices_is_not_unfair(tmp_path: Path) -> None:
    """19 ms of TTFT against 7, and 119 against 7; by an SLO of 100 ms on TTFT, 19 is a tenth of it longer."""

    def waits(name: str, longer: float, slo: Slo) -> Facts:
        rows = [answered(i, longer if i % 2 else 7, class_="b" if i % 2 else "a") for i in range(40)]
        return by_hand(tmp_path / name, rows, RunConfig(slo=slo))

    assert silent(waits("short", 19, Slo()), "unfair")
    assert found(waits("long", 119, Slo()), "unfair").title == "Class b waits longer than class a"
    assert found(waits("tight", 19, Slo(ttft_ms=100)), "unfair").confidence is None
    assert silent(waits("loose", 19, Slo(ttft_ms=500)), "unfair")


def test_few_of_a_class_prove_nothing(tmp_path: Path) -> None:
    """Nine of one class: no word on them."""
    rows = [answered(i, ttft_ms=9000 if i < 9 else 100, class_="b" if i < 9 else "a") for i in range(40)]
    assert "10 requests in each of two classes" in unable(by_hand(tmp_path / "run", rows), "unfair")


def test_prompts_that_a_server_knew(tmp_path: Path) -> None:
    """Half of every second prompt was cached; 4 % are no reason to doubt TTFT."""
    rows = [answered(i, ttft_ms=60 if i % 2 else 100, cached_tokens=50 * (i % 2)) for i in range(20)]
    finding = found(by_hand(tmp_path / "half", rows), "prefix-cache")
    assert value(finding, "prompt tokens that were cached") == 25
    assert [figure.value for figure in finding.evidence[1:]] == [10, 60, 10, 100]
    rows = [answered(i, cached_tokens=4) for i in range(20)]
    assert silent(by_hand(tmp_path / "few", rows), "prefix-cache")
    assert "does not tell" in unable(by_hand(tmp_path / "none", [answered(0)]), "prefix-cache")


def test_failures_by_kind_and_phase(tmp_path: Path) -> None:
    """Three of one kind and one of another, the more frequent first; without one nothing is said."""
    rows = [answered(i) for i in range(20)]
    for i, (outcome, phase) in enumerate([("timeout", "first_token")] * 3 + [("http_error", "headers")]):
        rows[i].outcome, rows[i].phase, rows[i].error = outcome, phase, f"no {i}"  # type: ignore[assignment]
    finding = found(by_hand(tmp_path / "run", rows), "failures")
    kinds = [(figure.name, figure.value) for figure in finding.evidence]
    assert kinds == [
        ("of the scheduled", 20),
        ("timeout in first_token", 3),
        ("http_error in headers", 1),
    ]
    assert silent(by_hand(tmp_path / "good", [answered(0)]), "failures")


def test_retries_are_counted(tmp_path: Path) -> None:
    """Ten requests, one of which was tried three times."""
    rows = [answered(i) for i in range(10)]
    rows[0].outcome = "http_error"
    again = [answered(0, id=f"R1.{i}", retry_of="R1", due_ns=S) for i in (1, 2)]
    finding = found(by_hand(tmp_path / "run", [*rows, *again]), "retries")
    assert (value(finding, "retries"), value(finding, "attempts per request")) == (2, 1.2)
    assert silent(by_hand(tmp_path / "good", [answered(0)]), "retries")


def test_rejections_and_censoring_are_said(tmp_path: Path) -> None:
    """A queue of at most one rejects; a short tail leaves work undone; with neither nothing is said."""
    rows = requests(20, 0.05, [24])
    facts = simulated(tmp_path / "rejects", rows, **AT_ONCE, max_queue=1)
    rejected = facts.summary["rejected"]
    assert value(found(facts, "rejections"), "rejected") == rejected > 0
    cut = simulated(tmp_path / "cut", rows, tail_ns=0, **AT_ONCE)
    assert value(found(cut, "censored"), "unfinished") == cut.summary["unfinished"] > 0
    whole = simulated(tmp_path / "whole", rows, **AT_ONCE)
    assert silent(whole, "rejections")
    assert silent(whole, "censored")


def test_a_client_that_was_the_limit_is_named(tmp_path: Path) -> None:
    """A whole core used in every second; a quarter of one is no limit."""
    for share, said in ((0.99, True), (0.25, False)):
        path = tmp_path / str(share)
        by_hand(path, [answered(i) for i in range(20)])
        health = [HealthSample(t_ns=i * S, cpu_share=share) for i in range(10)]
        (path / "health.jsonl").write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in health))
        write_summary(path)
        facts = read(path)
        if said:
            assert value(found(facts, "client-limited"), "CPU of the client, mean of a core") == 99
        else:
            assert silent(facts, "client-limited")


def test_a_client_alone_cannot_see_the_queue(tmp_path: Path) -> None:
    """A measured run has neither ticks nor prefill times: the rules that need them say so."""
    diagnosis = diagnose(by_hand(tmp_path / "run", [answered(i) for i in range(40)]))
    assert diagnosis.ttft is None
    assert "a client cannot see" in diagnosis.unable["queueing"]
    for rule in ("head-of-line", "forming", "kv-limited", "decode-share"):
        assert "ticks.jsonl" in diagnosis.unable[rule]


def test_a_server_that_was_asked_tells_its_queue(tmp_path: Path) -> None:
    """Metrics of the server stand in: 80 of 100 ms in the queue, a full KV cache, preemptions."""
    path = tmp_path / "run"
    by_hand(path, [answered(i) for i in range(20)])
    samples = [
        {"t_ns": -S, "queue_sum_s": 0, "queue_count": 0, "kv_usage": 0.1, "preemptions_total": 0},
        {"t_ns": 30 * S, "queue_sum_s": 1.6, "queue_count": 20, "kv_usage": 0.99, "preemptions_total": 4},
    ]
    lines = b"".join(msgspec.json.encode(sample) + b"\n" for sample in samples)
    (path / "server_metrics.jsonl").write_bytes(lines)
    facts = read(path)
    assert value(found(facts, "queueing"), "queue, mean (server)") == pytest.approx(80)
    assert value(found(facts, "kv-limited"), "preemptions") == 4


def test_below_the_sample_size_no_rule_speaks(tmp_path: Path) -> None:
    """Nine requests of an overloaded server: only what is counted one by one can be said."""
    rows = requests(9, 0.01, [24], [20])
    facts = simulated(tmp_path / "run", rows, Slo(ttft_ms=1), policy="immediate", hardware=Hardware())
    assert not diagnose(facts).findings
    assert unable(facts, "queueing") == "9 completed requests, needs 10"
    assert {*PAIRS} <= {*diagnose(facts, facts).unable}


def test_the_parts_of_ttft_add_up(tmp_path: Path) -> None:
    """Queue, prefill and first decode turn, in means; those are the planted ones."""
    facts = by_hand(tmp_path / "run", [staged(i, 30, 50, 20) for i in range(12)], kind="served")
    split = diagnose(facts).ttft
    assert split
    assert [figure.value for figure in split] == [12, 100, 30, 50, 20]


def test_requests_that_left_no_row_are_no_misses(tmp_path: Path) -> None:
    """A run that was killed: what became of them is not known, and attainment neither."""
    path = tmp_path / "run"
    simulated(path, requests(40, 1), Slo(ttft_ms=10_000), **AT_ONCE)
    rows = (path / "requests.jsonl").read_bytes().splitlines(keepends=True)
    (path / "requests.jsonl").write_bytes(b"".join(rows[:-5]))
    assert unable(read(path), "slo-misses") == "5 requests left no row"


def test_requests_are_looked_at_in_order_of_arrival(tmp_path: Path) -> None:
    """However they ended."""
    facts = by_hand(tmp_path / "run", [answered(i) for i in (3, 0, 2, 1)])
    assert list(facts.completed["id"]) == ["R1", "R2", "R3", "R4"]


def test_nothing_is_said_of_an_empty_run(tmp_path: Path) -> None:
    """Killed before its first row: no finding, no traceback."""
    diagnosis = diagnose(by_hand(tmp_path / "run", []))
    assert not diagnosis.findings
