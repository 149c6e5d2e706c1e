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
from reports.grid import Setting, options_at, rounded
from reports.points import Server, measured_rows, simulated
from reports.pool import Map
from reports.search import Answer, Verdict, answer, next_rate
from reports.sweep import capacity_rps, draws, plain
from reports.trial import Candidate, Repeat, repeat_of, verdict_of

LOWEST, HIGHEST = Fraction(1, 50), Fraction(5, 4)  # of the capacity, where no rates are given
Tell = Callable[[str], None]


class Search(msgspec.Struct, frozen=True):
    """What is asked for. `rates` are the lowest and the highest to try; None begins from the capacity."""

    options: Mapping[str, Any]
    requirements: Sequence[Requirement]
    rates: tuple[Fraction, Fraction] | None
    resolution: float
    confidence: float
    max_requests: int
    server: Server | None = None
    keep_runs: bool = False

    @property
    def repeatable(self) -> bool:
        """Whether a further repeat can show anything new."""
        return self.server is not None or draws(self.options)


class Found(msgspec.Struct, frozen=True):
    """The answer for one setting, with everything that was tried, in order of rate."""

    setting: dict[str, Any]
    label: str
    answer: Answer
    requests: int
    candidates: list[Candidate]


def check(search: Search) -> None:
    """InputError for what no sample can show."""
    for requirement in search.requirements:
        if requirement.share == 1:
            raise InputError(
                f"--require '{requirement.text}': no sample shows it of all requests: say 99.9 % of them"
            )


def find(search: Search, setting: Setting, label: str, out: Path, each: Map, tell: Tell) -> Found:
    """The highest rate at which a setting meets every requirement."""
    low, high = search.rates or _bracket(search, setting)
    verdicts: dict[Fraction, Verdict] = {}
    candidates: dict[Fraction, Candidate] = {}
    while (rate := next_rate(verdicts, low, high, search.resolution)) is not None:
        found = judge_rate(search, setting, rate, out, each)
        verdicts[rate], candidates[rate] = found.verdict, found
        why = f" ({found.reason})" if found.reason else ""
        tell(f"{label}{': ' * bool(label)}{float(rate):g} req/s {found.verdict}{why}")
    return Found(
        setting={} if search.server and search.server.has_own_settings else plain(setting),
        label=label,
        answer=answer(verdicts, search.resolution),
        requests=sum(candidate.requests for candidate in candidates.values()),
        candidates=[candidates[rate] for rate in sorted(candidates)],
    )


def _bracket(search: Search, setting: Setting) -> tuple[Fraction, Fraction]:
    capacity = capacity_rps(search.options, [setting])
    return rounded(float(LOWEST) * capacity), rounded(float(HIGHEST) * capacity)


def judge_rate(search: Search, setting: Setting, rate: Fraction, out: Path, each: Map) -> Candidate:
    """Twice as many repeats at each look, until there is a verdict or there are no more requests."""
    repeats: list[Repeat] = []
    look, wanted = 1, 1
    while True:
        seeds = [search.options["seed"] + k for k in range(len(repeats), wanted)]
        repeats += _repeats(search, setting, rate, seeds, out, each)
        found = verdict_of(float(rate), search.requirements, repeats, look, search.confidence)
        left = search.max_requests - found.requests
        more = min(len(repeats), left // repeats[0].requests)
        if found.verdict != "open" or not search.repeatable or more < 1 or repeats[-1].client_limited:
            return found
        look, wanted = look + 1, len(repeats) + more


def _repeats(
    search: Search, setting: Setting, rate: Fraction, seeds: Sequence[int], out: Path, each: Map
) -> list[Repeat]:
    if search.server is None:
        return list(each(partial(_simulate, dict(search.options), search.requirements, setting, rate), seeds))
    return [_measure(search, setting, rate, seed, out) for seed in seeds]


def _simulate(
    options: dict[str, Any], requirements: Sequence[Requirement], setting: Setting, rate: Fraction, seed: int
) -> Repeat:
    at = options_at(options, setting, rate, seed)
    seen = simulated(at, ledger_from(at))
    return repeat_of(requirements, seen.requests, seen.t_obs_ns)


def _measure(search: Search, setting: Setting, rate: Fraction, seed: int, out: Path) -> Repeat:
    assert search.server is not None
    at = options_at(search.options, setting, rate, seed)
    directory = out / "runs" / f"{float(rate):g}-{seed}"
    seen = measured_rows(at, search.server, directory)
    if not search.keep_runs:
        shutil.rmtree(directory.parent)
    return repeat_of(search.requirements, seen.requests, seen.t_obs_ns, client_limited=seen.client_limited)
