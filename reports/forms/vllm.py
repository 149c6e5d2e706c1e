"""A run as the result JSON of `vllm bench serve`, a line per run, for scripts that read that.

Owns its fields. Their definitions are vLLM's and not ours: times count from when the client turned to the
request, not from the intended arrival; percentiles are interpolated; whatever did not complete has failed.
Ours stand beside them, under `tokentick`. What is not known is null, and never NaN.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import accumulate
from math import floor, fsum, sqrt
from typing import Any, NamedTuple

from ledgers.metrics import completed_by, completion_ns, gaps_ns, later_tokens, origin_ns, tpot_ns
from ledgers.rows import RequestRow, encode
from ledgers.rundir import RunInfo
from ledgers.settings import Slo
from ledgers.summary import kept_ns
from ledgers.units import NS_PER_MS, NS_PER_S
from reports.forms import Shown

BACKENDS = {
    "chat": "openai-chat",
    "completions": "openai",
    "responses": "openai-responses",
    "messages": "anthropic",
}
PERCENTILES = (50, 90, 95, 99)
OURS = (
    *("window_s", "complete", "censored", "rejected", "cancelled", "unfinished", "not_sent", "without_row"),
    *("queue_delay_ms", "ttft_ms", "ttft_from_send_ms", "tpot_ms", "itl_ms", "e2e_ms", "send_lag_ms"),
    *("goodput_rps", "attainment", "concurrency_mean", "concurrency_peak"),
)


def lines(runs: Sequence[Shown], detailed: bool) -> Iterator[str]:
    """One object a line, as vLLM appends results to a file."""
    for shown in runs:
        yield encode(result(shown, detailed)).decode()


def result(shown: Shown, detailed: bool) -> dict[str, Any]:
    """The fields in vLLM's order: what was run, the labels that the user gave, and what came out."""
    info, summary = shown.run.info, shown.summary
    seen = _Seen(shown, detailed)
    backend = BACKENDS.get(info.config.api or "", f"tokentick-{info.kind}")
    model = info.config.model or info.config.policy or info.ledger.name
    return {
        "date": _date(info),
        "endpoint_type": backend,
        "backend": backend,
        "label": backend,
        "model_id": model,
        "tokenizer_id": model,
        "num_prompts": summary["scheduled"],
        **info.config.metadata,
        "request_rate": info.config.request_rate or seen.arrival_rate(),
        "burstiness": info.config.burstiness,
        "max_concurrency": info.config.extra.get("max_concurrency"),
        **_rates(summary, seen, info.config.slo),
        **_latencies(summary, seen),
        **(seen.arrays() if detailed else {}),
        "tokentick": _ours(info, summary),
    }


def _date(info: RunInfo) -> str | None:
    """When the run began, by the clock of this machine's place, as vLLM writes it."""
    try:
        began = datetime.fromisoformat(info.started_at)
    except ValueError:
        return None
    return f"{began.astimezone():%Y%m%d-%H%M%S}"


def _rates(summary: dict[str, Any], seen: _Seen, slo: Slo) -> dict[str, Any]:
    duration_s, prompts, output = summary["window_s"], summary["prompt_tokens"], summary["output_tokens"]
    total = None if output is None else prompts + output
    return {
        "duration": duration_s,
        "completed": summary["completed"],
        "failed": summary["scheduled"] - summary["completed"],
        "total_input_tokens": prompts,
        "total_output_tokens": output,
        "request_throughput": _per_s(summary["completed"], duration_s),
        "request_goodput": _per_s(seen.good, duration_s) if slo.given else None,
        "output_throughput": _per_s(output, duration_s),
        "total_token_throughput": _per_s(total, duration_s),
        "max_output_tokens_per_s": seen.most_tokens_in_a_second(),
        "max_concurrent_requests": seen.most_in_flight_in_a_second(),
    }


def _per_s(count: int | None, duration_s: float) -> float | None:
    return None if count is None or not duration_s else count / duration_s


def _latencies(summary: dict[str, Any], seen: _Seen) -> dict[str, float | None]:
    of = {"ttft": seen.ttfts, "tpot": seen.tpots, "itl": seen.gaps, "e2el": seen.latencies}
    found: dict[str, float | None] = {}
    for name, values in of.items():
        found |= statistics(name, values)
    if summary["itl_ms"] and not seen.gaps:  # kept as a histogram, which has no deviation
        ours = summary["itl_ms"]
        found |= {"mean_itl_ms": ours["mean"], "median_itl_ms": ours["p50"]}
        found |= {f"p{p}_itl_ms": ours[f"p{p}"] for p in PERCENTILES}
    return found


def statistics(name: str, values_ms: Sequence[float]) -> dict[str, float | None]:
    """Mean, median, deviation of the whole (not of a sample), and percentiles, under vLLM's names."""
    keys = [f"{word}_{name}_ms" for word in ("mean", "median", "std", *(f"p{p}" for p in PERCENTILES))]
    if not values_ms:
        return dict.fromkeys(keys)
    ordered = sorted(values_ms)
    mean = fsum(ordered) / len(ordered)
    deviation = sqrt(fsum((value - mean) ** 2 for value in ordered) / len(ordered))
    found = [mean, interpolated(ordered, 50), deviation, *(interpolated(ordered, p) for p in PERCENTILES)]
    return dict(zip(keys, found, strict=True))


def interpolated(ordered: Sequence[float], percent: float) -> float:
    """The percentile between the two nearest ranks, as numpy has it by default."""
    place = (len(ordered) - 1) * percent / 100
    below = floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _ours(info: RunInfo, summary: dict[str, Any]) -> dict[str, Any]:
    """Figures as this tool defines them, and what it says of their worth."""
    client = summary["client"] or {}
    about = {"version": info.version, "kind": info.kind, "ledger": info.ledger.name}
    limited = {"client_limited": client.get("client_limited")}
    return {**about, **limited, **{name: summary[name] for name in OURS}}


def begin_ns(row: RequestRow) -> int | None:
    """When the client turned to the request: vLLM starts its clock before the connection is there.

    Its arrival, or receipt, where there was no client.
    """
    sent = row.sent_ns if row.send_start_ns is None else row.send_start_ns
    return origin_ns(row) if sent is None else sent - (row.connect_ns or 0)


class _One(NamedTuple):
    """A request in s; 0 is vLLM's word for what there was not."""

    start: float
    prompt: int
    tokens: int
    ttft: float
    gaps: list[float] | None
    latency: float
    text: str | None
    error: str


class _Seen:
    """One pass over the requests that are in the summary: columns in ms of those that completed."""

    def __init__(self, shown: Shown, detailed: bool) -> None:
        self.ttfts, self.tpots, self.gaps, self.latencies = (array("d") for _ in range(4))
        self.good = 0
        self._begins, self._ends, self._arrivals = array("q"), array("q"), array("q")
        self._tokens_in: Counter[int] | None = Counter()  # by second; None once any are not known
        self._all: list[_One] = []
        self._bounds = shown.run.info.config.slo.bounds_ns()
        first_ns, last_ns, t_obs_ns = kept_ns(shown.summary)
        for row in shown.run.rows():
            arrival = origin_ns(row)
            if not first_ns <= (arrival or 0) <= last_ns:
                continue
            if arrival is not None and row.retry_of is None:
                self._arrivals.append(arrival)
            done = completed_by(row, t_obs_ns)
            if done:
                self._add(row)
            if detailed:
                self._all.append(_one(row, done))

    def _add(self, row: RequestRow) -> None:
        begin, end, tpot = begin_ns(row), completion_ns(row), tpot_ns(row)
        if begin is None or end is None:
            return
        ttft = None if row.first_token_ns is None else row.first_token_ns - begin
        self._begins.append(begin)
        self._ends.append(end)
        self.latencies.append((end - begin) / NS_PER_MS)
        if ttft is not None:
            self.ttfts.append(ttft / NS_PER_MS)
        if tpot is not None:
            self.tpots.append(float(tpot) / NS_PER_MS)
        self.gaps.extend(gap / NS_PER_MS for gap in gaps_ns(row))
        self.good += self._meets(row, ttft, end - begin)
        if row.token_ns is None:
            self._tokens_in = None
        elif self._tokens_in is not None:
            self._tokens_in.update(ns // NS_PER_S for ns in row.token_ns)

    def _meets(self, row: RequestRow, ttft_ns: int | None, latency_ns: int) -> bool:
        """Every bound, counted from the send; TPOT counts as 0 where there is no further token."""
        known = later_tokens(row) is not None
        tpot = 0 if known and (later_tokens(row) or 0) < 1 else tpot_ns(row)
        found = zip(self._bounds, (ttft_ns, tpot, latency_ns), strict=True)
        return all(bound is None or (value is not None and value <= bound) for bound, value in found)

    def arrival_rate(self) -> float | str | None:
        """Per second, where none was asked for: the trace's own; inf if all came at once."""
        if len(self._arrivals) < 2:
            return None
        span_ns = max(self._arrivals) - min(self._arrivals)
        return (len(self._arrivals) - 1) * NS_PER_S / span_ns if span_ns else "inf"

    def most_tokens_in_a_second(self) -> float | None:
        return float(max(self._tokens_in.values())) if self._tokens_in else None

    def most_in_flight_in_a_second(self) -> int:
        """Requests that were in flight at any time of a second, of those that completed."""
        first = min(self._begins, default=0)
        changes: Counter[int] = Counter((begin - first) // NS_PER_S for begin in self._begins)
        changes.subtract((end - first) // NS_PER_S + 1 for end in self._ends)
        return max(accumulate(changes[second] for second in sorted(changes)), default=0)

    def arrays(self) -> dict[str, Any]:
        """Of all requests, in order of their start; token times and texts only where they were recorded."""
        ones = sorted(self._all, key=lambda one: one.start)
        found: dict[str, Any] = {
            "input_lens": [one.prompt for one in ones],
            "output_lens": [one.tokens for one in ones],
            "ttfts": [one.ttft for one in ones],
            "itls": [one.gaps or [] for one in ones],
            "latencies": [one.latency for one in ones],
            "start_times": [one.start for one in ones],
            "generated_texts": [one.text or "" for one in ones],
            "errors": [one.error for one in ones],
        }
        absent = [
            name
            for name, values in (
                ("itls", [one.gaps for one in ones]),
                ("generated_texts", [one.text for one in ones]),
            )
            if all(value is None for value in values)
        ]
        return {name: values for name, values in found.items() if name not in absent}


def _one(row: RequestRow, done: bool) -> _One:
    begin, end = begin_ns(row) or 0, completion_ns(row)
    return _One(
        start=begin / NS_PER_S,
        prompt=row.prompt_tokens if row.usage_prompt_tokens is None else row.usage_prompt_tokens,
        tokens=(row.tokens or 0) if done else 0,
        ttft=0.0 if row.first_token_ns is None else (row.first_token_ns - begin) / NS_PER_S,
        gaps=None if row.token_ns is None else [gap / NS_PER_S for gap in gaps_ns(row)],
        latency=(end - begin) / NS_PER_S if done and end is not None else 0.0,
        text=row.text,
        error="" if done else ": ".join(word for word in (row.outcome or "unfinished", row.error) if word),
    )
