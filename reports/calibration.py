"""A calibration without its processes: the loads of the ladder, and what a rung comes to. Pure.

Two patterns bound what a server does. In lock step every stream gets a token at the same instant, once a gap.
Staggered, the streams take turns, a few at a time in short ticks: each gets its token once a gap as well, but
the client never rests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ledgers.calibration import LIMIT_MS, Pattern, Rung, Verdict
from ledgers.distributions import distribution
from ledgers.rows import RequestRow
from ledgers.settings import Hardware, SchedulerSettings
from ledgers.units import NS_PER_MS, NS_PER_S, ceil_div
from reports.stamp_errors import StampErrors, Truth, stamp_errors

GAP_S = 0.02  # 50 tokens per second in each stream
TURNS = 20  # ticks in a gap, where streams take turns
SENT_PER_S = 300  # requests: a server has more to do for one than for a token
PATIENCE_S = 1.0
FIRST_TOKENS = 30  # fewer would say little of TTFT, so few streams come in more batches
MOST_BATCHES = 10
PROMPT_TOKENS = 16
AMPLE = 10**9  # tokens, of prefill and of KV: a request waits for nothing but its turn
LATE_SHARE = 0.05  # of the ticks with tokens: more than a hiccup


def settings(pattern: Pattern, streams: int) -> SchedulerSettings:
    """A server that collects a batch of so many requests, and then gives each a token once a gap.

    It prefills all of them at once, so no stream has company that it should not have: fewer of them would
    take turns faster. Should a request not come, the others wait for it a little, and go on without it.
    """
    slots = streams if pattern == "lock step" else ceil_div(streams, TURNS)
    return SchedulerSettings(
        policy="static",
        max_batch=streams,
        max_wait_ns=round((streams / SENT_PER_S + PATIENCE_S) * NS_PER_S),
        hardware=Hardware(
            tick_s=GAP_S * slots / streams,
            prefill_tokens_per_tick=AMPLE,
            decode_slots=slots,
            kv_budget_tokens=AMPLE,
        ),
    )


def planned(streams: int, seconds: float) -> list[RequestRow]:
    """Batch after batch: the requests of one are sent while the one before is streaming."""
    batches = min(MOST_BATCHES, max(2, FIRST_TOKENS // streams))
    batch_s, first_s = seconds / batches, streams / SENT_PER_S
    rows = []
    for number in range(batches * streams):
        batch, place = divmod(number, streams)
        sent_s = (batch - 1 + place / streams) * max(batch_s, first_s) if batch else place / SENT_PER_S
        rows.append(
            RequestRow(
                id=f"C{number + 1}",
                prompt_tokens=PROMPT_TOKENS,
                output_tokens=max(2, round(batch_s / GAP_S)),
                arrival_ns=round((first_s * bool(batch) + sent_s) * NS_PER_S),
            )
        )
    return rows


class Driven(NamedTuple):
    """What client and server recorded of one rung; `client` is that section of the client's summary."""

    requests: int
    rows: Sequence[RequestRow]
    truths: Mapping[str, Truth]
    ticks_late_ns: Sequence[int]
    client: Mapping[str, Any]
    workers: int


def truths(served: Iterable[RequestRow], measured: Iterable[RequestRow], shift_ns: int) -> dict[str, Truth]:
    """What the server wrote for each request that it answered to the end, from the client's send on.

    `shift_ns` brings the client's times to the server's zero, for both have one clock. So a token's error is
    that of its stamp alone, and not what the server took to read the request.
    """
    sent = {row.request_id: row.sent_ns + shift_ns for row in measured if row.sent_ns is not None}
    return {
        row.request_id: Truth(
            sent[row.request_id], row.first_token_ns, row.last_token_ns, row.output_tokens, row.token_ns
        )
        for row in served
        if row.request_id in sent and row.outcome == "completed"
        if row.first_token_ns is not None and row.last_token_ns is not None and row.request_id
    }


def judged(pattern: Pattern, streams: int, driven: Driven) -> Rung:
    """The rung: what came, how far off its stamps were, and whether that was the client's doing."""
    errors, incomplete = _errors(driven)
    first, every = (distribution(map(abs, values)) for values in (errors.first, errors.each))
    verdict, reasons = _verdict(driven, incomplete)
    if verdict == "ok" and any(found and found.p99 >= LIMIT_MS for found in (first, every)):
        verdict = "over 1 ms"
    lag = driven.client["send_lag_ms"]
    return Rung(
        pattern=pattern,
        streams=streams,
        tokens_per_s=_tokens_per_s(driven.rows, streams, settings(pattern, streams).hardware.tick_s),
        first_ms=first,
        token_ms=every,
        upper_bound_share=_upper_bound_share(driven.rows),
        send_lag_p99_ms=lag["p99"] if lag else None,
        cpu_share=driven.client["cpu_share_mean"],
        workers=driven.workers,
        verdict=verdict,
        reasons=reasons,
    )


def _errors(driven: Driven) -> tuple[StampErrors, list[str]]:
    """The errors, or why there are none: figures that leave some requests out look better than they are."""
    try:
        return stamp_errors(driven.rows, driven.truths, driven.requests), []
    except ValueError as error:
        return stamp_errors([], {}, 0), [str(error)]


def _verdict(driven: Driven, incomplete: list[str]) -> tuple[Verdict, list[str]]:
    """A server that is late writes tokens together, so nothing is said of the client then."""
    late_ns = sorted(driven.ticks_late_ns)
    gap_ns = round(GAP_S * NS_PER_S)
    late = sum(ns > gap_ns for ns in late_ns)
    if late > LATE_SHARE * len(late_ns):
        share, most_ms = late / len(late_ns), late_ns[-1] / NS_PER_MS
        why = f"{share:.0%} of the ticks ran more than {GAP_S * 1000:g} ms late, up to {most_ms:.0f} ms"
        return "server-limited", [why, *incomplete]
    if driven.client["client_limited"]:
        return "client-limited", [*driven.client["reasons"], *incomplete]
    return ("server-limited" if incomplete else "ok"), incomplete


def _tokens_per_s(rows: Sequence[RequestRow], streams: int, tick_s: float) -> float:
    """What came while a batch was streaming, through its last tick: each begins when the last has ended."""
    spans = sorted((row.first_token_ns, row.last_token_ns or 0) for row in rows if row.first_token_ns)
    batches = [spans[i : i + streams] for i in range(0, len(spans), streams)]
    streaming_s = sum(max(last for _, last in batch) - batch[0][0] for batch in batches) / NS_PER_S
    tokens = sum(row.events or 0 for row in rows)
    return tokens / (streaming_s + tick_s * len(batches)) if batches else 0.0


def _upper_bound_share(rows: Sequence[RequestRow]) -> float | None:
    events = sum(row.events or 0 for row in rows)
    return sum(row.shared_reads or 0 for row in rows) / events if events else None
