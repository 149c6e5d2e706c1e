"""Requests encoded ahead of their time, as far as time and room allow.

Encoding a long prompt takes tens of milliseconds: it is done in steps between which the loop reads and sends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from ledgers.rows import RequestRow
from ledgers.units import NS_PER_MS, NS_PER_S
from loadgen.pacing import Schedule
from loadgen.prompts import RequestEncoder

_STEP_SLICE_NS = NS_PER_MS // 2


class Bodies:
    """The encoded requests of a ledger that wait for their time: at most `most`, if that is not None."""

    def __init__(
        self, rows: Sequence[RequestRow], schedule: Schedule, encoder: RequestEncoder, most: int | None
    ) -> None:
        self._rows = rows
        self._schedule = schedule
        self._encoder = encoder
        self._most = most
        self._ready: dict[int, bytes] = {}
        self._held_bytes = 0
        self._room = asyncio.Event()

    def take(self, index: int) -> bytes:
        """The request, encoded on the spot if its time came before it was ready."""
        request = self._ready.pop(index, None)
        if request is None:
            return self._encoder.encode(self._rows[index], index)
        self._held_bytes -= len(request)
        self._room.set()
        return request

    async def prepare_one(self, now_ns: int) -> bool:
        """Encode the next one that should be ready; False if there is none, or no room."""
        if self._most is not None and len(self._ready) >= self._most:
            return False
        index = self._schedule.take_to_prepare(now_ns, self._held_bytes)
        if index is None:
            return False
        request = await self.encode(self._rows[index], index)
        if index >= self._schedule.sent:  # else it was due before it was ready
            self._ready[index] = request
            self._held_bytes += len(request)
        await asyncio.sleep(0)
        return True

    async def prepare(self) -> None:
        """Encode until nothing is left to send."""
        while (at_ns := self._schedule.prepare_ns()) is not None:
            now = time.monotonic_ns()
            if not await self.prepare_one(now):
                self._room.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout((at_ns - now) / NS_PER_S if at_ns > now else None):
                        await self._room.wait()

    async def encode(self, row: RequestRow, index: int) -> bytes:
        until = time.monotonic_ns() + _STEP_SLICE_NS
        steps = self._encoder.steps(row, index)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                request: bytes = done.value
                return request
            if time.monotonic_ns() > until:
                await asyncio.sleep(0)
                until = time.monotonic_ns() + _STEP_SLICE_NS
