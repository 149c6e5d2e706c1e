"""`classes`, leaping: the batch policies' way, with a queue and a rotation per class. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import cast

from ledgers.settings import SchedulerSettings
from mock_server.leaps.batch import BatchLeaper, formed_tick
from mock_server.leaps.flight import NEVER, Flight, Queue
from mock_server.policies.classes import Lane, Lanes, take_turns


class LaneTurns:
    """First by reserved slots, then by urgency, as `take_turns` has it."""

    def __init__(self, lanes: Lanes, tick_ns: int) -> None:
        self._lanes = lanes
        self._tick_ns = tick_ns

    def __iter__(self) -> Iterator[Flight]:
        return cast(Iterator[Flight], chain.from_iterable(lane.ready for lane in self._lanes.all))

    def join(self, flight: Flight, tick: int) -> None:
        self.put_back((flight,), tick)

    def remove(self, flight: Flight) -> None:
        self._lanes.of(flight).ready.remove(flight)

    def settle(self, tick: int) -> None:
        before_ns = (tick - 1) * self._tick_ns
        for flight in self:
            if flight.since_ns < before_ns:  # or it has just joined
                flight.since_ns = before_ns

    def take(self, most: int) -> list[Flight]:
        return cast(list[Flight], take_turns(self._lanes.all, most))

    def put_back(self, flights: Iterable[Flight], tick: int) -> None:
        since_ns = tick * self._tick_ns
        for flight in flights:
            flight.since_ns = since_ns
            self._lanes.of(flight).ready.append(flight)


class ClassesLeaper(BatchLeaper):
    """A batch is of the most urgent class that is formed."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._lanes = Lanes(settings)
        super().__init__(settings, settings.max_batch)

    @property
    def queue(self) -> Queue:
        return self._lanes

    def turns(self) -> LaneTurns:
        return LaneTurns(self._lanes, self.tick_ns)

    def opens(self, tick: int) -> int:
        waiting = [lane for lane in self._lanes.all if lane.queue]
        if not waiting:
            return NEVER
        lane = self._most_urgent(tick)
        if lane and self.kv.can_reserve(lane.queue[0]):
            return tick
        formed_ticks = (self._formed_tick(lane, tick) for lane in waiting)
        return min((formed for formed in formed_ticks if formed > tick), default=NEVER)

    def start(self, tick: int) -> None:
        if lane := self._most_urgent(tick):
            self._batch.start(cast(deque[Flight], lane.queue), lane.max_batch, tick)

    def _most_urgent(self, tick: int) -> Lane | None:
        formed = [lane for lane in self._lanes.all if lane.formed(tick * self.tick_ns)]
        return min(formed, key=lambda lane: lane.urgency(lane.queue[0]), default=None)

    def _formed_tick(self, lane: Lane, tick: int) -> int:
        queue = cast(deque[Flight], lane.queue)
        return formed_tick(queue, lane.max_batch, lane.max_wait_ns, tick, self.tick_ns)
