"""Rules about where the time of one run went: queue, batches, KV, decode slots, load. Pure."""

from __future__ import annotations

from typing import Any

from ledgers.intervals import CONFIDENCE
from ledgers.queueing import mg1_wait
from ledgers.work import loads
from reports.diagnosis_facts import PARTS, Facts, mean
from reports.diagnosis_waits import Cause, Waits
from reports.findings import (
    LEAST_REQUESTS,
    LEAST_TICKS,
    NO_SPLIT,
    NO_TICKS,
    Figure,
    Finding,
    Spoken,
    Unable,
    percent,
    too_few,
)

MOST_SHARE = 0.5  # of mean TTFT: above it one part is where the time went
BLOCKED_SHARE = 0.05  # of the ticks
FORMING_SHARE = 0.2  # of mean TTFT
CROWDED_SHARE = 0.1  # of the ticks in which anything was decoded
FULL_KV = 0.95


def ttft_split(facts: Facts) -> list[Figure] | None:
    """Where TTFT went, in means, which add up; None where it is not known of anybody."""
    values = facts.known("ttft", *PARTS)
    if not values:
        return None
    ttft, *parts = (mean([each[place] / 1e6 for each in values]) for place in range(1 + len(PARTS)))
    figures = [Figure("requests", len(values)), Figure("TTFT", ttft, "ms")]
    return figures + [Figure(name, part, "ms") for name, part in zip(PARTS.values(), parts, strict=True)]


def _shares(facts: Facts) -> dict[str, float] | None:
    """The parts of the sum of all TTFT."""
    values = facts.known("ttft", *PARTS)
    total = sum(each[0] for each in values)
    if not total:
        return None
    return {name: sum(each[place] for each in values) / total for place, name in enumerate(PARTS, 1)}


def queueing(facts: Facts) -> Spoken:
    """Most of TTFT is the wait for admission."""
    shares = _shares(facts)
    if shares is None:
        return _scraped_queue(facts)
    if len(facts.known("ttft", *PARTS)) < LEAST_REQUESTS:
        return too_few(len(facts.known("ttft", *PARTS)))
    if shares["queue"] <= MOST_SHARE:
        return None
    figures = [percent("queue, of TTFT", shares["queue"], 1), *(ttft_split(facts) or [])]
    if facts.waits:
        figures += [
            Figure(f"ticks, the queue waited for {WAITED_FOR[cause]}", ticks)
            for cause, ticks in sorted(facts.waits.waiting.items(), key=lambda item: -item[1])
        ]
    return Finding(
        "queueing",
        "Most of TTFT is the wait for admission",
        figures,
        "Means: a few long waits look like many short ones. Without ticks, what the queue waited for.",
    )


WAITED_FOR: dict[Cause, str] = {
    "prefill": "a batch in prefill",
    "service": "all that was admitted before",
    "kv": "room in the KV budget",
    "forming": "a batch to form",
    "slots": "a free decode slot",
    "tokens": "prefill tokens, which the tick had no more of",
    "other": "something that rows do not tell",
}


def _scraped_queue(facts: Facts) -> Spoken:
    """A server whose metrics were asked tells the mean at least."""
    server = facts.summary["server"]
    if not server or server["queue_mean_ms"] is None or not server["client_ttft_from_send_mean_ms"]:
        return NO_SPLIT
    if facts.n < LEAST_REQUESTS:
        return too_few(facts.n)
    queue, ttft = server["queue_mean_ms"], server["client_ttft_from_send_mean_ms"]
    if queue <= MOST_SHARE * ttft:
        return None
    return Finding(
        "queueing",
        "Most of TTFT is the wait for admission, by the server's own metrics",
        [
            Figure("queue, mean (server)", queue, "ms"),
            Figure("TTFT from send, mean (client)", ttft, "ms"),
            Figure("most waiting at a sample", server["waiting_max"]),
        ],
        "How the rest divides into prefill and first decode turn; whether both are over the same requests.",
    )


def first_turn(facts: Facts) -> Spoken:
    """Most of TTFT is after prefill: prefilled requests wait for a decode slot."""
    shares = _shares(facts)
    if shares is None:
        return NO_SPLIT
    if len(facts.known("ttft", *PARTS)) < LEAST_REQUESTS:
        return too_few(len(facts.known("ttft", *PARTS)))
    if shares["first_turn"] <= MOST_SHARE:
        return None
    return Finding(
        "first-turn",
        "Most of TTFT is after prefill: prefilled requests wait for their first decode turn",
        [percent("first decode turn, of TTFT", shares["first_turn"], 1), *(ttft_split(facts) or [])],
        "In a served run: the wait for a turn from the time that the answer took to be written.",
    )


def head_of_line(facts: Facts) -> Spoken:
    """Who kept whom waiting while decode slots were idle."""
    if not (waits := facts.waits):
        return NO_TICKS
    if facts.summary["scheduled"] < LEAST_REQUESTS:
        return too_few(facts.summary["scheduled"], what="scheduled requests")
    if waits.blocked < max(LEAST_TICKS, BLOCKED_SHARE * waits.ticks):
        return None
    top = waits.blockers[0]
    return Finding(
        "head-of-line",
        f"Head of line: {top.id} (prompt {top.prompt_tokens}, output {top.output_tokens}) kept "
        f"{top.victim_count} waiting while decode slots were idle",
        [
            Figure("ticks with idle slots in which one kept others waiting", waits.blocked),
            percent("of all ticks", waits.blocked, waits.ticks),
            *(_blocked(blocker) for blocker in waits.blockers),
        ],
        "What another order would have cost the blockers. Of a batch, its longest prompt (in prefill) or its "
        "last to end is named: the others had a part in it. Behind a head that does not fit into the KV "
        "budget, some might not have fitted either.",
    )


def _blocked(blocker: Any) -> Figure:
    more = blocker.victim_count - len(blocker.victims)
    whom = " ".join(blocker.victims) + (f" and {more} more" if more else "")
    why = ", ".join(f"{ticks} for {WAITED_FOR[cause]}" for cause, ticks in blocker.causes.items())
    name = f"{blocker.id} (prompt {blocker.prompt_tokens}, output {blocker.output_tokens}) kept {whom}: {why}"
    return Figure(name, blocker.ticks, "ticks")


def forming(facts: Facts) -> Spoken:
    """Requests wait only for a batch to form, while decode slots are idle."""
    hardware = facts.hardware
    if not (waits := facts.waits) or not hardware:
        return NO_TICKS
    if facts.n < LEAST_REQUESTS:
        return too_few(facts.n)
    ticks, queued = (found.get("forming", 0) for found in (waits.idle, waits.queued))
    ttft = facts.mean_ms("ttft")
    waited = queued * hardware.tick_s * 1000 / max(1, _admitted(facts))
    if ticks < LEAST_TICKS or not ttft or waited < FORMING_SHARE * ttft:
        return None
    config = facts.info.config
    return Finding(
        "forming",
        "Requests wait for a batch to form while decode slots are idle",
        [
            Figure("ticks with idle slots, the queue waited for a batch to form", ticks),
            percent("of all ticks", ticks, waits.ticks),
            Figure("requests in the queue, summed over them", queued, "request ticks"),
            Figure("wait per request", waited, "ms"),
            percent("of mean TTFT", waited, ttft),
            Figure("max batch", config.max_batch),
            Figure("max wait", None if config.max_wait_s is None else config.max_wait_s * 1000, "ms"),
        ],
        "What a shorter wait costs: this scheduler's batches make no work cheaper, a real server's may.",
    )


def _admitted(facts: Facts) -> int:
    summary = facts.summary
    return int(summary["scheduled"] - summary["rejected"] - summary["not_sent"])


def kv_limited(facts: Facts) -> Spoken:
    """The head of the queue does not fit into the KV budget."""
    if not (waits := facts.waits) or not facts.hardware:
        return _scraped_kv(facts)
    if facts.n < LEAST_REQUESTS:
        return too_few(facts.n)
    ticks, queue = waits.waiting.get("kv", 0), sum(waits.waiting.values())
    if ticks < max(LEAST_TICKS, BLOCKED_SHARE * queue):
        return None
    budget = facts.hardware.kv_budget_tokens
    return Finding(
        "kv-limited",
        "The KV budget limits admission: the head of the queue does not fit",
        [
            Figure("ticks in which the head did not fit", ticks),
            percent("of the ticks with a queue", ticks, queue),
            Figure("of them with idle decode slots", waits.idle.get("kv", 0)),
            Figure("KV budget", budget, "tokens"),
            percent("reserved in these ticks, mean", waits.kv_reserved_mean, budget),
            percent("really cached in these ticks, mean", waits.kv_cached_mean, budget),
        ],
        "What a server would do that does not reserve a whole output at admission: it admits more, and may "
        "have to preempt.",
    )


def _scraped_kv(facts: Facts) -> Spoken:
    server = facts.summary["server"]
    if not server or server["kv_usage_max"] is None:
        return NO_TICKS
    if not server["preemptions"] and server["kv_usage_max"] < FULL_KV:
        return None
    return Finding(
        "kv-limited",
        "The server's KV cache was full",
        [
            Figure("KV usage, most at a sample", 100 * server["kv_usage_max"], "%"),
            Figure("preemptions", server["preemptions"]),
            Figure("most waiting at a sample", server["waiting_max"]),
        ],
        "Whether the queue waited for KV or for something else at these instants.",
    )


def decode_share(facts: Facts) -> Spoken:
    """More requests are prefilled than there are decode slots, so each gets a turn only now and then."""
    waits, hardware = facts.waits, facts.hardware
    if not waits or not hardware:
        return NO_TICKS
    if facts.n < LEAST_REQUESTS:
        return too_few(facts.n)
    if waits.crowded < max(LEAST_TICKS, CROWDED_SHARE * waits.decoding):
        return None
    return Finding(
        "decode-share",
        "Decode slots are shared: more requests are prefilled than there are slots",
        [
            Figure("ticks with more prefilled requests than slots", waits.crowded),
            percent("of the ticks with prefilled requests", waits.crowded, waits.decoding),
            *turns(waits),
            Figure("TPOT, mean", facts.mean_ms("tpot"), "ms"),
            Figure("tick", hardware.tick_s * 1000, "ms"),
        ],
        "Whether fewer at a time would serve all of them better: what TPOT gains, the queue may lose.",
    )


def turns(waits: Waits) -> list[Figure]:
    return [
        Figure("decode turns per prefilled request and tick, mean", waits.share_mean),
        Figure("their variance", waits.share_variance),
    ]


def backlog(facts: Facts) -> Spoken:
    """Requests arrive faster than they are served."""
    summary, found = facts.summary, facts.summary["stability"]
    if facts.info.config.closed_loop:
        return Unable("a closed loop has no rate of arrivals that a server could fall behind")
    if found is None:
        return Unable("needs the times of all requests")
    if summary["scheduled"] < LEAST_REQUESTS:
        return too_few(summary["scheduled"], what="scheduled requests")
    overloaded = [name for name, rho in loads(facts.rate, facts.demands).items() if rho >= 1]
    if not overloaded and found["verdict"] == "undetermined":
        return Unable(found["reason"])
    if not overloaded and found["verdict"] != "overload":
        return None
    title = f"more is asked of {overloaded[0]} than there is" if overloaded else "the queue grew to the end"
    figures = load_figures(facts)
    slopes = {"": "slope_per_s", ", low": "low", ", high": "high"}
    growth = [
        Figure(f"change of the number in flight{end}", found[key], "1/s") for end, key in slopes.items()
    ]
    return Finding(
        "backlog",
        f"Backlog: {title}",
        [*figures, *(figure for figure in growth if figure.value is not None)],
        f"Whether it would have gone on: a burst at the end looks the same. {theory_limits(figures)}",
        None if overloaded else CONFIDENCE,
    )


def theory_limits(figures: list[Figure]) -> str:
    """What the formulas beside the observation do not hold for."""
    estimated = any(figure.name.startswith("M/G/1") for figure in figures)
    mg1 = (
        "The M/G/1 estimate is for Poisson arrivals at one server in steady state."
        if estimated
        else "With a load of 1 or more there is no steady state to estimate a wait for."
    )
    return f"{mg1} Equal L and X·W do not make a queue stable."


def load_figures(facts: Facts) -> list[Figure]:
    """ρ, Little's law and the M/G/1 estimate, beside what was observed."""
    summary, law = facts.summary, facts.summary["littles_law"]
    rhos = loads(facts.rate, facts.demands)
    figures = [
        Figure("arrivals", facts.rate, "req/s"),
        Figure("completed until the last arrival", summary["throughput_arrivals_rps"], "req/s"),
        *(Figure(f"load ρ of {name}", rho) for name, rho in rhos.items()),
        Figure("batch utilization", summary["batch_utilization"]),
    ]
    if law:
        figures += [
            Figure("L, in flight on average", law["concurrency_mean"]),
            Figure("X·W by Little's law", law["product"]),
            Figure("in flight at the end of the window", law["in_flight_at_end"]),
        ]
    figures += [*_mg1(facts, rhos), Figure("queue delay, mean", facts.mean_ms("queue"), "ms")]
    return [figure for figure in figures if figure.value is not None]


def _mg1(facts: Facts, rhos: dict[str, float]) -> list[Figure]:
    """The wait by Pollaczek-Khinchine at the resource with the highest load, if that is below 1."""
    if not rhos or facts.rate is None:
        return []
    name = max(rhos, key=rhos.__getitem__)
    demand = facts.demands[name]
    if rhos[name] >= 1 or not demand.mean_s:
        return []
    wait = mg1_wait(facts.rate, 1 / demand.mean_s, demand.cv)
    return [
        Figure(f"M/G/1 wait for {name}", wait * 1000, "ms"),
        Figure(f"C_s of the demand for {name}", demand.cv),
    ]
