"""The virtual driver that leaps: from one tick in which something changes to the next. Pure.

Arrivals, cancellations, the end of a prefill, a last token and the end of a wait change something. In the
ticks between them everybody who is ready emits a token: their rows differ in two numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import chain
from typing import NamedTuple, Protocol

from ledgers.rows import RequestRow, without_plan
from ledgers.settings import SchedulerSettings
from ledgers.tick_runs import TickRun, TickTable
from ledgers.units import ceil_div
from mock_server.arrivals import Arrivals, Aside, turns_wait
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


class Coming:
    """Requests as they come, and the cancellations of those that have come."""

    def __init__(self, arrivals: Arrivals, cancels: Mapping[str, int], tick_ns: int) -> None:
        self._arrivals = arrivals
        self._cancels = cancels
        self._tick_ns = tick_ns
        self._leaving: defaultdict[int, list[Flight]] = defaultdict(list)
        self._leaving_ticks: list[int] = []
        self._count = 0

    def take(self, tick: int) -> list[Flight]:
        return [self._flight(row, tick) for row in self._arrivals.take(tick * self._tick_ns)]

    def _flight(self, row: RequestRow, tick: int) -> Flight:
        flight = Flight(row)
        flight.number = self._count
        flight.ticks.received = tick
        self._count += 1
        leaves = self._cancels.get(flight.id)
        if leaves is not None:
            if leaves not in self._leaving:
                heappush(self._leaving_ticks, leaves)
            self._leaving[leaves].append(flight)
        return flight

    def leaving(self, tick: int) -> list[Flight]:
        while self._leaving_ticks and self._leaving_ticks[0] < tick:
            del self._leaving[heappop(self._leaving_ticks)]
        if self._leaving_ticks and self._leaving_ticks[0] == tick:
            return self._leaving.pop(heappop(self._leaving_ticks))
        return []

    def next_arrival(self) -> int:
        """The tick at which the next request comes; to be asked while none is here."""
        return self._tick_of(self._arrivals.next_ns())

    def due(self) -> int:
        """Nobody comes or leaves before this tick, unless one that is here ends."""
        leaving = self._leaving_ticks[0] if self._leaving_ticks else NEVER
        return min(self._tick_of(self._arrivals.earliest_ns()), leaving)

    def _tick_of(self, arrival_ns: int | None) -> int:
        return NEVER if arrival_ns is None else ceil_div(arrival_ns, self._tick_ns)


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
    aside = Aside(requests)
    arrivals = Arrivals(aside.scheduled(), waits=turns_wait(requests))
    coming = Coming(arrivals, cancels or {}, tick_ns)
    tick = coming.next_arrival()
    while tick != NEVER:
        ended = scheduler.step(tick, coming.take(tick), coming.leaving(tick))
        yield from (Ended(row, None) for row in aside.until(tick * tick_ns))
        for flight in ended:
            row = _row(flight, tick, tick_ns)
            arrivals.ended(flight.id, tick * tick_ns, flight.outcome)
            yield Ended(row, flight)
        while arrivals.not_sent:
            yield Ended(arrivals.not_sent.popleft(), None)
        if scheduler.idle:
            tick = max(tick + 1, coming.next_arrival())
        else:
            tick = scheduler.leap(tick, max(tick + 1, coming.due()))
    yield from (Ended(row, None) for row in chain(arrivals.not_sent, aside.until()))


def _row(flight: Flight, tick: int, tick_ns: int) -> RequestRow:
    row = without_plan(flight.planned)
    row.received_ns = row.arrival_ns
    describe(row, flight, tick_ns)
    if flight.ticks.first_token is not None:
        row.first_token_ns = flight.ticks.first_token * tick_ns
        row.last_token_ns = (flight.run or flight.tokens)[-1] * tick_ns
    row.end_ns = tick * tick_ns
    return row
