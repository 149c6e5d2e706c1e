"""Ledgers of drawn lengths and of recipes: their figures, that they are the same everywhere."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from random import Random
from statistics import fmean, median, pstdev
from typing import Any

import msgspec
import pytest

from ledgers.arrivals import Pacing
from ledgers.errors import InputError
from ledgers.ledger import Ledger
from ledgers.lengths import Class, Mix, parse_class, parse_pair
from ledgers.making import draw_ledger, recipe_ledger
from ledgers.profile import parse_stages
from ledgers.recipes import RECIPES, Made, make_requests
from ledgers.settings import HARDWARE, Hardware

S = 1_000_000_000
TRACE = ([100, 200, 300], [1, 2, 3])


def no_trace(source: str) -> Any:
    raise AssertionError(f"{source} is read")


def drawn(prompt: str, output: str | None, count: int, seed: int = 0) -> list[tuple[int, int]]:
    draw = parse_pair(prompt, output, lambda source: TRACE, "--prompt-len", "--output-len")
    return [row[1:] for row in Mix([Class(None, Fraction(1), draw)]).draw(count, seed)]


# --- distributions


def test_fixed_lengths() -> None:
    assert drawn("512", "64", 3) == [(512, 64)] * 3


def test_uniform_lengths_have_both_ends_and_no_favourite() -> None:
    """60,000 draws of six values: each 10,000 times, give or take 5 deviations (91)."""
    counts = Counter(prompt for prompt, _ in drawn("uniform:100-105", "1", 60_000))
    assert set(counts) == set(range(100, 106))
    assert all(abs(count - 10_000) < 460 for count in counts.values())


def test_uniform_lengths_are_those_of_the_uniform_draws() -> None:
    """Prompts and outputs each by a sequence of its own, so that one does not move the other."""
    prompts, outputs = Random("9:prompts"), Random("9:outputs")
    expected = [(5 + int(10 * prompts.random()), 1 + int(3 * outputs.random())) for _ in range(50)]
    assert drawn("uniform:5-14", "uniform:1-3", 50, seed=9) == expected


def test_lognormal_lengths_have_their_median_and_the_deviation_of_their_logarithm() -> None:
    """The mean is median * e^(sigma²/2). Errors of 50,000 draws: 0.4 % each; bounds are five times that."""
    prompts = [prompt for prompt, _ in drawn("lognormal:2000:0.8", "1", 50_000)]
    assert median(prompts) == pytest.approx(2000, rel=0.025)
    assert pstdev(map(math.log, prompts)) == pytest.approx(0.8, rel=0.02)
    assert fmean(prompts) == pytest.approx(2000 * math.exp(0.32), rel=0.025)
    assert min(prompt for prompt, _ in drawn("lognormal:1:5", "1", 1_000)) == 1
    assert drawn("lognormal:70:0", "1", 2) == [(70, 1)] * 2


def test_lognormal_lengths_are_those_of_the_polar_method() -> None:
    random = Random("4:prompts")

    def normal() -> float:
        while True:
            x, y = 2 * random.random() - 1, 2 * random.random() - 1
            if 0 < x * x + y * y < 1:
                return x * math.sqrt(-2 * math.log(x * x + y * y) / (x * x + y * y))

    expected = [(round(1000 * math.exp(0.5 * normal())), 1) for _ in range(200)]
    assert drawn("lognormal:1000:0.5", "1", 200, seed=4) == expected


def test_lengths_of_a_trace_are_drawn_in_pairs_unless_only_one_is_wanted() -> None:
    pairs = {(100, 1), (200, 2), (300, 3)}
    assert set(drawn("empirical:x", "empirical:x", 300)) == set(drawn("empirical:x", None, 300)) == pairs
    assert len(set(drawn("empirical:x", "empirical:y", 300))) == 9
    assert set(drawn("7", "empirical:x", 300)) == {(7, 1), (7, 2), (7, 3)}
    counts = Counter(drawn("empirical:x", None, 30_000))
    assert all(abs(count - 10_000) < 410 for count in counts.values())  # five deviations


@pytest.mark.parametrize(
    ("prompt", "output", "fault"),
    [
        ("x", "1", r"--prompt-len: 'x' is not N, uniform:LEAST-MOST"),
        ("0", "1", "--prompt-len: '0': lengths are from 1 to 1,000,000,000"),
        ("1", "1000000001", "--output-len: '1000000001': lengths are from 1"),
        ("99999999999999999999", "1", "--prompt-len: .*: lengths are from 1 to 1,000,000,000"),
        ("uniform:9-3", "1", "in order"),
        ("uniform:3", "1", "is not N"),
        ("-5", "1", "is not N"),
        ("lognormal:100:6", "1", "SIGMA is '6', not a number from 0 to 5"),
        ("lognormal:100:1.2.3", "1", "SIGMA is '1.2.3'"),
        ("lognormal:100", "1", "is not N"),
        ("5", None, "--output-len: is needed, for only empirical:TRACE brings outputs"),
    ],
)
def test_lengths_that_cannot_be_drawn_are_refused(prompt: str, output: str | None, fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        parse_pair(prompt, output, no_trace, "--prompt-len", "--output-len")


# --- mixes


def test_classes_are_as_often_as_their_shares_and_have_their_lengths() -> None:
    """4 to 1: of 50,000 requests 10,000 are long, give or take 5 deviations (89)."""
    classes = [
        parse_class("short=4, uniform:50-200, 40", no_trace),
        parse_class("long=1,2000,800", no_trace),
    ]
    rows = list(Mix(classes).draw(50_000, 0))
    counts = Counter(name for name, _, _ in rows)
    assert abs(counts["long"] - 10_000) < 450
    assert {row for row in rows if row[0] == "long"} == {("long", 2000, 800)}
    assert {prompt for name, prompt, _ in rows if name == "short"} == set(range(50, 201))


def test_a_class_is_chosen_by_its_draw() -> None:
    classes = [parse_class(f"{name}={share},1,1", no_trace) for name, share in zip("abc", "235", strict=True)]
    random = Random("6:classes")
    draws = [random.random() for _ in range(300)]
    expected = ["a" if draw < 0.2 else "b" if draw < 0.5 else "c" for draw in draws]
    assert [name for name, _, _ in Mix(classes).draw(300, 6)] == expected


def test_other_outputs_leave_the_prompts_as_they_were() -> None:
    mixes = [
        Mix([parse_class("a=1,uniform:1-99,5", no_trace), parse_class(f"b=1,lognormal:99:1,{out}", no_trace)])
        for out in ("5", "uniform:1-9")
    ]
    one, other = ([row[:2] for row in mix.draw(100, 0)] for mix in mixes)
    assert one == other


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("short", "--mix: 'short' is not NAME=SHARE,PROMPT,OUTPUT"),
        ("=1,2,3", "is not NAME=SHARE,PROMPT,OUTPUT"),
        ("a=1", "is not NAME=SHARE,PROMPT,OUTPUT"),
        ("a=0,1,1", "--mix a: the share is '0', not a number above 0"),
        ("a=x,1,1", "--mix a: the share is 'x'"),
        ("a=1,5", "--mix a: output: is needed, for only empirical:TRACE brings outputs"),
        ("a=1,5,y", "--mix a: output: 'y' is not N"),
    ],
)
def test_a_class_that_cannot_be_meant_is_refused(text: str, fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        parse_class(text, no_trace)


# --- ledgers


def made(count: int | None, pacing: Pacing, **limits: int) -> Ledger:
    mix = Mix([parse_class("a=1,uniform:1-100,uniform:1-10", no_trace)])
    return draw_ledger(mix, count, pacing.process or "poisson", pacing, **limits)


def test_drawn_lengths_come_at_drawn_times() -> None:
    ledger = made(4, Pacing(Fraction(2), arrival="constant"))
    assert [(row.id, row.arrival_ns) for row in ledger.rows] == [
        ("R01", 0),
        ("R02", S // 2),
        ("R03", S),
        ("R04", 3 * S // 2),
    ]
    assert {row.class_ for row in ledger.rows} == {"a"}


def test_limits_cut_what_is_longer() -> None:
    pacing = Pacing("inf")
    free, cut = made(200, pacing).rows, made(200, pacing, max_prompt=30, max_output=4).rows
    assert [(row.prompt_tokens, row.output_tokens) for row in cut] == [
        (min(row.prompt_tokens, 30), min(row.output_tokens, 4)) for row in free
    ]


def test_stages_tell_how_many() -> None:
    assert len(made(None, Pacing(stages=parse_stages("5:10"), arrival="constant")).rows) == 50
    with pytest.raises(InputError, match="--num-prompts: is needed"):
        made(None, Pacing("inf"))


# --- recipes


def recipe(name: str, n: int = 400, seed: int = 0, hardware: str = "medium") -> list[Made]:
    return make_requests(name, n, seed, HARDWARE[hardware])


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("hardware", HARDWARE)
def test_a_recipe_makes_what_the_hardware_can_hold_in_order_of_time(name: str, hardware: str) -> None:
    rows = recipe(name, hardware=hardware)
    assert len(rows) == 400
    assert rows[0].arrival_ns == 0
    assert all(a.arrival_ns <= b.arrival_ns for a, b in pairwise(rows))
    assert min(min(row.prompt_tokens, row.output_tokens) for row in rows) >= 1
    assert max(row.prompt_tokens + row.output_tokens for row in rows) <= HARDWARE[hardware].kv_budget_tokens


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_depends_on_number_seed_and_hardware_alone(name: str) -> None:
    assert recipe(name) == recipe(name)
    assert recipe(name, seed=1) != recipe(name)
    assert len(recipe(name, n=1)) == 1
    assert RECIPES[name].provokes.endswith((".", ")"))
    ledger = recipe_ledger(name, 30, 0, HARDWARE["toy"])
    assert [row.arrival_ns for row in ledger.rows] == [row.arrival_ns for row in recipe(name, 30, 0, "toy")]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_for_the_smallest_hardware(name: str) -> None:
    tiny = Hardware(prefill_tokens_per_tick=1, decode_slots=1, kv_budget_tokens=2)
    assert {row[2:] for row in make_requests(name, 40, 0, tiny)} == {(1, 1)}
    with pytest.raises(InputError, match="needs 2 tokens"):
        make_requests(name, 1, 0, msgspec.structs.replace(tiny, kv_budget_tokens=1))


def test_short_prompts_come_while_the_long_one_in_front_is_prefilled() -> None:
    """Of medium hardware 20 ticks of 2,048 tokens, 0.4 s."""
    rows = recipe("long-first", 20)
    for round_ in (rows[:10], rows[10:]):
        first, *shorts = round_
        assert (first.class_, first.prompt_tokens) == ("long", 20 * 2_048)
        assert {(row.class_, row.prompt_tokens) for row in shorts} == {("short", 256)}
        assert all(0 <= row.arrival_ns - first.arrival_ns < 0.4 * S for row in shorts)
    assert rows[10].arrival_ns > 2 * rows[9].arrival_ns


def test_bursts_come_out_of_silence() -> None:
    """24 to 72 requests within a second, then at least the three seconds or so that their prefill takes."""
    rows = recipe("bursts", 2_000)
    ends = [i for i, (a, b) in enumerate(pairwise(rows), 1) if b.arrival_ns - a.arrival_ns > S]
    bursts = [rows[a:b] for a, b in pairwise([0, *ends])]
    assert len(bursts) > 25
    assert all(24 <= len(burst) <= 72 for burst in bursts)
    assert all(burst[-1].arrival_ns - burst[0].arrival_ns < S for burst in bursts)
    work_s = [sum(row.prompt_tokens for row in burst) / 2_048 * 0.02 for burst in bursts]
    assert fmean(work_s) == pytest.approx(3, rel=0.2)


def test_lengths_are_of_two_kinds() -> None:
    rows = recipe("mixed-lengths", 2_000)
    shorts = [row for row in rows if row.class_ == "short"]
    longs = [row for row in rows if row.class_ == "long"]
    assert len(longs) == pytest.approx(400, abs=90)  # five deviations
    assert max(row.prompt_tokens for row in shorts) < min(row.prompt_tokens for row in longs)
    assert max(row.output_tokens for row in shorts) < min(row.output_tokens for row in longs)


def test_reserves_are_near_what_the_memory_holds() -> None:
    """64 slots, 200,000 tokens: a slot's share is 3,125. Over their time requests hold all, on average."""
    rows = recipe("kv-limit", 1_600)
    reserves = {
        name: [r.prompt_tokens + r.output_tokens for r in rows if r.class_ == name]
        for name in ("usual", "large")
    }
    assert set(reserves["large"]) == {25_000}
    assert len(reserves["large"]) == 100
    assert (min(reserves["usual"]) >= 3_125, max(reserves["usual"]) <= 4_687) == (True, True)
    held = sum(
        (r.prompt_tokens + r.output_tokens) * (r.output_tokens + r.prompt_tokens / 2_048) for r in rows
    )
    assert held / (rows[-1].arrival_ns / (0.02 * S)) == pytest.approx(200_000, rel=0.15)


def test_impatient_clients_want_half_more_than_the_prefill_can_do() -> None:
    rows = recipe("impatient", 2_000)
    ticks = rows[-1].arrival_ns / (0.02 * S)
    assert sum(row.prompt_tokens for row in rows) / 2_048 / ticks == pytest.approx(1.5, rel=0.15)
    flags = RECIPES["impatient"].flags
    assert flags is not None
    assert flags(HARDWARE["medium"]) == (
        "--first-token-timeout 1 --cancel-rate 0.3 --cancel-after 2 --client-retries 3"
    )


def test_a_recipe_is_the_same_on_every_machine() -> None:
    """Written down once: whoever gets others has another machine's arithmetic, or changed the draws."""
    assert [tuple(row) for row in recipe("mixed-lengths", 3, 1, "medium")] == [
        (0, "short", 141, 9),
        (288715209, "short", 171, 4),
        (436862509, "long", 7870, 255),
    ]
