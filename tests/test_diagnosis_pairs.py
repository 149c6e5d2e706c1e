"""The rules of diagnosis over a run beside a baseline: each with a cause planted, and with a near miss."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest

from ledgers.rows import RequestRow, decode_row, encode
from ledgers.rundir import RunConfig
from ledgers.settings import Slo
from reports.diagnosis import diagnose
from reports.diagnosis_changes import change
from tests.diagnosed import (
    AT_ONCE,
    ROOMY,
    answered,
    by_hand,
    figure,
    found,
    read,
    requests,
    silent,
    simulated,
    staged,
    unable,
    value,
)


def poisson(count: int, rate: float, prompt: int = 24, output: int = 4) -> list[RequestRow]:
    """The same draws at every rate, stretched."""
    draws, now = Random(7), 0.0
    rows = requests(count, 0, [prompt], [output])
    for row in rows:
        row.arrival_ns = round(now / rate * 1e9)
        now += draws.expovariate(1)
    return rows


def test_a_higher_rate_waits_for_admission_before_it_decodes_slower(tmp_path: Path) -> None:
    """Prefill takes a tick for each: at 9 per second it queues, at 2 it does not, TPOT is a tick at both."""
    settings = {**AT_ONCE, "max_batch": 1}
    slow, fast = (simulated(tmp_path / str(r), poisson(200, r), **settings) for r in (2, 9))
    finding = found(fast, "ttft-up", slow)
    assert finding.title == "TTFT up, TPOT steady: requests wait for admission"
    assert value(finding, "TPOT, mean") == figure(finding, "TPOT, mean").before == 100
    queue, ttft = (value(finding, f"{name}, mean") for name in ("queue", "TTFT"))
    assert ttft - queue == pytest.approx(100)  # one tick of prefill, and a turn at once
    assert value(finding, "TTFT, difference, low") > 0
    assert silent(slow, "ttft-up", slow)
    assert silent(slow, "ttft-up", fast)  # down is not up


def test_longer_prompts_are_told_from_a_queue(tmp_path: Path) -> None:
    """72 tokens in place of 24, two ticks more of prefill, where there is no queue."""
    short, long = (
        simulated(tmp_path / str(prompt), requests(40, 2, [prompt]), **AT_ONCE) for prompt in (24, 72)
    )
    finding = found(long, "ttft-up", short)
    assert finding.title == "TTFT up, TPOT steady: longer prompts take longer to prefill"
    assert figure(finding, "prefill, mean").before == 100
    assert value(finding, "prefill, mean") == 300
    assert figure(finding, "prompt, mean").before == 24


@pytest.mark.parametrize(
    ("policy", "parts", "told"),
    [
        ("chunked", (50, 250, 0), "decode-first squeeze: decode leaves prefill fewer slots"),
        ("continuous", (50, 250, 0), "prompts of the same length take longer to prefill, in larger batches"),
        ("continuous", (50, 100, 200), "decode-first squeeze: prefilled requests wait for a slot"),
        ("continuous", (250, 100, 0), "requests wait for admission"),
    ],
)
def test_the_part_that_grew_tells_the_cause(
    policy: str, parts: tuple[float, float, float], told: str, tmp_path: Path
) -> None:
    """At the same prompts and TPOT, from 50 + 100 + 0 ms."""
    config = RunConfig(policy=policy)
    before = by_hand(tmp_path / "a", [staged(i, 50, 100, 0) for i in range(40)], config, "served")
    after = by_hand(tmp_path / "b", [staged(i, *parts) for i in range(40)], config, "served")
    assert found(after, "ttft-up", before).title == f"TTFT up, TPOT steady: {told}"


def test_a_client_alone_cannot_tell_why_ttft_is_up(tmp_path: Path) -> None:
    """It is up, and the finding says what it takes to know more."""
    before, after = (
        by_hand(tmp_path / str(ttft), [answered(i, ttft) for i in range(40)]) for ttft in (100, 200)
    )
    finding = found(after, "ttft-up", before)
    assert "A client cannot see" in finding.cannot_tell
    assert finding.confidence == 0.95


def test_where_both_are_up_neither_rule_speaks(tmp_path: Path) -> None:
    """TTFT and TPOT twice as long: what separates the causes is that one of them stays."""
    before, after = (
        by_hand(tmp_path / str(times), [answered(i, 100 * times, 20 * times) for i in range(40)])
        for times in (1, 2)
    )
    assert silent(after, "ttft-up", before)
    assert silent(after, "tpot-up", before)


def test_what_chance_explains_is_rarely_called_a_rise() -> None:
    """Of two runs alike, one is said to be up in 2.5 %: a side of the interval of 95 %."""
    ups = covered = 0
    for seed in range(1000):
        draws = Random(seed)
        before, after = ({f"R{i}": draws.expovariate(1) for i in range(40)} for _ in range(2))
        difference = change(before, after)
        assert difference
        ups += difference.up
        covered += difference.low <= 0 <= difference.high
    assert 930 <= covered <= 970
    assert 10 <= ups <= 40


def test_turns_in_the_slots_make_tpot_longer(tmp_path: Path) -> None:
    """Long prompts hide the wait for a turn in TTFT; TPOT shows that six share three slots."""
    hardware = msgspec.structs.replace(ROOMY, decode_slots=3)
    settings = {**AT_ONCE, "hardware": hardware, "max_batch": 6}
    few, many = (
        simulated(tmp_path / str(slots), rows, **{**settings, "hardware": of})
        for slots, of, rows in (
            (64, ROOMY, crowds(6)),
            (3, hardware, crowds(6)),
        )
    )
    finding = found(many, "tpot-up", few)
    assert (
        finding.title
        == "TTFT steady, TPOT up: an unstable decode share: more requests take turns in the slots"
    )
    turns = figure(finding, "turns per prefilled request and tick")
    assert turns.before == 1
    assert turns.value == pytest.approx(0.5, abs=0.02)
    assert silent(few, "tpot-up", few)


def crowds(size: int) -> list[RequestRow]:
    """Requests that come so many at a time, with 40 ticks of prefill together."""
    rows = requests(8 * size, 0, [960 // size], [30])
    for i, row in enumerate(rows):
        row.arrival_ns = i // size * 20_000_000_000
    return rows


def test_longer_ticks_are_named(tmp_path: Path) -> None:
    """The same TTFT in ms with ticks of 110 ms is not to be had: but TPOT of hand-made rows is."""
    before, after = (
        by_hand(
            tmp_path / str(tick_s),
            [staged(i, 0, 100, 0, tpot_ms=tick_s * 1000) for i in range(40)],
            RunConfig(policy="continuous", hardware=msgspec.structs.replace(ROOMY, tick_s=tick_s)),
            "served",
        )
        for tick_s in (0.02, 0.03)
    )
    assert found(after, "tpot-up", before).title == "TTFT steady, TPOT up: each tick takes longer"


def test_slower_tokens_with_as_many_turns_are_not_explained(tmp_path: Path) -> None:
    """Ticks say that each had a turn in every tick, before and after: so it is not that."""
    facts = [simulated(tmp_path / name, requests(40, 1), **AT_ONCE) for name in ("a", "b")]
    slower = tmp_path / "b" / "requests.jsonl"
    rows = [decode_row(line) for line in slower.read_bytes().splitlines()]
    for row in rows:
        row.last_token_ns = (row.last_token_ns or 0) + 100_000_000
    slower.write_bytes(b"".join(encode(row) + b"\n" for row in rows))
    finding = found(read(tmp_path / "b"), "tpot-up", facts[0])
    assert finding.title == "TTFT steady, TPOT up: neither a longer tick nor fewer turns explain it"


def test_longer_contexts_are_told_from_more_in_flight(tmp_path: Path) -> None:
    """TPOT that follows the context, TPOT that all share, and one that nothing explains."""
    base = by_hand(tmp_path / "base", [answered(i, prompt_tokens=100) for i in range(40)])

    def title(name: str, rows: list[RequestRow]) -> str:
        return found(by_hand(tmp_path / name, rows), "tpot-up", base).title

    contexts = [100 * (1 + i % 4) for i in range(40)]
    scan = [answered(i, tpot_ms=20 + n / 10, prompt_tokens=n) for i, n in enumerate(contexts)]
    assert "longer contexts" in title("scan", scan)
    alike = [answered(i, tpot_ms=40 + i % 3, prompt_tokens=n) for i, n in enumerate(contexts)]
    assert "longer contexts" not in title("alike", alike)
    shared = [answered(i, tpot_ms=40, gap_s=0.1) for i in range(40)]
    assert "more requests in flight" in title("shared", shared)
    slower = [answered(i, tpot_ms=23, gap_s=1.2) for i in range(40)]
    assert "neither" in title("slower", slower)


def test_more_throughput_and_less_goodput(tmp_path: Path) -> None:
    """At 12 per second the server is full, and the queue makes nearly all of them late."""
    hardware = msgspec.structs.replace(ROOMY, decode_slots=4)
    settings = {**AT_ONCE, "hardware": hardware, "max_batch": 8}
    slo = Slo(ttft_ms=600)
    low, high = (simulated(tmp_path / str(rate), poisson(300, rate, 8), slo, **settings) for rate in (6, 14))
    finding = found(high, "goodput-down", low)
    assert finding.title == "Throughput up, goodput down: most of the misses are TTFT in class (no class)"
    throughput, goodput = figure(finding, "throughput"), figure(finding, "goodput")
    assert throughput.before is not None
    assert goodput.before is not None
    assert throughput.value == high.summary["throughput_rps"] > throughput.before
    assert goodput.value == high.summary["goodput_rps"] < goodput.before
    missed = high.summary["scheduled"] - high.summary["slo_met"]
    assert value(finding, "missed: TTFT in class (no class)") == missed
    assert silent(low, "goodput-down", low)
    assert silent(low, "goodput-down", high)
    looser = simulated(tmp_path / "loose", poisson(300, 14, 8), Slo(ttft_ms=60_000), **settings)
    assert unable(looser, "goodput-down", low) == "the runs have different SLOs"


def test_few_misses_prove_no_loss_of_goodput(tmp_path: Path) -> None:
    """Four of thirty, in a row, against none, which chance may do; of 20 requests no word."""
    before, after = (
        by_hand(
            tmp_path / str(missed),
            [answered(i, 900 if i < missed else 100, gap_s=gap_s) for i in range(30)],
            RunConfig(slo=Slo(ttft_ms=500)),
        )
        for missed, gap_s in ((0, 1.0), (4, 0.93))
    )
    assert after.summary["throughput_rps"] > 1.05 * before.summary["throughput_rps"]
    assert after.summary["goodput_rps"] < 0.95 * before.summary["goodput_rps"]
    assert silent(after, "goodput-down", before)
    few = by_hand(tmp_path / "few", [answered(i) for i in range(20)], RunConfig(slo=Slo(ttft_ms=500)))
    assert unable(few, "goodput-down", before) == "20 scheduled requests, needs 25"


def test_more_use_without_a_wait_is_no_backlog(tmp_path: Path) -> None:
    """Twice the rate, evenly spaced, where each is alone: more is used, and nobody waits."""
    low, high = (simulated(tmp_path / str(gap), requests(40, gap), **AT_ONCE) for gap in (2, 1))
    assert high.summary["batch_utilization"] > 1.5 * low.summary["batch_utilization"]
    assert silent(high, "utilization-up", low)


def test_utilization_and_e2e_up_together(tmp_path: Path) -> None:
    """From half of what can be decoded to all of it: ρ, Little and the estimate stand beside the wait."""
    hardware = msgspec.structs.replace(ROOMY, decode_slots=4)
    settings = {**AT_ONCE, "hardware": hardware, "max_batch": 8}
    low, high = (simulated(tmp_path / str(rate), poisson(300, rate, 8), **settings) for rate in (5, 9.5))
    finding = found(high, "utilization-up", low)
    assert figure(finding, "batch utilization").before == low.summary["batch_utilization"]
    # 4 tokens each of 40 a second; the rate is that of the draws, of which the last one ends the span.
    rate = 299 / high.summary["arrivals_s"]
    assert value(finding, "load ρ of decode") == pytest.approx(rate / 10)
    assert value(finding, "C_s of the demand for decode") == 0
    rho = rate / 10
    assert value(finding, "M/G/1 wait for decode") == pytest.approx(rho / (1 - rho) / 2 * 100)
    assert value(finding, "X·W by Little's law") == pytest.approx(high.summary["concurrency_mean"])
    assert silent(low, "utilization-up", low)


def test_runs_of_one_ledger_are_compared_request_by_request() -> None:
    """Every request 10 ms slower is certain, however much they differ from each other."""
    before = {f"R{i}": 100.0 * (1 + i % 7) for i in range(40)}
    found = change(before, {id: ms + 10 for id, ms in before.items()})
    assert found
    assert found.paired
    assert (found.low, found.high) == pytest.approx((10, 10))
    little = change(before, {id: ms * 1.05 for id, ms in before.items()})
    assert little
    assert little.low > 0
    assert little.steady
    assert not little.up
    other = change(before, {f"other {id}": ms + 10 for id, ms in before.items()})
    assert other
    assert not other.paired
    assert other.low < 0 < other.high


def test_an_interval_by_hand() -> None:
    """Five batches of five, of means 1 to 5: t of 4 degrees of freedom, 2.7764, times 1.5811/√5."""
    flat = {f"R{i}": 0.0 for i in range(25)}
    found = change(flat, {f"R{i}": float(i // 5 + 1) for i in range(25)})
    assert found
    assert (found.low, found.high) == pytest.approx((3 - 1.9632, 3 + 1.9632), abs=1e-3)
    assert change(flat, dict(list(flat.items())[:24])) is None


def test_a_rise_is_rarely_seen_in_two_queues_alike() -> None:
    """Waits that go on from one batch to the next widen the interval: at most 6 % of 300 runs are up."""
    ups = 0
    for seed in range(300):
        draws = Random(seed)
        before, after = ({f"{side}{i}": ms for i, ms in enumerate(waits(draws, 200))} for side in "ab")
        difference = change(before, after)
        assert difference
        ups += difference.low > 0
    assert ups <= 0.06 * 300


def waits(draws: Random, count: int) -> list[float]:
    """In a queue of one server at a load of 0.6."""
    found, wait = [], 0.0
    for _ in range(count):
        found.append(wait)
        wait = max(0.0, wait + draws.expovariate(1) - draws.expovariate(0.6))
    return found


def test_a_run_against_itself_has_no_pair_findings(tmp_path: Path) -> None:
    """Whatever is wrong with it."""
    facts = simulated(tmp_path / "run", poisson(200, 30), Slo(ttft_ms=100), **AT_ONCE)
    diagnosis = diagnose(facts, facts)
    assert diagnosis.findings
    assert {"ttft-up", "tpot-up", "goodput-down", "utilization-up"} <= {*diagnosis.nothing}
