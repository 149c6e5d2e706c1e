"""The virtual driver that leaps: from one tick in which something changes to the next. Pure.

Arrivals, cancellations, the end of a prefill, a last token and the end of a wait change something. In the
ticks between them everybody who is ready emits a token: their rows differ in two numbers.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

from ledgers.rows import RequestRow, without_plan
from ledgers.settings import SchedulerSettings
from ledgers.tick_runs import TickRun, TickTable
from ledgers.units import ceil_div
from mock_server.leaps.flight import NEVER, Flight, Queue
from mock_server.results import describe
from mock_server.scheduler import KvPool, Rejection


class Leaper(Protocol):
    """A policy that says when it has to be asked next."""

    @property
    def kv(self) -> KvPool: ...

    @property
    def queue(self) -> Queue: ...

    @property
    def starved(self) -> int:
        """Slot holders that got no prefill tokens in the tick just served."""

    @property
    def busy(self) -> bool:
        """Whether any work is left in service."""

    def serve(self, tick: int) -> tuple[int, list[Flight]]:
        """Steps 2 to 4 of a tick: how many tokens were emitted, and who emitted the last."""

    def due(self, tick: int) -> int:
        """The next tick that must be served, if nobody comes or leaves before."""

    def pace(self) -> tuple[int, int]:
        """Until then: by how much the cached tokens grow in each tick, and how many are starved."""

    def leap(self, ticks: int) -> None:
        """Let so many ticks pass before the one that is due."""

    def withdraw(self, flight: Flight, tick: int) -> None:
        """Forget one in service that is cancelled in `tick`."""

    def counts(self) -> tuple[int, int]:
        """How many are in prefill, and how many are fully prefilled and unfinished."""


class Ended(NamedTuple):
    """The row of a request without its `token_ns`, and from what to get them, if it was scheduled."""

    row: RequestRow
    flight: Flight | None


class Arrivals:
    """Requests as they come, those that have their outcome already, and the cancellations of those here."""

    def __init__(self, requests: Iterable[RequestRow], cancels: Mapping[str, int], tick_ns: int) -> None:
        self._requests = iter(requests)
        self._cancels = cancels
        self._tick_ns = tick_ns
        self._aside: deque[RequestRow] = deque()
        self._leaving: defaultdict[int, list[Flight]] = defaultdict(list)
        self._leaving_ticks: list[int] = []
        self._count = 0
        self.tick = NEVER
        self._advance()

    def _advance(self) -> None:
        for row in self._requests:
            if row.outcome is None:
                self._following = row
                self.tick = ceil_div(row.arrival_ns or 0, self._tick_ns)
                return
            self._aside.append(without_plan(row, received_ns=row.arrival_ns))
        self.tick = NEVER

    def take(self, tick: int) -> Iterator[Flight]:
        while self.tick <= tick:
            flight = Flight(self._following)
            flight.number = self._count
            flight.ticks.received = tick
            self._count += 1
            leaves = self._cancels.get(flight.id)
            if leaves is not None:
                if leaves not in self._leaving:
                    heappush(self._leaving_ticks, leaves)
                self._leaving[leaves].append(flight)
            self._advance()
            yield flight

    def leaving(self, tick: int) -> list[Flight]:
        while self._leaving_ticks and self._leaving_ticks[0] < tick:
            del self._leaving[heappop(self._leaving_ticks)]
        if self._leaving_ticks and self._leaving_ticks[0] == tick:
            return self._leaving.pop(heappop(self._leaving_ticks))
        return []

    def due(self) -> int:
        return min(self.tick, self._leaving_ticks[0] if self._leaving_ticks else NEVER)

    def aside(self, until_ns: int | None = None) -> Iterator[Ended]:
        """Those passed through that end by then."""
        while self._aside and (until_ns is None or (self._aside[0].end_ns or 0) <= until_ns):
            yield Ended(self._aside.popleft(), None)


class LeapingScheduler:
    """One leaper, and what is the same in every policy: who is let in, who leaves, and the tick rows."""

    def __init__(
        self, settings: SchedulerSettings, leaper: Leaper, on_ticks: Callable[[TickRun], None] | None
    ) -> None:
        hardware = settings.hardware
        self.tick_ns = hardware.tick_ns
        self._leaper = leaper
        self._max_queue = NEVER if settings.max_queue is None else settings.max_queue
        self._longest = min(hardware.kv_budget_tokens, settings.max_model_len or hardware.kv_budget_tokens)
        self._table = TickTable(on_ticks) if on_ticks else None

    @property
    def idle(self) -> bool:
        """Nothing queued and nothing in service."""
        return not (self._leaper.busy or self._leaper.queue)

    def step(self, tick: int, arrivals: list[Flight], leaving: list[Flight]) -> list[Flight]:
        """Serve a tick; those who end in it, in order."""
        leaper = self._leaper
        ended = [flight for flight in arrivals if not self._let_in(flight)]
        for flight in leaving:
            if flight.phase != "ended":
                self._cancel(flight, tick)
                ended.append(flight)
        emitted, finished = leaper.serve(tick)
        if self._table:
            kv, (prefill, ready) = leaper.kv, leaper.counts()
            queue = len(leaper.queue)
            self._table.add(
                TickRun(tick, 1, queue, prefill, ready, emitted, kv.reserved, kv.cached, 0, leaper.starved)
            )
        return ended + finished if ended else finished

    def leap(self, tick: int, until: int) -> int:
        """Let the ticks pass between `tick` and the next that must be served, `until` at the latest."""
        leaper = self._leaper
        until = min(until, leaper.due(tick))
        if ticks := until - tick - 1:
            kv, (growth, starved) = leaper.kv, leaper.pace()
            if self._table:
                prefill, ready = leaper.counts()
                first, queue, cached = tick + 1, len(leaper.queue), kv.cached + growth
                self._table.add(
                    TickRun(first, ticks, queue, prefill, ready, ready, kv.reserved, cached, growth, starved)
                )
            kv.cached += ticks * growth
            leaper.leap(ticks)
        return until

    def _let_in(self, flight: Flight) -> bool:
        flight.rejection = self._rejection(flight)
        if flight.rejection is None:
            flight.phase = "queued"
            self._leaper.queue.append(flight)
            return True
        flight.phase = "ended"
        return False

    def _rejection(self, flight: Flight) -> Rejection | None:
        if flight.reserve > self._longest:
            return "context_length_exceeded"
        return "queue_full" if len(self._leaper.queue) >= self._max_queue else None

    def _cancel(self, flight: Flight, tick: int) -> None:
        if flight.phase == "queued":
            self._leaper.queue.remove(flight)
            flight.phase = "ended"
        else:
            self._leaper.withdraw(flight, tick)
        flight.ticks.cancel = tick


def leap(
    settings: SchedulerSettings,
    leaper: Leaper,
    requests: Iterable[RequestRow],
    *,
    cancels: Mapping[str, int] | None = None,
    on_ticks: Callable[[TickRun], None] | None = None,
) -> Iterator[Ended]:
    """Each request in the order in which they end. As `simulate`, which does it tick by tick.

    `on_ticks` gets runs of tick rows, from tick 0 through the last that was not idle.
    """
    scheduler = LeapingScheduler(settings, leaper, on_ticks)
    tick_ns = scheduler.tick_ns
    arrivals = Arrivals(requests, cancels or {}, tick_ns)
    tick = arrivals.tick
    while tick != NEVER:
        ended = scheduler.step(tick, list(arrivals.take(tick)), arrivals.leaving(tick))
        yield from arrivals.aside(tick * tick_ns)
        for flight in ended:
            yield Ended(_row(flight, tick, tick_ns), flight)
        tick = max(tick + 1, arrivals.tick) if scheduler.idle else scheduler.leap(tick, arrivals.due())
    yield from arrivals.aside()


def _row(flight: Flight, tick: int, tick_ns: int) -> RequestRow:
    row = without_plan(flight.planned)
    row.received_ns = row.arrival_ns
    describe(row, flight, tick_ns)
    if flight.ticks.first_token is not None:
        row.first_token_ns = flight.ticks.first_token * tick_ns
        row.last_token_ns = (flight.run or flight.tokens)[-1] * tick_ns
    row.end_ns = tick * tick_ns
    return row
