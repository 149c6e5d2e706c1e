"""`chunked`, leaping. Pure.

Those in prefill get a whole chunk in each tick as far as the hardware's tokens reach: their last chunk's tick
is known. Of the others one gets what is left, the rest nothing.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from ledgers.settings import SchedulerSettings
from ledgers.units import ceil_div
from mock_server.leaps.flight import NEVER, Flight, Queue
from mock_server.leaps.ready import Ready, Rotation
from mock_server.scheduler import KvPool


class ChunkedLeaper:
    """A decode takes a slot; each slot left advances one prefill by a chunk."""

    def __init__(self, settings: SchedulerSettings) -> None:
        hardware = settings.hardware
        self.kv = KvPool(hardware.kv_budget_tokens)
        self._waiting: deque[Flight] = deque()
        self.starved = 0
        self._slots = hardware.decode_slots
        self._chunk = settings.prefill_chunk
        self._tokens_per_tick = hardware.prefill_tokens_per_tick
        self._ready = Ready(Rotation(), self.kv, self._slots)  # there are slots for all who were admitted
        self._in_prefill = 0
        self._steady = 0  # how many of them get a whole chunk in each tick
        self._last_chunks: list[tuple[int, int, Flight]] = []  # a heap; the cancelled stay in it
        self._others: deque[Flight] = deque()

    @property
    def queue(self) -> Queue:
        return self._waiting

    def serve(self, tick: int) -> tuple[int, list[Flight]]:
        emitted, ended = self._ready.decode(tick)
        while self._in_prefill < self._slots - emitted and self._admits():
            self._admit(tick)
        self._advance(tick)
        return emitted, sorted(ended, key=lambda flight: flight.number)

    def due(self, tick: int) -> int:
        """The next tick after `tick` at which not just everybody emits, or gets the same as before."""
        if self._in_prefill < self._slots - self._ready.count and self._admits():
            return tick + 1
        if self._others and self._steady < self._most_steady:
            return tick + 1
        chunk = self._last_chunks[0][0] if self._last_chunks else NEVER
        return min(self._ready.due(tick), chunk, self._other_due(tick))

    def pace(self) -> tuple[int, int]:
        left = self._left
        growth = self._steady * self._chunk + (left if self._others else 0)
        return self._ready.count + growth, len(self._others) - (left > 0 and bool(self._others))

    def leap(self, ticks: int) -> None:
        if self._others:
            self._others[0].prefilled += ticks * self._left

    def withdraw(self, flight: Flight, tick: int) -> None:
        if flight.phase == "ready":
            self._ready.withdraw(flight, tick)
            return
        self._in_prefill -= 1
        if flight.steady_from is None:
            self._others.remove(flight)
        else:
            self._steady -= 1
            flight.prefilled += (tick - flight.steady_from) * self._chunk
        self.kv.reserved -= flight.reserve
        self.kv.cached -= flight.prefilled
        flight.end(tick)

    def counts(self) -> tuple[int, int]:
        return self._in_prefill, self._ready.count

    @property
    def busy(self) -> bool:
        return bool(self._in_prefill or self._ready.count)

    @property
    def _most_steady(self) -> int:
        return self._tokens_per_tick // self._chunk

    @property
    def _left(self) -> int:
        """What a tick leaves for the others if nobody's last chunk is smaller."""
        return self._tokens_per_tick - self._steady * self._chunk

    def _admits(self) -> bool:
        return bool(self._waiting) and self.kv.can_reserve(self._waiting[0])

    def _admit(self, tick: int) -> None:
        flight = self._waiting.popleft()
        self.kv.reserve(flight)
        flight.phase = "prefill"
        flight.ticks.prefill_start = tick
        self._in_prefill += 1
        self._others.append(flight)

    def _advance(self, tick: int) -> None:
        while self._others and self._steady < self._most_steady:
            self._make_steady(self._others.popleft(), tick)
        used = self._steady * self._chunk
        while self._last_chunks and self._last_chunks[0][0] <= tick:
            flight = heappop(self._last_chunks)[2]
            if flight.phase == "prefill":
                used -= -(flight.prompt_tokens - flight.prefilled) % self._chunk
                self._steady -= 1
                self._finish(flight, tick)
        used += self._advance_others(tick, self._tokens_per_tick - used)
        self.kv.cached += used

    def _make_steady(self, flight: Flight, tick: int) -> None:
        self._steady += 1
        flight.steady_from = tick
        ticks = ceil_div(flight.prompt_tokens - flight.prefilled, self._chunk)
        heappush(self._last_chunks, (tick + ticks - 1, flight.number, flight))

    def _advance_others(self, tick: int, tokens: int) -> int:
        """Give them what is left, in order; how many tokens they took."""
        left, self.starved, finished = tokens, 0, False
        for place, flight in enumerate(self._others):
            if not left:
                self.starved = len(self._others) - place
                break
            share = min(self._chunk, flight.prompt_tokens - flight.prefilled, left)
            flight.prefilled += share
            left -= share
            if flight.prefilled == flight.prompt_tokens:
                self._finish(flight, tick)
                finished = True
        if finished:
            self._others = deque(flight for flight in self._others if flight.phase == "prefill")
        return tokens - left

    def _finish(self, flight: Flight, tick: int) -> None:
        self._in_prefill -= 1
        self._ready.join(flight, tick + 1)

    def _other_due(self, tick: int) -> int:
        if not self._others or not (left := self._left):
            return NEVER
        first = self._others[0]
        return tick + ceil_div(first.prompt_tokens - first.prefilled, left)
