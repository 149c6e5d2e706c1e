"""`tokentick sweep --find`: the answer is where theory has it, and what cannot be known is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from math import exp
from pathlib import Path
from typing import Any

import pytest

from ledgers.requirements import parse_requirement
from reports.search import Verdict, answer, next_rate
from reports.trial import Repeat, verdict_of
from tests.conftest import refused, tokentick
from tests.test_sweep import M_D_1, ONE_SERVER

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


def test_a_class_that_is_not_there_is_refused(tmp_path: Path) -> None:
    arguments = ("toy", "--find", "--request-rate", "1,20", "--require", "class=tiny e2e.p95<=1500")
    made = tokentick("sweep", *arguments, "--out", "found", "--quiet", cwd=tmp_path)
    refused(made, 2, "tiny", "long, medium, short")
