"""Rules about what became of the requests of one run, and about what its figures do not mean. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from math import comb
from typing import Any

from ledgers.intervals import CONFIDENCE, Interval, share_at
from reports.diagnosis_facts import NO_CLASS, Facts, mean
from reports.findings import (
    LEAST_REQUESTS,
    NO_CLASSES,
    NO_SLO,
    Figure,
    Finding,
    Spoken,
    Unable,
    percent,
    too_few,
)

MISSED_SHARE = 0.01  # of the scheduled, above which a missed SLO stands out
CACHED_SHARE = 0.05  # of the prompt tokens
UNFAIR = 2.0  # times as long in the queue, from one class to another
LEAST_UNFAIR_MS = 50.0  # longer, below which hardly anybody notices
LEAST_UNFAIR_SHARE = 0.1  # of the SLO on TTFT, in place of that, where there is one


def client_limited(facts: Facts) -> Spoken:
    client = facts.summary["client"]
    if client is None:
        return Unable("the run has no load generator")
    if not client["client_limited"]:
        return None
    lag = client["send_lag_ms"] or {}
    return Finding(
        "client-limited",
        "The load generator was the limit: " + "; ".join(client["reasons"]),
        [
            Figure("send lag p99", lag.get("p99"), "ms"),
            Figure("CPU of the client, mean of a core", _percent(client["cpu_share_mean"]), "%"),
            Figure("seconds in which it was the limit", client["limited_samples"]),
            Figure("of seconds", client["samples"]),
        ],
        "How the server would have done: its figures of this run are the client's as well.",
    )


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def censored(facts: Facts) -> Spoken:
    summary = facts.summary
    if not summary["scheduled"]:
        return too_few(0, 1, "scheduled requests")
    if not summary["censored"]:
        return None
    names = ("completed", "failed", "cancelled", "unfinished", "not_sent", "without_row")
    e2e, estimate = summary["e2e_ms"] or {}, summary["kaplan_meier"]["e2e_ms"] or {}
    return Finding(
        "censored",
        "Latencies are over the requests that completed, and not all did",
        [
            Figure("scheduled", summary["scheduled"]),
            *(Figure(name.replace("_", " "), summary[name]) for name in names if summary[name]),
            Figure("E2E p95 of the completed", e2e.get("p95"), "ms"),
            Figure("E2E p95 of all, Kaplan-Meier", estimate.get("p95"), "ms"),
        ],
        "How long the others would have taken; where the estimate is missing, too few had ended to give one.",
    )


def failures(facts: Facts) -> Spoken:
    scheduled, failed = facts.summary["scheduled"], facts.failed.total()
    if not failed:
        return None if scheduled else too_few(0, 1, "scheduled requests")
    kinds = [
        Figure(f"{outcome} in {phase or 'a phase not known'}", count, "requests")
        for (outcome, phase), count in facts.failed.most_common()
    ]
    return Finding(
        "failures",
        f"Requests failed, most often: {kinds[0].name}",
        [percent("of the scheduled", failed, scheduled), *kinds],
        "Whether the server, something before it, or the link is the cause; the summary has the errors.",
    )


def retries(facts: Facts) -> Spoken:
    again, scheduled = facts.summary["retries"], facts.summary["scheduled"]
    if not again:
        return None if scheduled else too_few(0, 1, "scheduled requests")
    rejected = facts.summary["rejected"]
    return Finding(
        "retries",
        "Further attempts added load of their own",
        [
            Figure("retries", again),
            Figure("attempts per request", scheduled / (scheduled - again)),
            *([Figure("rejected", rejected)] if rejected else []),
        ],
        "What the load would have been without them: a failed attempt may have cost little or much.",
    )


def rejections(facts: Facts) -> Spoken:
    summary = facts.summary
    if not summary["rejected"]:
        return None if summary["scheduled"] else too_few(0, 1, "scheduled requests")
    return Finding(
        "rejections",
        "The scheduler turned requests away",
        [
            Figure("rejected", summary["rejected"], "requests"),
            percent("of the scheduled", summary["rejected"], summary["scheduled"]),
        ],
        "What the others would have waited with these in the queue.",
    )


def slo_misses(facts: Facts) -> Spoken:
    """Which bound is missed, and by which class; a request can miss several."""
    if not facts.slo.given:
        return NO_SLO
    if facts.summary["without_row"]:
        return lost(facts)
    scheduled, met = facts.summary["scheduled"], facts.summary["slo_met"]
    if scheduled < LEAST_REQUESTS:
        return too_few(scheduled, what="scheduled requests")
    if scheduled - met <= MISSED_SHARE * scheduled:
        return None
    bounds: Counter[str] = Counter()
    for (_, bound), count in facts.misses.items():
        bounds[bound] += count
    limits = attainment_limits(facts.summary)
    ends = zip(("low", "high"), limits or (), strict=False)
    worst = bounds.most_common(1)[0][0]
    return Finding(
        "slo-misses",
        f"The SLO was missed, most often: {worst}",
        [
            percent("attainment", met, scheduled),
            *(Figure(f"attainment, {end}", 100 * limit, "%") for end, limit in ends),
            *(Figure(f"missed: {bound}", count, "requests") for bound, count in bounds.most_common()),
            *class_attainments(facts),
        ],
        "What attainment was asked for: above 1 % of misses it is said. A request can miss several bounds.",
        CONFIDENCE if limits else None,
    )


def attainment_limits(figures: dict[str, Any], confidence: float = CONFIDENCE) -> Interval | None:
    """Of a run or of a class, by batches of its requests; None of too few, or without an SLO."""
    known = figures["intervals"]["attainment"]
    if known is None:
        return None
    return share_at(figures["attainment"], figures["scheduled"], known["effective_n"], confidence)


def lost(facts: Facts) -> Unable:
    return Unable(f"{facts.summary['without_row']} requests left no row")


def class_attainments(facts: Facts) -> list[Figure]:
    return [
        percent(f"attainment of {name}", found["slo_met"], found["scheduled"])
        for name, found in facts.summary["by_class"].items()
        if found["slo_met"] is not None
    ]


def prefill_bound(facts: Facts) -> Spoken:
    """Prompts whose prefill alone takes longer than the SLO lets TTFT be."""
    bound = facts.slo.ttft_ms
    if bound is None:
        return Unable("no SLO on TTFT was given")
    values = facts.known("prefill", "prompt")
    if not values:
        return Unable("needs the times of prefill, which a client cannot see")
    if len(values) < LEAST_REQUESTS:
        return too_few(len(values))
    over = [prompt for span_ns, prompt in values if span_ns > bound * 1e6]
    if len(over) <= MISSED_SHARE * len(values):
        return None
    return Finding(
        "prefill-bound",
        "Prefill alone takes longer than the SLO lets TTFT be",
        [
            Figure("requests", len(over)),
            percent("of the completed", len(over), len(values)),
            Figure("bound on TTFT", bound, "ms"),
            Figure("their prompts, mean", mean(over), "tokens"),
            Figure("all prompts, mean", mean([prompt for _, prompt in values]), "tokens"),
        ],
        "Whether a faster prefill or shorter prompts are to be had; no queue policy helps these requests.",
    )


def prefix_cache(facts: Facts) -> Spoken:
    told = facts.known("cached", "prompt", "ttft")
    if not told:
        return Unable("the server does not tell cached prompt tokens")
    if len(told) < LEAST_REQUESTS:
        return too_few(len(told))
    cached, prompts = (sum(each[place] for each in told) for place in (0, 1))
    if cached < CACHED_SHARE * prompts:
        return None
    hits = [ttft / 1e6 for hit, _, ttft in told if hit]
    misses = [ttft / 1e6 for hit, _, ttft in told if not hit]
    return Finding(
        "prefix-cache",
        "The prefix cache shortens TTFT: these prompts were not all prefilled",
        [
            percent("prompt tokens that were cached", cached, prompts),
            Figure("requests with hits", len(hits)),
            Figure("their TTFT, mean", mean(hits), "ms"),
            Figure("requests without", len(misses)),
            Figure("their TTFT, mean", mean(misses), "ms"),
        ],
        "Whether real traffic shares as much; requests with hits may differ in more than the hits.",
    )


def unfair(facts: Facts) -> Spoken:
    """One class waits longer than another before anything is done for it, or meets its SLO less often."""
    classes = {
        name: found
        for name, found in facts.summary["by_class"].items()
        if found["scheduled"] >= LEAST_REQUESTS
    }
    if len(facts.summary["by_class"]) < 2:
        return NO_CLASSES
    if len(classes) < 2:
        return Unable(f"needs {LEAST_REQUESTS} requests in each of two classes")
    apart = attainment_apart(classes)
    name, waited = _waits_by_class(facts, list(classes))
    ordered = sorted(waited, key=waited.__getitem__)
    longer = len(ordered) > 1 and waited[ordered[-1]] > max(
        UNFAIR * waited[ordered[0]], waited[ordered[0]] + _noticed_ms(facts)
    )
    if not longer and not apart:
        return None
    worse, better = apart or (ordered[-1], ordered[0])
    what = "meets its SLO less often" if apart else "waits longer"
    return Finding(
        "unfair",
        f"Class {worse} {what} than class {better}",
        [
            *(Figure(f"{name} of {each}", waited[each], "ms") for each in reversed(ordered)),
            *class_attainments(facts),
        ],
        "Whether that is meant (priority, reserved slots, longer prompts), and what is fair to whom.",
        CONFIDENCE if apart else None,
    )


def _noticed_ms(facts: Facts) -> float:
    bound = facts.slo.ttft_ms
    return LEAST_UNFAIR_MS if bound is None else LEAST_UNFAIR_SHARE * bound


def attainment_apart(classes: dict[str, dict[str, Any]]) -> tuple[str, str] | None:
    """The classes with the least and the most attainment, if their intervals have nothing in common.

    Of many classes the two that lie farthest apart are looked at: so all pairs are 95 % sure at once.
    """
    known = {name: found for name, found in classes.items() if attainment_limits(found)}
    if len(known) < 2:
        return None
    sure = 1 - (1 - CONFIDENCE) / comb(len(known), 2)
    worse, better = (choose(known, key=lambda name: known[name]["attainment"]) for choose in (min, max))
    most, least = attainment_limits(known[worse], sure), attainment_limits(known[better], sure)
    return (worse, better) if most and least and most[1] < least[0] else None


def _waits_by_class(facts: Facts, classes: list[str]) -> tuple[str, dict[str, float]]:
    """Mean queue delay; of a client's run TTFT, which holds it."""
    column = "queue" if facts.known("queue") else "ttft"
    values: defaultdict[str, list[float]] = defaultdict(list)
    for class_, ns in zip(facts.completed["class"], facts.completed[column], strict=True):
        if ns is not None:
            values[class_ or NO_CLASS].append(ns / 1e6)
    means = {name: mean(values[name]) for name in classes if len(values[name]) >= LEAST_REQUESTS}
    name = {"queue": "queue delay", "ttft": "TTFT"}[column]
    return f"{name}, mean,", {each: value for each, value in means.items() if value is not None}
