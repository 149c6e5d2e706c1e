"""Curves over offered load, one for each setting of a sweep, with the knee of each.

Pure. Values of a load are means over its repeats; with two repeats or more, goodput and throughput have
Student's interval of the mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum
from typing import Any

import msgspec

from ledgers.intervals import mean_interval
from reports.knee import Side, knee, power

TAILS = ("p50", "p95", "p99")
METRICS = ("ttft_ms", "tpot_ms", "e2e_ms")
Record = dict[str, Any]


class Load(msgspec.Struct, frozen=True):
    """What one setting did at one rate. None is not known."""

    rate: float | None
    repeats: int
    offered_rps: float | None
    throughput_rps: float | None
    goodput_rps: float | None
    attainment: float | None
    concurrency_mean: float | None
    ttft_ms: dict[str, float] | None
    tpot_ms: dict[str, float] | None
    e2e_ms: dict[str, float] | None
    scheduled: int
    completed: int
    censored: bool  # not all completed, of whatever cause: the tails are over fewer
    client_limited: bool = False
    rests_on_largest: dict[str, list[str]] = {}  # of which metric which tails, in any repeat
    throughput_interval: tuple[float, float] | None = None
    goodput_interval: tuple[float, float] | None = None
    rejected: int = 0


class Curve(msgspec.Struct, frozen=True):
    """The loads of a setting in ascending order, and where it bends; `knee` is an index among them."""

    setting: dict[str, Any]
    label: str
    loads: list[Load]
    knee: int | None = None
    knee_side: Side | None = None
    most_goodput: int | None = None


def curve(setting: dict[str, Any], label: str, records: Iterable[Record]) -> Curve:
    """From the records of one setting, in order of rate."""
    by_rate: dict[float | None, list[Record]] = {}
    for record in records:
        by_rate.setdefault(record["rate"], []).append(record)
    loads = [_load(rate, repeats) for rate, repeats in by_rate.items()]
    bend = knee([power(load.throughput_rps, load.concurrency_mean) for load in loads])
    goodputs = [load.goodput_rps or 0 for load in loads]
    most = goodputs.index(max(goodputs)) if any(goodputs) else None
    return Curve(setting, label, loads, bend and bend.place, bend and bend.side, most)


def _load(rate: float | None, repeats: list[Record]) -> Load:
    def of_all(name: str) -> list[Any]:
        return [record[name] for record in repeats]

    return Load(
        rate=rate,
        repeats=len(repeats),
        offered_rps=_mean(of_all("offered_rps")),
        throughput_rps=_mean(of_all("throughput_rps")),
        goodput_rps=_mean(of_all("goodput_rps")),
        attainment=_mean(of_all("attainment")),
        concurrency_mean=_mean(of_all("concurrency_mean")),
        ttft_ms=_tails(of_all("ttft_ms")),
        tpot_ms=_tails(of_all("tpot_ms")),
        e2e_ms=_tails(of_all("e2e_ms")),
        scheduled=sum(of_all("scheduled")),
        completed=sum(of_all("completed")),
        censored=sum(of_all("completed")) < sum(of_all("scheduled")),
        client_limited=any(record.get("client_limited") for record in repeats),
        rests_on_largest=_resting(of_all("rests_on_largest")),
        throughput_interval=_interval(of_all("throughput_rps")),
        goodput_interval=_interval(of_all("goodput_rps")),
        rejected=sum(of_all("rejected")),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fsum(known) / len(known) if known else None


def _tails(found: Sequence[dict[str, float] | None]) -> dict[str, float] | None:
    known = [each for each in found if each is not None]
    return {name: fsum(each[name] for each in known) / len(known) for name in TAILS} if known else None


def _resting(found: Sequence[dict[str, list[str]]]) -> dict[str, list[str]]:
    names = {name: {tail for each in found for tail in each.get(name, ())} for name in METRICS}
    return {name: [tail for tail in TAILS if tail in tails] for name, tails in names.items()}


def _interval(values: Sequence[float | None]) -> tuple[float, float] | None:
    known = [value for value in values if value is not None]
    return mean_interval(known) if len(known) >= 2 else None
