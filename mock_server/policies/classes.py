"""`classes`: a queue and a rotation per traffic class, reserved slots, priority that ageing makes up for.

The rules are in docs/class-queues.md. Without a file of classes they are those of `continuous`.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heapreplace

from ledgers.settings import SchedulerSettings
from ledgers.traffic import EVERY_OTHER, TrafficClass
from ledgers.units import to_ns
from mock_server.policies.batch import PrefillBatch, formed
from mock_server.scheduler import Scheduler, Sequence

Urgency = tuple[int, int, int]


class Lane:
    """A class: those of it that wait, and those that decode in turn."""

    def __init__(self, rules: TrafficClass, settings: SchedulerSettings) -> None:
        self.max_batch = rules.max_batch or settings.max_batch
        self.max_wait_ns = rules.max_wait_ns(settings.max_wait_ns)
        self.reserved_slots = rules.reserved_slots
        self._head_start_ns = rules.priority * to_ns(settings.traffic.ageing_s)
        self.queue: deque[Sequence] = deque()
        self.ready: deque[Sequence] = deque()

    def urgency(self, sequence: Sequence) -> Urgency:
        """The smallest is the most urgent. No two are equal, and time changes none of them."""
        return sequence.since_ns - self._head_start_ns, sequence.since_ns, sequence.number

    def formed(self, now_ns: int) -> bool:
        return bool(self.queue) and formed(self.queue, self.max_batch, self.max_wait_ns, now_ns)


class Lanes:
    """All classes, and what waits in them as one waiting line."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._tick_ns = settings.hardware.tick_ns
        self._by_name = {
            name: Lane(rules, settings) for name, rules in settings.traffic.every_class().items()
        }
        self.all: tuple[Lane, ...] = tuple(self._by_name.values())

    def of(self, sequence: Sequence) -> Lane:
        return self._by_name.get(sequence.class_ or EVERY_OTHER) or self._by_name[EVERY_OTHER]

    def append(self, sequence: Sequence, /) -> None:
        sequence.since_ns = (sequence.ticks.received or 0) * self._tick_ns
        self.of(sequence).queue.append(sequence)

    def remove(self, sequence: Sequence, /) -> None:
        self.of(sequence).queue.remove(sequence)

    def __len__(self) -> int:
        return sum(len(lane.queue) for lane in self.all)


class Classes:
    """Decode from all rotations; start a batch of the most urgent class that is formed; advance it."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.queue = Lanes(settings)
        self.batch = PrefillBatch()

    def serve(self, scheduler: Scheduler) -> int:
        now_ns = scheduler.now_ns
        turns = take_turns(self.queue.all, scheduler.hardware.decode_slots)
        for sequence in turns:
            if not scheduler.emit(sequence):
                self._join(sequence, now_ns)
        if not self.batch:
            self._start(scheduler, now_ns)
        if self.batch:
            for sequence in self.batch.advance(scheduler):
                self._join(sequence, now_ns + scheduler.tick_ns)
        return len(turns)

    def withdraw(self, sequence: Sequence) -> None:
        if sequence.phase == "ready":
            self.queue.of(sequence).ready.remove(sequence)

    def counts(self) -> tuple[int, int]:
        return self.batch.in_prefill, sum(len(lane.ready) for lane in self.queue.all)

    @property
    def busy(self) -> bool:
        return bool(self.batch) or any(lane.ready for lane in self.queue.all)

    def _join(self, sequence: Sequence, since_ns: int) -> None:
        sequence.since_ns = since_ns
        self.queue.of(sequence).ready.append(sequence)

    def _start(self, scheduler: Scheduler, now_ns: int) -> None:
        waiting = [lane for lane in self.queue.all if lane.formed(now_ns)]
        if waiting:
            lane = min(waiting, key=lambda lane: lane.urgency(lane.queue[0]))
            self.batch.start(scheduler, lane.queue, lane.max_batch)


def take_turns(lanes: tuple[Lane, ...], slots: int) -> list[Sequence]:
    """Those who emit a token in this tick: first by reserved slots, then by urgency."""
    turns: list[Sequence] = []
    for lane in lanes:
        turns += [lane.ready.popleft() for _ in range(min(lane.reserved_slots, len(lane.ready)))]
    fronts = [(lane.urgency(lane.ready[0]), lane) for lane in lanes if lane.ready]
    heapify(fronts)
    while fronts and len(turns) < slots:
        lane = fronts[0][1]
        turns.append(lane.ready.popleft())
        if lane.ready:
            heapreplace(fronts, (lane.urgency(lane.ready[0]), lane))
        else:
            heappop(fronts)
    return turns
