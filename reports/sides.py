"""What an agreement is made from: the ledgers of one replay, brought to one set of ids and one clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ledgers.rows import RequestRow, TickRow
from ledgers.settings import SchedulerSettings, Slo

TIMES = (
    "arrival_ns",
    "due_ns",
    "send_start_ns",
    "sent_ns",
    "received_ns",
    "headers_ns",
    "prefill_start_ns",
    "prefill_end_ns",
    "first_token_ns",
    "first_content_ns",
    "last_token_ns",
    "end_ns",
)


class Side(NamedTuple):
    """The rows of one ledger by id, and its tick rows."""

    rows: dict[str, RequestRow]
    ticks: dict[int, TickRow]


class Inputs(NamedTuple):
    """What is compared. Rows are keyed by the planned id; measured times are on the tick grid's clock."""

    order: Sequence[str]  # the ids of the ledger, first come first
    planned: Side
    served: Side
    resimulated: Side
    measured: dict[str, RequestRow]
    settings: SchedulerSettings
    slo: Slo
    tail_ns: int | None
    client_lag_max_ns: int
    client_limits: Sequence[str]  # why the load generator was the bottleneck, if it was
    stall_limit_ns: int


def on_clock(row: RequestRow, shift_ns: int) -> RequestRow:
    """The row with all its times shifted."""
    changes: dict[str, object] = {
        name: t + shift_ns for name in TIMES if (t := getattr(row, name)) is not None
    }
    if row.token_ns is not None:
        changes["token_ns"] = [t + shift_ns for t in row.token_ns]
    return msgspec.structs.replace(row, **changes)


def state(tick: TickRow | None) -> tuple[int, ...]:
    """What a tick row says of the scheduler; a tick without a row was idle."""
    if tick is None or tick.idle:
        return ()
    return tick.queue, tick.prefill, tick.ready, tick.emitted, tick.kv_reserved, tick.kv_cached
