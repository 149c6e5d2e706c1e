"""What the scheduler knows of an ended sequence, as fields of a row, for either driver."""

from __future__ import annotations

from ledgers.rows import RequestRow
from ledgers.units import NS_PER_S, ceil_div
from mock_server.faults import settle
from mock_server.scheduler import Rejection, Sequence

HTTP_STATUS: dict[Rejection, int] = {"context_length_exceeded": 400, "queue_full": 429}


def retry_after_s(tick_ns: int) -> int:
    """What a client is told whom a full queue turned away: nothing comes free before the next tick."""
    return ceil_div(tick_ns, NS_PER_S)


def describe(row: RequestRow, sequence: Sequence, tick_ns: int) -> None:
    """Fill in ticks, due times, tokens and outcome. Times count from tick 0."""
    ticks = sequence.ticks
    row.ticks = ticks
    row.prefill_start_ns = None if ticks.prefill_start is None else ticks.prefill_start * tick_ns
    row.prefill_end_ns = None if ticks.prefill_end is None else ticks.prefill_end * tick_ns
    row.tokens = row.events = sequence.emitted
    row.token_source = "schedule"
    if row.streamed is None:
        row.streamed = True
    if ticks.last_token is not None:
        row.outcome, row.finish_reason = "completed", "length"
    elif ticks.cancel is not None:
        row.outcome = "cancelled"
    elif sequence.rejection is not None:
        row.outcome, row.error = "rejected", sequence.rejection
        row.http_status = HTTP_STATUS[sequence.rejection]
        if sequence.rejection == "queue_full":
            row.retry_after_s = retry_after_s(tick_ns)
    else:
        row.outcome = "unfinished"
    if row.fault:
        settle(row)
