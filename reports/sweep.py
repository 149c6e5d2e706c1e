"""Runs a sweep: every point of its grid that is not done yet, simulated in a pool or measured one by one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from ledgers.errors import InputError
from ledgers.ledger import Ledger
from ledgers.options import ledger_from, scheduler_from, window_from
from ledgers.rundir import tool_version
from ledgers.telling import Teller
from reports.curves import Curve, curve
from reports.grid import Point, Setting, auto_rates, label, options_at
from reports.points import Server, measured_point, run_path, simulated, simulated_points
from reports.pool import pool
from reports.sweep_dir import SweepDirectory

TOGETHER = 8  # points for which a worker makes a ledger once
SEEDS = 8  # that all make the same ledger, where nothing is drawn


class Sweep(msgspec.Struct, frozen=True):
    """What is asked for. `server` None simulates."""

    options: Mapping[str, Any]
    axes: Mapping[str, Sequence[Any]]
    settings: Sequence[Setting]
    rates: Sequence[Fraction | None]
    points: Sequence[Point]
    repeats: int
    server: Server | None = None
    jobs: int = 1
    keep_runs: bool = False


def draws(options: Mapping[str, Any], rate: Fraction | None) -> bool:
    """Whether another seed makes another ledger: of a single request, no arrivals can be drawn."""
    if not _may_draw(options):
        return False
    made = (ledger_from(options_at(options, {}, rate, options["seed"] + k)).rows for k in range(SEEDS))
    first = next(made)
    return any(rows != first for rows in made)


def _may_draw(options: Mapping[str, Any]) -> bool:
    random_times = options["arrival"] not in (None, "constant")
    made = options["random_input_len"] and options["arrival"] is None  # Poisson, if nothing else is said
    return bool(random_times or made or options["random_range_ratio"] or _drawn_stages(options))


def _drawn_stages(options: Mapping[str, Any]) -> bool:
    return bool(options["stages"]) and options["arrival"] is None


def capacity_rps(options: Mapping[str, Any], settings: Sequence[Setting], flag: str) -> float:
    """What the best of the settings completes per second when all requests are there from the start.

    InputError that names the flag for which it is wanted, if that is nothing.
    """
    all_at_once = {**options, "arrival": None, "burstiness": 1.0, "stages": None}
    found = []
    for setting in settings:
        at = options_at(all_at_once, setting, "inf", options["seed"])
        seen = simulated({**at, "tail": "drain"}, ledger_from(at))
        done = len(seen.requests.known("e2e", range(len(seen.requests))))
        found.append(done * 1e9 / seen.t_obs_ns if seen.t_obs_ns else 0.0)
    if not max(found):
        raise InputError(f"{flag}: no request completes, so there is no capacity to begin from")
    return max(found)


def found_rates(options: Mapping[str, Any], settings: Sequence[Setting]) -> list[Fraction]:
    return auto_rates(capacity_rps(options, settings, "--request-rate auto"))


def identity(sweep: Sweep) -> dict[str, Any]:
    """What makes two sweeps the same: the ledger, every setting as it is meant, and how it is run."""
    ledger = first_ledger(sweep)
    meant = [options_at(sweep.options, setting, None, sweep.options["seed"]) for setting in sweep.settings]
    server = sweep.server
    return {
        "kind": "sweep",
        "tool": "tokentick",
        "version": tool_version(),
        "ledger": {"name": ledger.name, "sha256": ledger.sha256(), "requests": len(ledger.rows)},
        "rates": [rate and float(rate) for rate in sweep.rates],
        "settings": [] if server and server.has_own_settings else [scheduler_from(at) for at in meant],
        "window": window_from(sweep.options),
        "repeats": sweep.repeats,
        "seed": sweep.options["seed"],
        "arrival": sweep.options["arrival"],
        "burstiness": sweep.options["burstiness"],
        "speed": float(sweep.options["speed"]),
        "stages": sweep.options["stages"].words if sweep.options["stages"] else None,
        "runs_kept": sweep.keep_runs,
        "measured": server and {"server": server.shown_url, "run_words_sha256": server.words_sha256},
    }


def first_ledger(sweep: Sweep) -> Ledger:
    point = sweep.points[0]
    return ledger_from(options_at(sweep.options, {}, point.rate, point.seed))


def run_sweep(sweep: Sweep, directory: SweepDirectory, tell: Teller) -> None:
    """Appends the record of every point that is missing."""
    rest = sweep.points[len(directory.done) :]
    if directory.done and rest:
        tell(f"going on behind {len(directory.done)} of {len(sweep.points)} points")
    found = _measure(sweep, directory.path, rest) if sweep.server else _simulate(sweep, directory.path, rest)
    for place, (point, record) in enumerate(found, len(directory.done) + 1):
        directory.append({**_of_point(point), **record})
        tell.counted(place, len(sweep.points), "points")


def _of_point(point: Point) -> dict[str, Any]:
    return {
        "point": point.index,
        "setting": point.setting,
        "rate": point.rate and float(point.rate),
        "repeat": point.repeat,
        "seed": point.seed,
    }


def _simulate(sweep: Sweep, path: Path, rest: Sequence[Point]) -> Iterator[tuple[Point, dict[str, Any]]]:
    tasks = [
        points[start : start + TOGETHER]
        for _, group in groupby(rest, lambda point: (point.rate, point.repeat))
        for points in [list(group)]
        for start in range(0, len(points), TOGETHER)
    ]
    runs = path / "runs" if sweep.keep_runs else None
    work = partial(_task, dict(sweep.options), list(sweep.settings), runs)
    with pool(max(1, min(sweep.jobs, len(tasks)))) as each:
        for points, records in zip(tasks, each(work, tasks), strict=True):
            yield from zip(points, records, strict=True)


def _task(
    options: dict[str, Any], settings: list[Setting], runs: Path | None, points: list[Point]
) -> list[dict[str, Any]]:
    return simulated_points(options, settings, points, runs)


def _measure(sweep: Sweep, path: Path, rest: Sequence[Point]) -> Iterator[tuple[Point, dict[str, Any]]]:
    assert sweep.server is not None
    runs = path / "runs"
    for point in rest:
        at = options_at(sweep.options, sweep.settings[point.setting], point.rate, point.seed)
        run = run_path(runs, point.index)
        assert run is not None
        record = measured_point(at, sweep.server, run)
        if not sweep.keep_runs:
            shutil.rmtree(runs)
        yield point, record


def curves(sweep: Sweep, records: Sequence[dict[str, Any]]) -> list[Curve]:
    """One for each setting, in their order."""
    own = sweep.server is not None and sweep.server.has_own_settings
    found: list[list[dict[str, Any]]] = [[] for _ in sweep.settings]
    for record in records:
        found[record["setting"]].append(record)
    return [
        curve({} if own else plain(setting), label(setting, sweep.axes), of_setting)
        for setting, of_setting in zip(sweep.settings, found, strict=True)
    ]


def plain(setting: Setting) -> dict[str, Any]:
    """As JSON can say it."""
    return {name: float(value) if isinstance(value, Fraction) else value for name, value in setting.items()}
