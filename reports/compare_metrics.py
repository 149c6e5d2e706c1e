"""The figures that can be compared, by name, and their effects between runs. Pure.

Names are those of `--require`: `ttft.p95`, `error_rate`, `class=short e2e.mean`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from math import fsum
from typing import NamedTuple

from ledgers.distributions import PERCENTILES, nearest_rank
from ledgers.errors import InputError
from ledgers.formats.fields import shown
from ledgers.intervals import LEAST_BATCHES, LEAST_IN_BATCH, Limits, batched, batches_for
from ledgers.units import NS_PER_MS, NS_PER_S
from reports.compare_effects import (
    NOTHING,
    Batches,
    Effect,
    Scale,
    difference_of_shares,
    ratio_of_means,
    ratio_of_paired_percentiles,
    ratio_of_percentiles,
    repeats,
    values_beyond,
)
from reports.compare_samples import LATENCIES, Sample, Seen

STATISTICS = ("mean", *(f"p{p}" for p in PERCENTILES))
RATES = {"throughput": "req/s", "token_throughput": "tokens/s", "goodput": "req/s"}
SHARES = ("attainment", "completed", "error_rate")
NEED_SLO = ("goodput", "attainment")
_LEAST = LEAST_BATCHES * LEAST_IN_BATCH
_MOST_APART = 0.1  # of the requests, that may be missing on one side of pairs
_WORDS = re.compile(r"(?:class=(?P<class>\S+)\s+)?(?P<name>[a-z_0-9]+)(?:\.(?P<statistic>[a-z0-9]+))?")


class Metric(NamedTuple):
    name: str
    statistic: str | None = None
    class_: str | None = None

    @property
    def figure(self) -> str:
        return f"{self.name}.{self.statistic}" if self.statistic else self.name

    @property
    def label(self) -> str:
        return self.figure if self.class_ is None else f"class={self.class_} {self.figure}"

    @property
    def more_is_better(self) -> bool:
        return self.name in RATES or self.name in ("attainment", "completed")

    @property
    def unit(self) -> str:
        return RATES.get(self.name) or ("share" if self.name in SHARES else "ms")

    @property
    def percent(self) -> int | None:
        return int(self.statistic[1:]) if self.statistic and self.statistic != "mean" else None


DEFAULT = (
    Metric("ttft", "p95"),
    Metric("tpot", "p95"),
    Metric("e2e", "p95"),
    Metric("goodput"),
    Metric("completed"),
    Metric("error_rate"),
)
"""`completed` counts who was never answered: latencies alone favour a side that gives up its slow ones."""


def all_metrics(class_: str | None = None) -> list[Metric]:
    latencies = [Metric(name, statistic, class_) for name in LATENCIES for statistic in STATISTICS]
    return latencies + [Metric(name, None, class_) for name in (*RATES, *SHARES)]


def parse_metric(text: str, flag: str = "--metric") -> Metric:
    """InputError, naming the flag, if there is no such metric."""
    found = _WORDS.fullmatch(text.strip())
    name = {"e2el": "e2e"}.get(found["name"], found["name"]) if found else ""
    metric = Metric(name, found["statistic"], found["class"]) if found else None
    if metric is None or metric not in all_metrics(metric.class_):
        raise InputError(
            f"{flag} {shown(text)}: expected [class=NAME ]METRIC, where METRIC is "
            f"{', '.join(LATENCIES)} with .{', .'.join(STATISTICS)}, or {', '.join((*RATES, *SHARES))}"
        )
    return metric


Order = dict[str, int] | None
Values = tuple[float, float]


class Group(NamedTuple):
    """The requests of one run that a metric speaks of, by place in the sample."""

    sample: Sample
    places: Sequence[int]

    def seen(self) -> list[Seen]:
        return [self.sample.requests[i] for i in self.places]


Pair = tuple[Group, Group]


def group(sample: Sample, class_: str | None) -> Group:
    everyone = range(len(sample.requests))
    if class_ is None:
        return Group(sample, everyone)
    return Group(sample, [i for i in everyone if sample.requests[i].class_ == class_])


def value(metric: Metric, of: Group) -> float | None:
    """The figure of a run in its unit, as a summary has it; None if there is none."""
    if metric.name in NEED_SLO and not of.sample.info.config.slo.given:
        return None
    if metric.name in RATES:
        total, span_ns = fsum(_weights(metric, of)), of.sample.span_ns
        return total * NS_PER_S / span_ns if of.places and span_ns > 0 else None
    if metric.name in SHARES:
        flags = _flags(metric, of)
        return sum(flags) / len(flags) if flags else None
    values = [value for _, values in _latencies(metric, of) for value in values]
    if not values:
        return None
    percent = metric.percent
    found = fsum(values) / len(values) if percent is None else nearest_rank(sorted(values), percent)
    return found / NS_PER_MS


def histogram_value(metric: Metric, of: Group) -> float | None:
    """ITL as the summary has it, where the rows have no times of tokens."""
    found = of.sample.summary["itl_ms"]
    alone = metric.name == "itl" and metric.class_ is None and metric.statistic
    return found[metric.statistic] if alone and found else None


def _latencies(metric: Metric, of: Group) -> list[tuple[int, Sequence[float]]]:
    """The values of each request that has any, with its place."""
    requests, gaps = of.sample.requests, of.sample.gaps
    if metric.name == "itl":
        return [(i, gaps[i]) for i in of.places if gaps.get(i)]
    which = LATENCIES.index(metric.name)
    return [(i, (found,)) for i in of.places if (found := requests[i].values[which]) is not None]


def _flags(metric: Metric, of: Group) -> list[int]:
    if metric.name in ("attainment", "goodput"):
        return [seen.met for seen in of.seen()]
    if metric.name in ("throughput", "completed"):
        return [seen.completed for seen in of.seen()]
    return [seen.failed for seen in of.seen()]


def _weights(metric: Metric, of: Group) -> list[int]:
    """What each request adds to a rate."""
    if metric.name == "token_throughput":
        return [seen.tokens or 0 if seen.completed else 0 for seen in of.seen()]
    return _flags(metric, of)


# Effects


class Between:
    """The effects between two runs, or between what two runs have of one class."""

    def __init__(self, before: Group, after: Group) -> None:
        self._sides = (before, after)
        self.order = common_order(before, after)
        self._latencies: dict[str, tuple[Batches, Batches, bool]] = {}

    def effect(self, metric: Metric, confidence: float) -> Effect | None:
        """None if either side has no such figure."""
        p, q = (value(metric, side) for side in self._sides)
        if p is None or q is None:
            p, q = (histogram_value(metric, side) for side in self._sides)
            why = "an interval needs --record-tokens"
            return None if p is None or q is None else Effect(p, q, "ratio", why=why)
        few = min(len(side.places) for side in self._sides)
        if not batches_for(few):
            return Effect(p, q, _scale(metric), why=f"{few} requests, needs {_LEAST}")
        if metric.name in RATES:
            return _rate(metric, self._sides, (p, q), confidence, self.order)
        if metric.name in SHARES:
            return _share(metric, self._sides, (p, q), confidence, self.order)
        return self._latency(metric, (p, q), confidence)

    def _latency(self, metric: Metric, values: Values, confidence: float) -> Effect:
        if metric.name not in self._latencies:
            self._latencies[metric.name] = _latency_batches(metric, self._sides, self.order)
        one, other, paired = self._latencies[metric.name]
        if not one or not other:
            return Effect(*values, "ratio", why=f"too few values, needs {_LEAST} on each side")
        percent = metric.percent
        limits: Limits
        beyond = None if percent is None else values_beyond(one, other, percent, confidence)
        if percent is None:
            limits = ratio_of_means(one, other, confidence, paired=paired)
        elif paired:
            limits = ratio_of_paired_percentiles(one, other, percent, confidence)
        else:
            limits = ratio_of_percentiles(one, other, percent, confidence)
        why = f"too few independent values for p{percent}" if limits == NOTHING else None
        return Effect(*values, "ratio", *limits, why=why, paired=paired, beyond=beyond)


def common_order(before: Group, after: Group) -> Order:
    """The requests of both sides by arrival in the first, if these are runs of one ledger; else None."""
    digests = {side.sample.info.ledger.sha256 for side in (before, after)}
    one, other = (
        {seen.request for seen in side.seen() if seen.request[:1] != "\0"} for side in (before, after)
    )
    most = max(len(one), len(other))
    if len(digests) > 1 or None in digests or len(one & other) < (1 - _MOST_APART) * most:
        return None
    requests = (seen.request for side in (before, after) for seen in side.seen())
    return {request: place for place, request in enumerate(dict.fromkeys(requests))}


def _scale(metric: Metric) -> Scale:
    return "difference" if metric.name in SHARES else "ratio"


def _by_order(items: Sequence[tuple[str, Sequence[float]]], order: dict[str, int]) -> Batches:
    """Values by request, in batches of the common order; such a batch may be empty."""
    count = batches_for(len(order))
    batches: list[list[float]] = [[] for _ in range(count)]
    for request, values in sorted(items, key=lambda item: order[item[0]]):
        batches[order[request] * count // len(order)].extend(values)
    return batches


def _latency_batches(metric: Metric, sides: Pair, order: Order) -> tuple[Batches, Batches, bool]:
    """Of both sides, and whether batch k has the same requests on both: none may be empty then."""
    items = [_latencies(metric, side) for side in sides]
    if order:
        paired = [
            _by_order([(side.sample.requests[i].request, found) for i, found in each], order)
            for side, each in zip(sides, items, strict=True)
        ]
        if all(map(len, [*paired[0], *paired[1]])):
            return paired[0], paired[1], True
    one, other = (
        [list(chain.from_iterable(batch)) for batch in batched([found for _, found in each])]
        for each in items
    )
    return one, other, False


def _share(metric: Metric, sides: Pair, values: Values, confidence: float, order: Order) -> Effect:
    one, other, in_pairs = _flag_batches(metric, sides, order)
    limits = difference_of_shares(one, other, confidence, paired=in_pairs)
    return Effect(*values, "difference", *limits, paired=in_pairs)


def _flag_batches(metric: Metric, sides: Pair, order: Order) -> tuple[Batches, Batches, bool]:
    """Retries make a side longer; then there are no pairs."""
    flags = [_flags(metric, side) for side in sides]
    if order and all(len(side) == len(order) for side in flags):
        one, other = (
            _by_order([(seen.request, (flag,)) for seen, flag in zip(side.seen(), found, strict=True)], order)
            for side, found in zip(sides, flags, strict=True)
        )
        return one, other, True
    return batched(flags[0]), batched(flags[1]), False


def _rate(metric: Metric, sides: Pair, values: Values, confidence: float, order: Order) -> Effect:
    """By slices of the window; where one side has none at all, by the share of requests that count."""
    if all(values):
        one, other = (_slices(metric, side) for side in sides)
        in_pairs = order is not None and len(one) == len(other)
        limits = ratio_of_means(one, other, confidence, paired=in_pairs)
        return Effect(*values, "ratio", *limits, paired=in_pairs)
    if metric.name == "token_throughput" or not any(values):
        return Effect(*values, "difference", why="none on one side" if any(values) else "none")
    one, other, in_pairs = _flag_batches(metric, sides, order)
    low, high = difference_of_shares(one, other, confidence, paired=in_pairs)
    per_s = len(sides[0].places) * NS_PER_S / sides[0].sample.span_ns
    if values[0]:
        low, high = (max(0.0, 1 + limit * per_s / values[0]) for limit in (low, high))
        return Effect(*values, "ratio", low, high, paired=in_pairs)
    return Effect(*values, "difference", low * per_s, high * per_s, paired=in_pairs)


def _slices(metric: Metric, of: Group) -> Batches:
    """What came in each of equal slices of the window, per second."""
    count, begin_ns, span_ns = batches_for(len(of.places)), of.sample.begin_ns, of.sample.span_ns
    totals = [0.0] * count
    for seen, weight in zip(of.seen(), _weights(metric, of), strict=True):
        if weight and seen.left is not None:
            totals[min(count - 1, (seen.left - begin_ns) * count // span_ns)] += weight
    return [[total * count * NS_PER_S / span_ns] for total in totals]


def effect_of_repeats(
    metric: Metric, before: Sequence[Group], after: Sequence[Group], confidence: float, *, paired: bool
) -> Effect | None:
    """Between sides of several runs; None if any has no such figure."""
    found = [[any_value(metric, run) for run in side] for side in (before, after)]
    one, other = ([v for v in side if v is not None] for side in found)
    if len(one) < len(before) or len(other) < len(after):
        return None
    p, q = fsum(one) / len(one), fsum(other) / len(other)
    scale: Scale = "ratio" if metric.name not in SHARES and p > 0 and q > 0 else "difference"
    low, high = repeats(one, other, confidence, paired=paired, scale=scale)
    if scale == "difference" and metric.name not in SHARES and p > 0:  # none in all runs of the other side
        return Effect(p, q, "ratio", 1 + low / p, 1 + high / p, paired=paired)
    return Effect(p, q, scale, low, high, paired=paired)


def any_value(metric: Metric, of: Group) -> float | None:
    """The figure, from the rows or else from the summary's histogram."""
    found = value(metric, of)
    return histogram_value(metric, of) if found is None else found
