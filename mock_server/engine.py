"""The real-clock driver: the same scheduler, one step for each tick that is due.

Late is not different: a tick admits the requests stamped by its due time, however late it runs, and ticks
that are due together run one after another; what they have for a client is written at once. What came from
outside (receive times, the tick at which a cancellation took effect) is kept in the rows: a simulation fed
with them gives the same ticks.

Knows no event loop and no socket. The clock is an argument; `run_due` is called whenever a tick may be due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from operator import attrgetter
from typing import Protocol

from ledgers.rows import Outcome, RequestRow, TickRow
from ledgers.units import ceil_div
from mock_server.results import describe
from mock_server.scheduler import Rejection, Scheduler, Sequence, Step

AT_ONCE_NS = 10_000_000
_PLACE = attrgetter("place")


class Sink(Protocol):
    """Where a request's tokens go. Called inside a tick: must not block, must not raise."""

    file: int
    """What the bytes of its tokens are to be written to."""

    def token(self, index: int, last: bool) -> bytes | None:
        """What is to be written now; empty if the sink sees to it, None if it leaves with a later token."""

    def held_back(self, rest: bytes) -> None:
        """The kernel did not take this; it is the sink's to keep."""

    def decided(self, rejection: Rejection | None) -> None:
        """The request has its place, or is rejected and over."""

    def abort(self) -> None: ...


HandOver = Callable[[list[tuple[int, bytes]]], list[tuple[int, int]]]
"""Writes to each file its bytes, one right after the other: when, and how many the kernel took."""


class Meter(Protocol):
    """What is told of every tick and of every write, in bulk. Called between ticks: must not raise."""

    def add_tick(self, row: TickRow, prompt_tokens: int) -> None:
        """A tick that was not idle, and how long the prompts are whose prefill ended in it."""

    def add_times(self, first_ns: list[int], gaps_ns: list[int]) -> None:
        """From receipt to first tokens, and from one token to the next, as they were written just now."""


class Job(Sequence):
    """A sequence that came over the network: when it was received, and when each token was written."""

    __slots__ = (
        "cancel_ns",
        "error",
        "fault",
        "first_write_ns",
        "held_tokens",
        "last_write_ns",
        "place",
        "received_ns",
        "request_id",
        "sink",
        "streamed",
        "token_ns",
        "unwritten",
        "unwritten_tokens",
    )

    def __init__(
        self,
        request_id: str | None,
        prompt_tokens: int,
        output_tokens: int,
        sink: Sink,
        *,
        streamed: bool = True,
        class_: str | None = None,
    ) -> None:
        """`request_id` is the client's own. The engine numbers jobs itself, for clients may repeat theirs."""
        super().__init__("", prompt_tokens, output_tokens, class_=class_)
        self.request_id = request_id
        self.sink = sink
        self.streamed = streamed
        self.fault: str | None = None  # once it has struck
        self.error: str | None = None  # why it was cancelled, if not by its client
        self.received_ns = 0
        self.cancel_ns: int | None = None
        self.unwritten = b""  # what it is to get in this turn, and how many tokens are in it
        self.unwritten_tokens = 0
        self.place = -1  # among the writes of a turn, from its first on
        self.held_tokens = 0  # tokens that leave with a later one
        self.first_write_ns: int | None = None
        self.last_write_ns: int | None = None
        self.token_ns: list[int] | None = None


class Engine:
    """Owns the tick grid: anchored at the first arrival after start or reset, and never moved."""

    def __init__(
        self,
        make_scheduler: Callable[[], Scheduler],
        clock: Callable[[], int],
        hand_over: HandOver,
        *,
        on_row: Callable[[RequestRow], None] = lambda _: None,
        on_tick: Callable[[TickRow], None] = lambda _: None,
        on_anchor: Callable[[int], None] = lambda _: None,
        meter: Meter | None = None,
        record_tokens: bool = False,
        record_events: bool = False,
    ) -> None:
        """`clock` gives monotonic ns. `on_row` gets each request's row as it ends, `on_tick` each tick's;
        `on_anchor` when the grid begins.
        """
        self._make_scheduler = make_scheduler
        self._clock = clock
        self._hand_over = hand_over
        self._on_row = on_row
        self._on_tick = on_tick
        self._on_anchor = on_anchor
        self._meter = meter
        self._record_tokens = record_tokens
        self._record_events = record_events
        self._start_over()

    def _start_over(self) -> None:
        self.scheduler = self._make_scheduler()
        self.tick_ns = self.scheduler.hardware.tick_ns
        self.anchor_ns: int | None = None
        self.late_max_ns = 0
        self.jobs: dict[str, Job] = {}
        self.aside: dict[str, RequestRow] = {}  # answered without the scheduler, and not yet at the end
        self._inbox: deque[Job] = deque()
        self._leaving: deque[Job] = deque()
        self._writing: list[Job] = []  # those for whom the ticks of this turn have something
        self._places: list[int] = []  # given back, the smallest first
        self._placed = 0
        self._ended: list[Job] = []  # in this turn
        self._prefilled_tokens = 0  # of the prompts whose prefill ended in the tick under way
        self._last_received_ns = -1
        self._last_due_ns = -1  # of the ticks that have run
        self._received_count = 1

    @property
    def idle(self) -> bool:
        return not self.jobs and not self.aside and self.scheduler.idle

    @property
    def next_number(self) -> int:
        """Of the request that comes next: it will be called by it in the ledger."""
        return self._received_count

    @property
    def due_ns(self) -> int | None:
        """When the next tick is due on the engine's clock; None while there is nothing to do."""
        if self.anchor_ns is None or (not self.jobs and self.scheduler.idle):
            return None
        return self.anchor_ns + self._next_tick() * self.tick_ns

    def submit(self, job: Job) -> None:
        """Stamp a validated request and put it into the inbox, in one synchronous step."""
        job.id, job.received_ns = self._stamp()
        job.arrival_ns = job.received_ns - (self.anchor_ns or 0)
        if self._record_tokens:
            job.token_ns = []
        self.jobs[job.id] = job
        self._inbox.append(job)

    def set_aside(self, row: RequestRow) -> None:
        """Stamp a request that is answered without the scheduler."""
        row.id, received_ns = self._stamp()
        row.received_ns = received_ns - (self.anchor_ns or 0)
        self.aside[row.id] = row

    def end_aside(self, row: RequestRow, outcome: Outcome, http_status: int | None) -> None:
        """Its answer is over."""
        if self.aside.pop(row.id, None) is row:
            row.outcome, row.http_status = outcome, http_status
            row.end_ns = self._clock() - (self.anchor_ns or 0)
            self._on_row(row)

    def cancel(self, job: Job, in_tick: bool = False) -> None:
        """The client left: the request gives up its place at the first tick due after now.

        From inside a tick (`in_tick`) that is the one after it, however late this one runs.
        """
        if job.id not in self.jobs or job.cancel_ns is not None:
            return
        if in_tick:
            job.cancel_ns = self._last_due_ns
            self._leaving.appendleft(job)  # before those that left while this tick was late
        else:
            job.cancel_ns = max(self._clock(), job.received_ns)
            self._leaving.append(job)

    def run_due(self, at_most_ns: int = AT_ONCE_NS) -> None:
        """Run the ticks that are due, one after another.

        Returns with some left after `at_most_ns`, so that an engine that cannot keep up does not starve those
        who would relieve it: clients that leave, a signal to stop.
        """
        begin_ns = self._clock()
        due_ns = self.due_ns
        while due_ns is not None and due_ns <= (now_ns := self._clock()) <= begin_ns + at_most_ns:
            self._run(self._next_tick(), due_ns, now_ns - due_ns)
            due_ns = self.due_ns
        self._write()
        self._tell()

    def reset(self) -> bool:
        """Forget the grid, so that the next arrival anchors a new one. False while requests are in flight."""
        if not self.idle:
            return False
        self._start_over()
        return True

    def abandon(self) -> None:
        """End everything in flight as it stands (for shutdown)."""
        for job in list(self.jobs.values()):
            self._end(job)
            job.sink.abort()
        for row in list(self.aside.values()):
            self.end_aside(row, "unfinished", None)
        self._tell()

    def _stamp(self) -> tuple[str, int]:
        """The id of a request that has just come, and when it was received.

        Stamps strictly increase, so that their order is the order of arrival, and come after every tick that
        has run: a tick admits what is stamped at its very time.
        """
        received_ns = max(self._clock(), self._last_received_ns + 1, self._last_due_ns + 1)
        self._last_received_ns = received_ns
        if self.anchor_ns is None:
            self.anchor_ns = received_ns
            self._on_anchor(received_ns)
        id = f"S{self._received_count}"
        self._received_count += 1
        return id, received_ns

    def _next_tick(self) -> int:
        """The tick after the last one, or after an idle time the one that admits the first newcomer."""
        following = self.scheduler.tick + 1
        if self.scheduler.idle and self._inbox:
            return max(following, ceil_div(self._inbox[0].arrival_ns, self.tick_ns))
        return following

    def _run(self, tick: int, due_ns: int, late_ns: int) -> None:
        arrivals = self._take(self._inbox, lambda job: job.received_ns <= due_ns)
        leaving = self._take(self._leaving, lambda job: (job.cancel_ns or 0) <= due_ns)
        leaving.sort(key=lambda job: job.received_ns)  # in the order in which a simulation has them
        step = self.scheduler.step(tick, arrivals, leaving)
        self._last_due_ns = due_ns
        self.late_max_ns = max(self.late_max_ns, late_ns)
        self._deliver(step)
        if self._record_events:
            step.row.events = [(event.kind, event.sequence.id) for event in step.events]
        if not step.row.idle or step.row.events:
            step.row.late_ns = late_ns
            self._on_tick(step.row)
            if self._meter:
                self._meter.add_tick(step.row, self._prefilled_tokens)

    @staticmethod
    def _take(waiting: deque[Job], ripe: Callable[[Job], bool]) -> list[Job]:
        taken = []
        while waiting and ripe(waiting[0]):
            taken.append(waiting.popleft())
        return taken

    def _deliver(self, step: Step) -> None:
        self._prefilled_tokens = 0
        for kind, job in step.events:
            assert isinstance(job, Job)
            if kind == "token":
                data = job.sink.token(job.emitted - 1, job.emitted == job.output_tokens)
                job.held_tokens += 1
                if data is not None:
                    if not job.unwritten_tokens:
                        self._writing.append(job)
                        if job.place < 0:
                            job.place = heappop(self._places) if self._places else self._placed
                            self._placed = max(self._placed, job.place + 1)
                    job.unwritten += data
                    job.unwritten_tokens += job.held_tokens
                    job.held_tokens = 0
            elif kind == "prefill_end":
                self._prefilled_tokens += job.prompt_tokens
            elif kind in ("finish", "cancel"):
                self._end(job)
            elif kind in ("arrive", "reject"):
                self._decide(job)

    def _write(self) -> None:
        """Nothing but writes between two writes: Python runs slowly after a system call.

        Each job keeps its place among them, whoever ends before it: one that moved up from the last to the
        first would have its gaps shortened by the time that all writes take.
        """
        jobs, self._writing = self._writing, []
        jobs.sort(key=_PLACE)
        taken = self._hand_over([(job.sink.file, job.unwritten) for job in jobs])
        first_ns: list[int] = []
        gaps_ns: list[int] = []
        for job, (at_ns, count) in zip(jobs, taken, strict=True):
            if count < len(job.unwritten):
                job.sink.held_back(job.unwritten[count:])
            if job.last_write_ns is None:
                job.first_write_ns = at_ns
                first_ns.append(at_ns - job.received_ns)
            else:
                gaps_ns.append(at_ns - job.last_write_ns)
            job.last_write_ns = at_ns
            if job.unwritten_tokens > 1:
                gaps_ns += [0] * (job.unwritten_tokens - 1)
            if job.token_ns is not None:
                job.token_ns += [at_ns] * job.unwritten_tokens
            job.unwritten, job.unwritten_tokens = b"", 0
        if self._meter and jobs:
            self._meter.add_times(first_ns, gaps_ns)

    def _decide(self, job: Job) -> None:
        job.sink.decided(job.rejection)
        if job.rejection is not None:
            self._end(job)

    def _end(self, job: Job) -> None:
        del self.jobs[job.id]
        self._ended.append(job)
        if job.place >= 0:
            heappush(self._places, job.place)

    def _tell(self) -> None:
        """Pass on the rows of those that have ended, once all that they were to get has been written."""
        ended, self._ended = self._ended, []
        for job in ended:
            self._on_row(self._row(job))

    def _row(self, job: Job) -> RequestRow:
        t0 = self.anchor_ns or 0
        row = RequestRow(
            id=job.id,
            request_id=job.request_id,
            class_=job.class_,
            prompt_tokens=job.prompt_tokens,
            output_tokens=job.output_tokens,
            streamed=job.streamed,
            fault=job.fault,
        )
        describe(row, job, self.tick_ns)
        if row.outcome == "cancelled":
            row.error = job.error
        row.received_ns = job.received_ns - t0
        row.first_token_ns = None if job.first_write_ns is None else job.first_write_ns - t0
        row.last_token_ns = None if job.last_write_ns is None else job.last_write_ns - t0
        row.end_ns = self._clock() - t0
        if job.token_ns is not None:
            row.token_ns = [token_ns - t0 for token_ns in job.token_ns]
        return row
