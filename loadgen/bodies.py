"""Requests encoded ahead of their time, as far as time and room allow.

Encoding a long prompt takes tens of milliseconds: it is done in steps between which the loop reads and sends.
"""

from __future__ import annotations

import asyncio
import time

from ledgers.rows import RequestRow
from ledgers.units import NS_PER_MS, NS_PER_S
from loadgen.pacing import Schedule
from loadgen.prompts import RequestEncoder
from loadgen.requests import Requests

_STEP_SLICE_NS = NS_PER_MS // 2
_AT_LEAST_S = 0.1
_TURN_BYTES = 64 << 20


class _Ready:
    """Encoded requests that wait for their time."""

    def __init__(self, requests: Requests, encoder: RequestEncoder) -> None:
        self._requests = requests
        self._encoder = encoder
        self._ready: dict[int, tuple[RequestRow, bytes]] = {}
        self._held_bytes = 0
        self._change = asyncio.Event()

    def take(self, index: int) -> tuple[RequestRow, bytes]:
        """The planned row and the request, encoded on the spot if its time came before it was ready."""
        ready = self.drop(index)
        if ready is None:
            row = self._requests[index]
            return row, self._encoder.encode(row, self._requests.text_number(index))
        return ready

    def drop(self, index: int) -> tuple[RequestRow, bytes] | None:
        """Forget one, which is handed over if it was ready."""
        ready = self._ready.pop(index, None)
        if ready is not None:
            self._held_bytes -= len(ready[1])
            self._change.set()
        return ready

    async def _encode(self, index: int) -> tuple[RequestRow, bytes]:
        row = self._requests[index]
        return row, await _encoded(self._encoder, row, self._requests.text_number(index))

    def _keep(self, index: int, ready: tuple[RequestRow, bytes]) -> None:
        self._ready[index] = ready
        self._held_bytes += len(ready[1])


class Bodies(_Ready):
    """The encoded requests of a ledger that wait for their time: at most `most`, if that is not None."""

    def __init__(
        self,
        requests: Requests,
        schedule: Schedule,
        encoder: RequestEncoder,
        most: int | None,
    ) -> None:
        super().__init__(requests, encoder)
        self._schedule = schedule
        self._most = most

    def has(self, index: int) -> bool:
        return index in self._ready

    async def prepare_one(self, now_ns: int) -> bool:
        """Encode the next one that should be ready; False if there is none, or no room."""
        if self._most is not None and len(self._ready) >= self._most:
            return False
        index = self._schedule.take_to_prepare(now_ns, self._held_bytes)
        if index is None:
            return False
        ready = await self._encode(index)
        if index >= self._schedule.sent:  # else it was due before it was ready
            self._keep(index, ready)
        await asyncio.sleep(0)
        return True

    async def prepare(self) -> None:
        """Encode until nothing is left to send."""
        while (at_ns := self._schedule.prepare_ns()) is not None:
            now = time.monotonic_ns()
            if await self.prepare_one(now):
                continue
            if at_ns > now:  # many at a time: it is early enough for all of them
                await asyncio.sleep(max(_AT_LEAST_S, (at_ns - now) / NS_PER_S))
            else:
                self._change.clear()
                await self._change.wait()


class TurnBodies(_Ready):
    """The encoded requests of turns that wait, made while the answer before comes, as far as room allows."""

    def __init__(self, requests: Requests, encoder: RequestEncoder) -> None:
        super().__init__(requests, encoder)
        self._wanted: dict[int, None] = {}  # in order

    def want(self, index: int) -> None:
        self._wanted[index] = None
        self._change.set()

    def drop(self, index: int) -> tuple[RequestRow, bytes] | None:
        self._wanted.pop(index, None)
        return super().drop(index)

    async def prepare(self) -> None:
        """Encode what is wanted, for as long as the run lasts."""
        while True:
            index = next(iter(self._wanted), None)
            if index is None or self._held_bytes >= _TURN_BYTES:
                self._change.clear()
                await self._change.wait()
                continue
            ready = await self._encode(index)
            if index in self._wanted:  # else it was due before it was ready
                del self._wanted[index]
                self._keep(index, ready)
            await asyncio.sleep(0)


async def _encoded(encoder: RequestEncoder, row: RequestRow, number: int) -> bytes:
    until = time.monotonic_ns() + _STEP_SLICE_NS
    steps = encoder.steps(row, number)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            request: bytes = done.value
            return request
        if time.monotonic_ns() > until:
            await asyncio.sleep(0)
            until = time.monotonic_ns() + _STEP_SLICE_NS
