"""Rules about a run beside a baseline: what went up, what stayed, and what that points to. Pure."""

from __future__ import annotations

from collections import Counter
from statistics import StatisticsError, correlation

from ledgers.intervals import CONFIDENCE
from reports.compare_effects import difference_of_limits
from reports.diagnosis_changes import LEAST_COMPARED, Change, change
from reports.diagnosis_facts import PARTS, Facts, mean
from reports.diagnosis_outcomes import attainment_limits, class_attainments, lost
from reports.diagnosis_rules import load_figures, theory_limits
from reports.findings import NO_SLO, NO_TICKS, Figure, Finding, Spoken, Unable, too_few

LONGER = 0.1  # of the mean before, from which on prompts or contexts are longer
FASTER = 0.05  # of the rate before, from which on it is up or down
CONTEXT_R = 0.5  # correlation of TPOT with the tokens in the context
NOT_INDEPENDENT = "Means over those that completed in both runs, which may be others where some did not."


def changed(before: Facts, after: Facts, column: str) -> Change | None:
    """The change of a mean, in ms."""
    one, other = ({id: ns / 1e6 for id, ns in facts.known("id", column)} for facts in (before, after))
    return change(one, other)


def ttft_up(before: Facts, after: Facts) -> Spoken:
    """TTFT up, TPOT steady: what the time before the first token is made of tells why."""
    ttft, tpot = changed(before, after, "ttft"), changed(before, after, "tpot")
    if ttft is None or tpot is None:
        return _few(before, after)
    if not (ttft.up and tpot.steady):
        return None
    parts = {name: changed(before, after, name) for name in PARTS}
    prompts = _means(before, after, "prompt")
    figures = [*_both("TTFT", ttft), *_both("TPOT", tpot)]
    for name, part in parts.items():
        figures += _both(PARTS[name], part)
    figures += [Figure("prompt, mean", prompts[1], "tokens", prompts[0])]
    points_to, cannot_tell = _why_ttft(after, parts, longer=_longer(prompts))
    return Finding(
        "ttft-up",
        f"TTFT up, TPOT steady: {points_to}",
        figures,
        f"{cannot_tell} {NOT_INDEPENDENT}",
        CONFIDENCE,
    )


def _why_ttft(after: Facts, parts: dict[str, Change | None], *, longer: bool) -> tuple[str, str]:
    known = {name: part for name, part in parts.items() if part is not None}
    if len(known) < len(PARTS):
        return (
            "longer prompts, or a queue" if longer else "the queue, or a wait for prefill or for a slot"
        ), "A client cannot see when prefill begins and ends: diagnose the server's own ledger for that."
    most = max(known, key=lambda name: known[name].after - known[name].before)
    if most == "queue":
        return "requests wait for admission", "What they wait for: see the ticks by what the head waited for."
    if most == "first_turn":
        return "decode-first squeeze: prefilled requests wait for a slot", "Which requests hold the slots."
    if longer:
        return "longer prompts take longer to prefill", "Whether a cache would spare a part of them."
    if after.info.config.policy == "chunked":
        return (
            "decode-first squeeze: decode leaves prefill fewer slots",
            "How much of it is the limit of prefill tokens per tick.",
        )
    return (
        "prompts of the same length take longer to prefill, in larger batches",
        "Which prompts were in one batch: the prefill start of the rows tells.",
    )


def tpot_up(before: Facts, after: Facts) -> Spoken:
    """TTFT steady, TPOT up: decode itself is slower."""
    ttft, tpot = changed(before, after, "ttft"), changed(before, after, "tpot")
    if ttft is None or tpot is None:
        return _few(before, after)
    if not (tpot.up and ttft.steady):
        return None
    points_to, figures, cannot_tell = _why_tpot(before, after)
    return Finding(
        "tpot-up",
        f"TTFT steady, TPOT up: {points_to}",
        [*_both("TPOT", tpot), *_both("TTFT", ttft), *figures],
        f"{cannot_tell} {NOT_INDEPENDENT}",
        CONFIDENCE,
    )


def _why_tpot(before: Facts, after: Facts) -> tuple[str, list[Figure], str]:
    if before.hardware and after.hardware and before.hardware.tick_s < after.hardware.tick_s:
        tick = Figure("tick", after.hardware.tick_s * 1000, "ms", before.hardware.tick_s * 1000)
        return "each tick takes longer", [tick], "Anything of a real server: the tick was set."
    if before.waits and after.waits:
        shares = after.waits.share_mean, before.waits.share_mean  # turned round: fewer turns are what counts
        points_to = "neither a longer tick nor fewer turns explain it"
        if _longer(shares):
            points_to = "an unstable decode share: more requests take turns in the slots"
        return (
            points_to,
            [
                Figure(
                    "turns per prefilled request and tick",
                    after.waits.share_mean,
                    "",
                    before.waits.share_mean,
                ),
                Figure("their variance", after.waits.share_variance, "", before.waits.share_variance),
                Figure("ticks with more prefilled than slots", after.waits.crowded, "", before.waits.crowded),
            ],
            "What a real decode step costs: here a tick is as long with one sequence as with all.",
        )
    return _why_measured_tpot(before, after)


def _why_measured_tpot(before: Facts, after: Facts) -> tuple[str, list[Figure], str]:
    """What a client can see: how long contexts are, and how many requests are in flight."""
    contexts = _contexts(before), _contexts(after)
    r = context_correlation(after)
    flight = before.summary["concurrency_mean"], after.summary["concurrency_mean"]
    figures = [
        Figure("context, mean", contexts[1], "tokens", contexts[0]),
        Figure("correlation of TPOT with the context", r),
        Figure("in flight, mean", flight[1], "", flight[0]),
    ]
    unseen = "A client sees neither the batch of a step nor its memory traffic."
    if _longer(contexts) and r is not None and r >= CONTEXT_R:
        return "longer contexts: each step reads more of the KV cache", figures, unseen
    if _longer(flight):
        return "memory-bound or shared decode: more requests in flight, each slower", figures, unseen
    return "neither longer contexts nor more in flight explain it", figures, unseen


def _contexts(facts: Facts) -> float | None:
    return mean([prompt + tokens / 2 for prompt, tokens in facts.known("prompt", "tokens")])


def context_correlation(facts: Facts) -> float | None:
    """Pearson's r of TPOT with the tokens in the context half way; None where either does not vary."""
    values = facts.known("prompt", "tokens", "tpot")
    try:
        return correlation([p + n / 2 for p, n, _ in values], [tpot for *_, tpot in values])
    except StatisticsError:
        return None


def goodput_down(before: Facts, after: Facts) -> Spoken:
    """Throughput up, goodput down: more is done, and less of it in time."""
    if not (before.slo.given and after.slo.given):
        return NO_SLO
    if before.summary["without_row"] or after.summary["without_row"]:
        return lost(before if before.summary["without_row"] else after)
    if before.slo != after.slo:
        return Unable("the runs have different SLOs")
    throughput, goodput = (
        (before.summary[name], after.summary[name]) for name in ("throughput_rps", "goodput_rps")
    )
    if None in (*throughput, *goodput):
        return Unable("the window has no length")
    one, other = attainment_limits(before.summary), attainment_limits(after.summary)
    if one is None or other is None:
        fewest = min(side.summary["scheduled"] for side in (before, after))
        return too_few(fewest, LEAST_COMPARED, "scheduled requests")
    met = before.summary["attainment"], after.summary["attainment"]
    low, high = difference_of_limits(met[0], one, met[1], other)
    if throughput[1] < (1 + FASTER) * throughput[0] or goodput[1] > (1 - FASTER) * goodput[0] or high >= 0:
        return None
    class_, bound = _most_missed(before, after)
    return Finding(
        "goodput-down",
        f"Throughput up, goodput down: most of the misses are {bound} in class {class_}",
        [
            Figure("throughput", throughput[1], "req/s", throughput[0]),
            Figure("goodput", goodput[1], "req/s", goodput[0]),
            Figure("attainment", 100 * met[1], "%", 100 * met[0]),
            Figure("attainment, difference, low", 100 * low, "points"),
            Figure("attainment, difference, high", 100 * high, "points"),
            *_missed(before, after),
            *class_attainments(after),
        ],
        "Whether another order would have met more. A request can miss several bounds.",
        CONFIDENCE,
    )


def _most_missed(before: Facts, after: Facts) -> tuple[str, str]:
    more: Counter[tuple[str, str]] = Counter(after.misses)
    more.subtract(before.misses)
    return more.most_common(1)[0][0]


def _missed(before: Facts, after: Facts) -> list[Figure]:
    return [
        Figure(f"missed: {why} in class {class_}", count, "requests", before.misses[class_, why])
        for (class_, why), count in after.misses.most_common()
    ]


def utilization_up(before: Facts, after: Facts) -> Spoken:
    """Utilization and E2E up together: what is gained in use is paid for in the queue."""
    used = before.summary["batch_utilization"], after.summary["batch_utilization"]
    if None in used:
        return NO_TICKS
    e2e = changed(before, after, "e2e")
    if e2e is None:
        return _few(before, after)
    if not (e2e.up and _longer(used)):
        return None
    load = [figure for figure in load_figures(after) if figure.name != "batch utilization"]
    return Finding(
        "utilization-up",
        "Utilization and E2E up together: a backlog",
        [
            Figure("batch utilization", used[1], "", used[0]),
            *_both("E2E", e2e),
            Figure("queue delay, mean, before", before.mean_ms("queue"), "ms"),
            *load,
        ],
        f"Where the best point between the two lies: a sweep of the rate tells. {theory_limits(load)}",
        CONFIDENCE,
    )


def _means(before: Facts, after: Facts, name: str) -> tuple[float | None, float | None]:
    one, other = (mean([value for (value,) in facts.known(name)]) for facts in (before, after))
    return one, other


def _longer(means: tuple[float | None, float | None]) -> bool:
    before, after = means
    return before is not None and after is not None and after >= (1 + LONGER) * before


def _both(name: str, found: Change | None) -> list[Figure]:
    """Both means, and the interval of their difference."""
    if found is None:
        return []
    return [
        Figure(f"{name}, mean", found.after, "ms", found.before),
        Figure(f"{name}, difference, low", found.low, "ms"),
        Figure(f"{name}, difference, high", found.high, "ms"),
    ]


def _few(before: Facts, after: Facts) -> Unable:
    return too_few(min(before.n, after.n), LEAST_COMPARED, "completed requests with more than one token")
