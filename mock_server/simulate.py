"""The virtual driver: the scheduler run tick after tick, as fast as it goes. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ledgers.rows import Outcome, RequestRow, TickRow, without_plan
from ledgers.units import ceil_div
from mock_server.arrivals import Arrivals, Aside, PlannedSequence, turns_wait
from mock_server.results import describe
from mock_server.scheduler import EventKind, Scheduler, Sequence, Step

Cancels = Mapping[str, int]
ENDS: Mapping[EventKind, Outcome] = {"finish": "completed", "reject": "rejected", "cancel": "cancelled"}


class SimulatedSequence(PlannedSequence):
    """A sequence that knows when its tokens came."""

    __slots__ = ("token_ticks",)

    def __init__(self, planned: RequestRow) -> None:
        super().__init__(planned)
        self.token_ticks: list[int] = []


def steps(scheduler: Scheduler, arrivals: Arrivals, cancels: Cancels | None = None) -> Iterator[Step]:
    """Every tick from 0 until all requests have ended, but for ticks between which nothing can happen.

    `cancels` maps an id to the tick at which its cancellation takes effect.
    """
    cancelled: defaultdict[int, list[Sequence]] = defaultdict(list)
    tick, tick_ns = 0, scheduler.tick_ns
    while True:
        if scheduler.idle:
            if (next_ns := arrivals.next_ns()) is None:
                return
            tick = max(tick, received_tick(next_ns, tick_ns))
        arrived = [SimulatedSequence(row) for row in arrivals.take(tick * tick_ns)]
        for sequence in arrived:
            if cancels and sequence.id in cancels:
                cancelled[cancels[sequence.id]].append(sequence)
        step = scheduler.step(tick, arrived, cancelled.pop(tick, ()))
        for kind, ended in step.events:
            if kind in ENDS:
                arrivals.ended(ended.id, tick * tick_ns, ENDS[kind])
        yield step
        tick += 1


def simulate(
    scheduler: Scheduler,
    requests: Iterable[RequestRow],
    *,
    cancels: Cancels | None = None,
    on_tick: Callable[[TickRow], None] | None = None,
    record_events: bool = False,
) -> Iterator[RequestRow]:
    """The simulated row of each request with its `token_ns`, in the order in which they end.

    `on_tick` gets a row for every tick from 0 through the last that was not idle or has recorded events.
    A turn of a session whose turn before did not complete is `not_sent`.
    A request that has its outcome already was answered without the scheduler; its row is passed through.
    """
    tick_ns = scheduler.tick_ns
    aside = Aside(requests)
    table = TickTable(on_tick) if on_tick else None
    arrivals = Arrivals(aside.scheduled(), waits=turns_wait(requests))
    for step in steps(scheduler, arrivals, cancels):
        yield from aside.until(step.row.tick * tick_ns)
        if record_events:
            step.row.events = [(event.kind, event.sequence.id) for event in step.events]
        if table:
            table.add(step.row)
        for kind, sequence in step.events:
            assert isinstance(sequence, SimulatedSequence)
            if kind == "token":
                sequence.token_ticks.append(step.row.tick)
            elif kind in ENDS:
                yield _row(sequence, step.row.tick, tick_ns)
        while arrivals.not_sent:
            yield arrivals.not_sent.popleft()
    yield from arrivals.not_sent
    yield from aside.until()


class TickTable:
    """Passes tick rows on through the last that was not idle or has events, with one for each leapt over."""

    def __init__(self, on_tick: Callable[[TickRow], None]) -> None:
        self._on_tick = on_tick
        self._next = 0

    def add(self, row: TickRow) -> None:
        if row.idle and not row.events:
            return
        for tick in range(self._next, row.tick):
            self._on_tick(idle_tick(tick))
        self._on_tick(row)
        self._next = row.tick + 1


def idle_tick(tick: int) -> TickRow:
    return TickRow(tick=tick, queue=0, prefill=0, ready=0, emitted=0, kv_reserved=0, kv_cached=0)


def _row(sequence: SimulatedSequence, tick: int, tick_ns: int) -> RequestRow:
    row = without_plan(sequence.planned)
    row.received_ns = row.arrival_ns
    describe(row, sequence, tick_ns)
    row.token_ns = [token_tick * tick_ns for token_tick in sequence.token_ticks]
    if row.token_ns:
        row.first_token_ns, row.last_token_ns = row.token_ns[0], row.token_ns[-1]
    row.end_ns = tick * tick_ns
    return row


def served_inputs(rows: Iterable[RequestRow]) -> tuple[list[RequestRow], dict[str, int]]:
    """What came to a server from outside, as inputs for `simulate`: requests as received, and cancels."""
    received = [row for row in rows if row.received_ns is not None]
    received.sort(key=lambda row: row.received_ns or 0)
    planned = [
        RequestRow(
            id=row.id,
            request_id=row.request_id,
            class_=row.class_,
            prompt_tokens=row.prompt_tokens,
            output_tokens=row.output_tokens,
            arrival_ns=row.received_ns,
            streamed=row.streamed,
            fault=row.fault,
            **_answer_aside(row),
        )
        for row in received
    ]
    cancels = {row.id: row.ticks.cancel for row in received if row.ticks and row.ticks.cancel is not None}
    return planned, cancels


def _answer_aside(row: RequestRow) -> dict[str, Any]:
    """How a request ended that the scheduler never saw: nothing that could be simulated."""
    if row.ticks is not None:
        return {}
    names = ("outcome", "http_status", "retry_after_s", "error", "end_ns")
    return {name: getattr(row, name) for name in names}


def received_tick(arrival_ns: int, tick_ns: int) -> int:
    """The tick to whose arrivals a request belongs: the first that fires at or after it."""
    return ceil_div(arrival_ns, tick_ns)
