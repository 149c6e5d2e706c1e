"""`immediate`, `static` and `continuous`, leaping: one prefill batch at a time beside the ready. Pure."""

from __future__ import annotations

from collections import deque

from ledgers.settings import SchedulerSettings
from ledgers.units import ceil_div
from mock_server.leaps.flight import NEVER, Flight, Queue
from mock_server.leaps.ready import Ready, Rotation, Turns
from mock_server.scheduler import KvPool


class Batch:
    """The prefill batch under way, if there is one, of which only the tokens done are counted."""

    def __init__(self, kv: KvPool, tokens_per_tick: int) -> None:
        self._kv = kv
        self._tokens_per_tick = tokens_per_tick
        self._members: list[Flight] = []
        self._done = self._total = 0
        self.in_prefill = 0

    def __bool__(self) -> bool:
        return bool(self._members)

    @property
    def whole(self) -> bool:
        """Whether no member was cancelled, so that every token done is cached."""
        return self.in_prefill == len(self._members)

    @property
    def growth(self) -> int:
        """How many tokens a tick adds in which the batch is not finished."""
        return self._tokens_per_tick if self._members else 0

    def start(self, queue: deque[Flight], most: int, tick: int) -> None:
        """Admit the longest FIFO prefix of at most `most` that fits beside what is reserved."""
        members: list[Flight] = []
        while queue and len(members) < most and self._kv.can_reserve(queue[0]):
            flight = queue.popleft()
            self._kv.reserve(flight)
            flight.phase = "prefill"
            flight.ticks.prefill_start = tick
            members.append(flight)
        self._members = members
        self.in_prefill = len(members)
        self._done, self._total = 0, sum(flight.prompt_tokens for flight in members)

    def advance(self) -> list[Flight]:
        """Prefill for one tick. Those who are ready now: all of the batch, or none."""
        done = min(self._done + self._tokens_per_tick, self._total)
        self._kv.cached += done - self._done if self.whole else self._kept(done) - self._kept(self._done)
        self._done = done
        if done < self._total:
            return []
        ready = [flight for flight in self._members if flight.phase == "prefill"]
        self._members, self.in_prefill = [], 0
        return ready

    def leap(self, ticks: int) -> None:
        """Prefill in so many ticks, in none of which the batch is finished."""
        if self._members:
            self._done += ticks * self._tokens_per_tick

    def due(self, tick: int) -> int:
        """The next tick after `tick` at which not just its tokens are done."""
        if not self._members:
            return NEVER
        return tick + ceil_div(self._total - self._done, self._tokens_per_tick) if self.whole else tick + 1

    def withdraw(self, flight: Flight, tick: int) -> None:
        """One is cancelled, and stays for its bill."""
        self._kv.cached -= dict(self._shares(self._done))[flight]
        self._kv.reserved -= flight.reserve
        flight.end(tick)
        self.in_prefill -= 1

    def _kept(self, done: int) -> int:
        """How many of the tokens done are those of members that were not cancelled."""
        return sum(share for flight, share in self._shares(done) if flight.phase == "prefill")

    def _shares(self, done: int) -> list[tuple[Flight, int]]:
        """How many of the tokens done are each member's."""
        shares = []
        for flight in self._members:
            share = min(done, flight.prompt_tokens)
            done -= share
            shares.append((flight, share))
        return shares


class BatchLeaper:
    """Decode, start a batch if one may start, and advance it."""

    starved = 0

    def __init__(
        self, settings: SchedulerSettings, max_batch: int, max_wait_ns: int = 0, *, alone: bool = False
    ) -> None:
        """A batch starts when it is formed; if `alone`, when nobody is ready either."""
        hardware = settings.hardware
        self.tick_ns = hardware.tick_ns
        self.kv = KvPool(hardware.kv_budget_tokens)
        self._max_batch = max_batch
        self._max_wait_ns = max_wait_ns
        self._alone = alone
        self._waiting: deque[Flight] = deque()
        self._batch = Batch(self.kv, hardware.prefill_tokens_per_tick)
        self._ready = Ready(self.turns(), self.kv, hardware.decode_slots)

    @property
    def queue(self) -> Queue:
        return self._waiting

    def turns(self) -> Turns:
        """The order in which the ready emit."""
        return Rotation()

    def serve(self, tick: int) -> tuple[int, list[Flight]]:
        emitted, ended = self._ready.decode(tick)
        if not self._batch and self.opens(tick) == tick:
            self.start(tick)
        if self._batch:
            for flight in self._batch.advance():
                self._ready.join(flight, tick + 1)
        return emitted, ended

    def opens(self, tick: int) -> int:
        """The first tick from `tick` on at which a batch may start, unless anything changes before."""
        queue = self._waiting
        if not queue or (self._alone and self._ready.count) or not self.kv.can_reserve(queue[0]):
            return NEVER
        return formed_tick(queue, self._max_batch, self._max_wait_ns, tick, self.tick_ns)

    def start(self, tick: int) -> None:
        self._batch.start(self._waiting, self._max_batch, tick)

    def due(self, tick: int) -> int:
        decode = self._ready.due(tick)
        return min(decode, self._batch.due(tick) if self._batch else self.opens(tick + 1))

    def pace(self) -> tuple[int, int]:
        return self._ready.count + self._batch.growth, 0

    def leap(self, ticks: int) -> None:
        self._batch.leap(ticks)

    def withdraw(self, flight: Flight, tick: int) -> None:
        if flight.phase == "ready":
            self._ready.withdraw(flight, tick)
        else:
            self._batch.withdraw(flight, tick)

    def counts(self) -> tuple[int, int]:
        return self._batch.in_prefill, self._ready.count

    @property
    def busy(self) -> bool:
        return bool(self._batch or self._ready.count)


def formed_tick(queue: deque[Flight], max_batch: int, max_wait_ns: int, tick: int, tick_ns: int) -> int:
    """The first tick from `tick` on at which enough requests wait, or the head has waited long enough."""
    if len(queue) >= max_batch:
        return tick
    return max(tick, ceil_div(queue[0].arrival_ns + max_wait_ns, tick_ns))
