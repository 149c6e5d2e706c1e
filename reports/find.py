"""Runs a search: for each setting the rates that it needs, each by as many repeats as its verdict needs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ledgers.errors import InputError
from ledgers.options import ledger_from
from ledgers.requirements import Requirement
from ledgers.units import NS_PER_S
from reports.grid import Setting, options_at, rounded
from reports.points import Server, measured_rows, simulated
from reports.pool import Map
from reports.search import Answer, Verdict, answer, next_rate
from reports.sweep import capacity_rps, plain
from reports.trial import LEAST_REPEATS, Candidate, Repeat, repeat_of, trial

LOWEST, HIGHEST = Fraction(1, 50), Fraction(5, 4)  # of the capacity, where no rates are given
Tell = Callable[[str], None]
Judged = Callable[[Candidate], None]


class Search(msgspec.Struct, frozen=True):
    """What is asked for. `rates` are the lowest and the highest to try; None begins from the capacity.

    `repeatable`: a further repeat has other requests; measuring the same again would show no others.
    """

    options: Mapping[str, Any]
    requirements: Sequence[Requirement]
    rates: tuple[Fraction, Fraction] | None
    resolution: float
    confidence: float
    max_requests: int
    server: Server | None = None
    keep_runs: bool = False
    repeatable: bool = True


class Found(msgspec.Struct, frozen=True):
    """The answer for one setting, with everything that was tried, in order of rate."""

    setting: dict[str, Any]
    label: str
    answer: Answer
    requests: int
    candidates: list[Candidate]


def check(search: Search) -> None:
    """InputError for what no sample can show, and for another's load."""
    if search.options["stages"]:
        raise InputError("--stages: --find sets the rates itself, so leave it out")
    for requirement in search.requirements:
        if requirement.share == 1:
            nearly = {"error_rate": "error_rate<=0.001", "attainment": "attainment>=0.999"}
            instead = nearly.get(requirement.metric, requirement.text.replace(".max", ".p99.9"))
            raise InputError(
                f"--require '{requirement.text}': no sample shows it of all requests: say {instead}"
            )


def distinct(requirements: Sequence[Requirement]) -> list[Requirement]:
    """Each once, however it is written: all that are judged share one confidence."""
    return list({msgspec.structs.replace(each, text=""): each for each in requirements}.values())


def find(
    search: Search,
    setting: Setting,
    label: str,
    runs: Path,
    each: Map,
    tell: Tell,
    judged: Judged,
    known: Mapping[float, Candidate],
) -> Found:
    """The highest rate at which a setting meets every requirement. `judged` has each rate as it is done.

    What is `known` of an earlier attempt is taken as it is.
    """
    low, high = search.rates or _bracket(search, setting)
    _check_length(search, setting, low, tell)
    verdicts: dict[Fraction, Verdict] = {}
    candidates: dict[Fraction, Candidate] = {}
    lifts: dict[Fraction, Fraction] = {}
    while (rate := next_rate(verdicts, low, high, search.resolution, lifts)) is not None:
        before = known.get(float(rate))
        found = before or judge_rate(search, setting, rate, runs, each)
        verdicts[rate], candidates[rate] = found.verdict, found
        if found.lift is not None:  # a step further than would just do, or its verdict would stay open
            lifts[rate] = Fraction(found.lift * (1 + search.resolution))
        if before is not None:
            continue
        judged(found)
        why = f" ({found.reason})" if found.reason else ""
        tell(f"{label}{': ' * bool(label)}{float(rate):g} req/s {found.verdict}{why}")
    return Found(
        setting={} if search.server and search.server.has_own_settings else plain(setting),
        label=label,
        answer=answer(verdicts, search.resolution, lifts),
        requests=sum(candidate.requests for candidate in candidates.values()),
        candidates=[candidates[rate] for rate in sorted(candidates)],
    )


def _bracket(search: Search, setting: Setting) -> tuple[Fraction, Fraction]:
    capacity = capacity_rps(search.options, [setting], "--find")
    return rounded(float(LOWEST) * capacity), rounded(float(HIGHEST) * capacity)


def _check_length(search: Search, setting: Setting, low: Fraction, tell: Tell) -> None:
    """InputError if the fewest repeats are too many requests; says how long measuring them may take."""
    ledger = ledger_from(options_at(search.options, setting, low, search.options["seed"]))
    least = len(ledger.rows) * (LEAST_REPEATS if search.repeatable else 1)
    if least > search.max_requests:
        raise InputError(
            f"--max-requests {search.max_requests:,}: to judge a rate takes {least:,} requests at least, "
            f"with {len(ledger.rows):,} in the ledger"
        )
    if search.server is not None and ledger.rows:
        span_s = max(row.arrival_ns or 0 for row in ledger.rows) / NS_PER_S
        most = search.max_requests // len(ledger.rows) if search.repeatable else 1
        each = least // len(ledger.rows)
        tell(
            f"a rate takes from {each} runs ({_time(each * span_s)} at {float(low):g} req/s, the slowest) "
            f"to {most} ({_time(most * span_s)})"
        )


def _time(s: float) -> str:
    return f"{s:.0f} s" if s < 120 else f"{s / 60:.0f} min" if s < 7_200 else f"{s / 3_600:.0f} h"


def judge_rate(search: Search, setting: Setting, rate: Fraction, runs: Path, each: Map) -> Candidate:
    """The verdict on one rate; what is measured for it goes below `runs`."""

    def run(numbers: range) -> list[Repeat]:
        seeds = [search.options["seed"] + k for k in numbers]
        if search.server is None:
            work = partial(_simulate, dict(search.options), search.requirements, setting, rate)
            return list(each(work, seeds))
        return [_measure(search, setting, rate, seed, runs) for seed in seeds]

    return trial(
        float(rate), search.requirements, search.confidence, search.max_requests, run, draws=search.repeatable
    )


def _simulate(
    options: dict[str, Any], requirements: Sequence[Requirement], setting: Setting, rate: Fraction, seed: int
) -> Repeat:
    at = options_at(options, setting, rate, seed)
    seen = simulated(at, ledger_from(at))
    return repeat_of(requirements, seen.requests, seen.t_obs_ns)


def _measure(search: Search, setting: Setting, rate: Fraction, seed: int, runs: Path) -> Repeat:
    assert search.server is not None
    at = options_at(search.options, setting, rate, seed)
    directory = runs / f"{float(rate):.12g}-{seed}"
    seen = measured_rows(at, search.server, directory)
    if not search.keep_runs:
        shutil.rmtree(directory)
    return repeat_of(
        search.requirements,
        seen.requests,
        seen.t_obs_ns,
        lost=seen.without_row,
        client_limited=seen.client_limited,
    )
