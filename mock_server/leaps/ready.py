"""Decoding that leaps. Pure.

While there are slots for all, everybody emits at each tick, and only last tokens need a look: a heap has
their ticks. With more ready than slots they take turns tick by tick, as the plain form does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import Protocol

from mock_server.leaps.flight import NEVER, Flight
from mock_server.scheduler import KvPool


class Turns(Protocol):
    """The order in which the ready emit."""

    def __iter__(self) -> Iterator[Flight]: ...

    def join(self, flight: Flight, tick: int) -> None:
        """Take up one that can emit from `tick` on."""

    def remove(self, flight: Flight) -> None: ...

    def settle(self, tick: int) -> None:
        """Everybody who was there emitted in the tick before `tick`."""

    def take(self, most: int) -> list[Flight]:
        """Take off those whose turn it is, in order."""

    def put_back(self, flights: Iterable[Flight], tick: int) -> None:
        """Let them wait again: they have emitted in `tick`."""


class Rotation:
    """One after the other; who has emitted goes to the back."""

    def __init__(self) -> None:
        self._flights: deque[Flight] = deque()

    def __iter__(self) -> Iterator[Flight]:
        return iter(self._flights)

    def join(self, flight: Flight, tick: int) -> None:
        self._flights.append(flight)

    def remove(self, flight: Flight) -> None:
        self._flights.remove(flight)

    def settle(self, tick: int) -> None:
        pass  # all have moved once round

    def take(self, most: int) -> list[Flight]:
        flights = self._flights
        if most >= len(flights):
            turns = list(flights)
            flights.clear()
            return turns
        return [flights.popleft() for _ in range(most)]

    def put_back(self, flights: Iterable[Flight], tick: int) -> None:
        self._flights.extend(flights)


class Ready:
    """The fully prefilled, and their tokens."""

    def __init__(self, turns: Turns, kv: KvPool, slots: int) -> None:
        self._turns = turns
        self._kv = kv
        self._slots = slots
        self._short = False  # of slots: they take turns
        self._enough_from = -1  # the tick from which there were slots for all
        self._last_tokens: list[tuple[int, int, Flight]] = []  # a heap by tick; the cancelled stay in it
        self.count = 0

    def join(self, flight: Flight, tick: int) -> None:
        """Take up one that can emit from `tick` on."""
        flight.phase = "ready"
        flight.ticks.prefill_end = tick
        self.count += 1
        self._turns.join(flight, tick)
        if not self._short:
            self._run(flight, tick)

    def withdraw(self, flight: Flight, tick: int) -> None:
        """Forget one that was cancelled before it could emit in `tick`."""
        self._turns.remove(flight)
        self.count -= 1
        flight.end(tick)
        self._kv.reserved -= flight.reserve
        self._kv.cached -= flight.prompt_tokens + flight.emitted

    def due(self, tick: int) -> int:
        """The next tick after `tick` at which not just everybody emits a token."""
        if self._short or self.count > self._slots:
            return tick + 1
        return self._last_tokens[0][0] if self._last_tokens else NEVER

    def decode(self, tick: int) -> tuple[int, list[Flight]]:
        """How many tokens are emitted in `tick`, and whose last ones are among them."""
        ready = self.count
        if (ready > self._slots) != self._short:
            self._switch(tick)
        ended = self._take_turns(tick) if self._short else self._take_ended(tick)
        emitted = min(ready, self._slots)
        self._kv.cached += emitted
        self.count -= len(ended)
        for flight in ended:
            flight.ticks.last_token = tick
            flight.end(tick + 1)
            self._kv.reserved -= flight.reserve
            self._kv.cached -= flight.reserve
        return emitted, ended

    def _run(self, flight: Flight, tick: int) -> None:
        flight.run_from(tick)
        heappush(self._last_tokens, (flight.run.stop - 1, flight.number, flight))

    def _switch(self, tick: int) -> None:
        self._short = not self._short
        self._last_tokens.clear()
        if self._short:
            self._turns.settle(tick)
        else:
            self._enough_from = tick
        for flight in self._turns:
            if self._short:
                flight.put_down(tick)
            else:
                self._run(flight, tick)

    def _take_turns(self, tick: int) -> list[Flight]:
        turns = self._turns.take(self._slots)
        ended = []
        for flight in turns:
            tokens = flight.tokens
            tokens.append(tick)
            if len(tokens) == flight.output_tokens:
                ended.append(flight)
        self._put_back(turns, ended, tick)
        return ended

    def _take_ended(self, tick: int) -> list[Flight]:
        last_tokens, ended = self._last_tokens, []
        while last_tokens and last_tokens[0][0] <= tick:
            flight = heappop(last_tokens)[2]
            if flight.phase == "ready":
                ended.append(flight)
        if len(ended) > 1:
            return self._in_order(ended, tick)
        for flight in ended:
            self._turns.remove(flight)
        return ended

    def _in_order(self, ended: list[Flight], tick: int) -> list[Flight]:
        """Take off those who end, in order of their turns."""
        if tick > self._enough_from:
            self._turns.settle(tick)
        turns = self._turns.take(self._slots)
        gone = set(ended)
        ended = [flight for flight in turns if flight in gone]
        self._put_back(turns, ended, tick)
        return ended

    def _put_back(self, turns: list[Flight], ended: list[Flight], tick: int) -> None:
        if ended:
            gone = set(ended)
            turns = [flight for flight in turns if flight not in gone]
        self._turns.put_back(turns, tick)
