"""The virtual driver: the scheduler run tick after tick, as fast as it goes. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count

import msgspec

from ledgers.rows import RequestRow, TickRow
from ledgers.units import ceil_div
from mock_server.results import describe
from mock_server.scheduler import Scheduler, Sequence, Step

Cancels = Mapping[str, int]


class SimulatedSequence(Sequence):
    """A sequence that knows its planned row and when its tokens came."""

    __slots__ = ("planned", "token_ticks")

    def __init__(self, planned: RequestRow) -> None:
        super().__init__(planned.id, planned.prompt_tokens, planned.output_tokens, planned.arrival_ns or 0)
        self.planned = planned
        self.token_ticks: list[int] = []


def steps(
    scheduler: Scheduler, sequences: Iterable[Sequence], cancels: Cancels | None = None
) -> Iterator[Step]:
    """Every tick from 0 until all sequences have ended.

    `sequences` are in FIFO order, `arrival_ns` non-decreasing. `cancels` maps an id to the tick at which its
    cancellation takes effect.
    """
    waiting = deque(sequences)
    cancelled: dict[int, list[Sequence]] = {}
    for sequence in waiting:
        if cancels and sequence.id in cancels:
            cancelled.setdefault(cancels[sequence.id], []).append(sequence)
    for tick in count():
        now_ns = tick * scheduler.hardware.tick_ns
        arrivals = []
        while waiting and waiting[0].arrival_ns <= now_ns:
            arrivals.append(waiting.popleft())
        yield scheduler.step(tick, arrivals, cancelled.pop(tick, ()))
        if not waiting and scheduler.idle:
            return


def simulate(
    scheduler: Scheduler,
    requests: Iterable[RequestRow],
    *,
    cancels: Cancels | None = None,
    on_tick: Callable[[TickRow], None] = lambda _: None,
    on_gap: Callable[[int], None] = lambda _: None,
    record_tokens: bool = False,
    record_events: bool = False,
) -> Iterator[RequestRow]:
    """The simulated row of each request, in the order in which they end.

    `on_tick` gets a row for every tick from 0 through the last that was not idle; `on_gap` every gap in ns
    between consecutive tokens of a request.
    """
    tick_ns = scheduler.hardware.tick_ns
    idle: list[TickRow] = []
    for step in steps(scheduler, map(SimulatedSequence, requests), cancels):
        if record_events:
            step.row.events = [(event.kind, event.sequence.id) for event in step.events]
        idle.append(step.row)
        if not step.row.idle:
            for row in idle:
                on_tick(row)
            idle.clear()
        for kind, sequence in step.events:
            assert isinstance(sequence, SimulatedSequence)
            if kind == "token":
                if sequence.token_ticks:
                    on_gap((step.row.tick - sequence.token_ticks[-1]) * tick_ns)
                sequence.token_ticks.append(step.row.tick)
            elif kind in ("finish", "reject", "cancel"):
                yield _row(sequence, step.row.tick, tick_ns, record_tokens)


def _row(sequence: SimulatedSequence, tick: int, tick_ns: int, record_tokens: bool) -> RequestRow:
    row = msgspec.structs.replace(sequence.planned, prompt=None, prefix=None)
    row.received_ns = row.arrival_ns
    describe(row, sequence, tick_ns)
    if row.ticks and row.ticks.first_token is not None:
        row.first_token_ns = sequence.token_ticks[0] * tick_ns
        row.last_token_ns = sequence.token_ticks[-1] * tick_ns
    row.end_ns = tick * tick_ns
    if record_tokens:
        row.token_ns = [token_tick * tick_ns for token_tick in sequence.token_ticks]
    return row


def served_inputs(rows: Iterable[RequestRow]) -> tuple[list[RequestRow], dict[str, int]]:
    """What came to a server from outside, as inputs for `simulate`: requests as received, and cancels."""
    received = [row for row in rows if row.received_ns is not None]
    received.sort(key=lambda row: row.received_ns or 0)
    planned = [
        RequestRow(
            id=row.id,
            request_id=row.request_id,
            prompt_tokens=row.prompt_tokens,
            output_tokens=row.output_tokens,
            arrival_ns=row.received_ns,
        )
        for row in received
    ]
    cancels = {row.id: row.ticks.cancel for row in received if row.ticks and row.ticks.cancel is not None}
    return planned, cancels


def received_tick(arrival_ns: int, tick_ns: int) -> int:
    """The tick to whose arrivals a request belongs: the first that fires at or after it."""
    return ceil_div(arrival_ns, tick_ns)
