"""Runs as CSV (RFC 4180): one row per run, or one per request.

Owns the columns. A spreadsheet takes a cell that begins with = + - or @ for a formula, so text that does is
given an apostrophe; numbers are numbers.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import StringIO
from typing import Any

from ledgers.metrics import (
    e2e_ns,
    held_ns,
    meets,
    origin_ns,
    queue_delay_ns,
    send_lag_ns,
    tpot_ns,
    ttft_from_send_ns,
    ttft_ns,
)
from ledgers.printable import printable
from ledgers.rows import RequestRow
from ledgers.rundir import RunInfo
from ledgers.summary import kept_ns
from ledgers.units import NS_PER_MS, NS_PER_S
from reports.forms import Shown

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_AT_ONCE = 1_000  # rows

ABOUT: dict[str, Callable[[RunInfo], Any]] = {
    "kind": lambda info: info.kind,
    "ledger": lambda info: info.ledger.name,
    "started_at": lambda info: info.started_at,
    "model": lambda info: info.config.model,
    "base_url": lambda info: info.config.base_url,
    "policy": lambda info: info.config.policy,
    "request_rate": lambda info: info.config.request_rate,
}
LATENCIES = ("queue_delay_ms", "ttft_ms", "ttft_from_send_ms", "tpot_ms", "itl_ms", "e2e_ms", "send_lag_ms")
STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max", "n")
FIGURES = (
    *("window_s", "complete", "scheduled", "completed", "failed", "rejected", "cancelled", "unfinished"),
    *("not_sent", "without_row", "retries", "censored"),
    *(f"{name}.{statistic}" for name in LATENCIES for statistic in STATISTICS),
    *("throughput_rps", "token_throughput_tps", "goodput_rps", "attainment", "prompt_tokens"),
    *("output_tokens", "concurrency_mean", "concurrency_peak", "kv_peak_tokens", "batch_utilization"),
    *("stability.verdict", "client.client_limited"),
)
"""Named as in summary.json, a dot between an object and what it holds."""

TEXTS = ("id", "request_id", "retry_of", "class_", "session", "turn", "outcome", "phase", "http_status")
COUNTS = (
    *("prompt_tokens", "output_tokens", "tokens", "token_source", "usage_prompt_tokens", "cached_tokens"),
    *("reasoning_tokens", "events", "choices", "streamed", "finish_reason", "fault", "error"),
)
TIMES = (
    *("arrival", "due", "send_start", "sent", "received", "headers", "prefill_start", "prefill_end"),
    *("first_token", "last_token", "end"),
)
DURATIONS: dict[str, Callable[[RequestRow], Any]] = {
    "held_ms": held_ns,
    "send_lag_ms": send_lag_ns,
    "queue_delay_ms": queue_delay_ns,
    "ttft_ms": ttft_ns,
    "ttft_from_send_ms": ttft_from_send_ns,
    "tpot_ms": tpot_ns,
    "e2e_ms": e2e_ns,
}


def lines(runs: Sequence[Shown], detailed: bool) -> Iterator[str]:
    """A head, and the rows of all runs."""
    return _written(_requests(runs) if detailed else _runs(runs))


def _runs(runs: Sequence[Shown]) -> Iterator[list[Any]]:
    yield ["run", *ABOUT, *FIGURES]
    for shown in runs:
        about = (read(shown.run.info) for read in ABOUT.values())
        yield [str(shown.run.path), *about, *(_at(shown.summary, path) for path in FIGURES)]


def _at(summary: dict[str, Any], path: str) -> Any:
    found: Any = summary
    for name in path.split("."):
        found = None if found is None else found.get(name)
    return found


def _requests(runs: Sequence[Shown]) -> Iterator[list[Any]]:
    """`in_summary` says which requests a warm-up or cool-down leaves in."""
    named = [name.removesuffix("_") for name in (*TEXTS, *COUNTS)]
    yield ["run", *named, *(f"{name}_s" for name in TIMES), *DURATIONS, "slo_met", "in_summary"]
    for shown in runs:
        bounds = shown.run.info.config.slo.bounds_ns()
        first_ns, last_ns, _ = kept_ns(shown.summary)
        for row in shown.run.rows():
            met = meets(row, bounds) if shown.run.info.config.slo.given else None
            kept = first_ns <= (origin_ns(row) or 0) <= last_ns
            yield [str(shown.run.path), *_request(row), met, kept]


def _request(row: RequestRow) -> Iterator[Any]:
    for name in (*TEXTS, *COUNTS):
        yield getattr(row, name)
    for name in TIMES:
        yield _decimal(getattr(row, f"{name}_ns"), NS_PER_S, 9)
    for read in DURATIONS.values():
        yield _decimal(read(row), NS_PER_MS, 6)


class Exact(str):
    """A number that is written as it is."""


def _decimal(ns: Any, unit: int, digits: int) -> Exact | None:
    """To the nanosecond, never as 1e-09."""
    return None if ns is None else Exact(f"{float(ns) / unit:.{digits}f}")


def _written(rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Many rows at once: a line of the text may be a part of a row, for cells may have lines."""
    text = StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    count = 0
    for count, row in enumerate(rows, 1):
        writer.writerow([cell(value) for value in row])
        if count % _AT_ONCE == 0:
            yield text.getvalue().removesuffix("\n")
            text.seek(0)
            text.truncate()
    if count % _AT_ONCE:
        yield text.getvalue().removesuffix("\n")


def cell(value: Any) -> str:
    """What is not known is empty."""
    if value is None or isinstance(value, Exact):
        return value or ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return ("'" if value.startswith(_FORMULA) else "") + printable(value)
    return str(value)
