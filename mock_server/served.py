"""The served ledger: a row for each request that ended, on disk or in bounded memory."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from ledgers.errors import InputError
from ledgers.rows import RequestRow, TickRow, encode
from ledgers.rundir import RunWriter
from ledgers.summary import write_summary

ROWS_IN_MEMORY = 100_000


class ServedLedger:
    """Rows go to the run directory if there is one; else the latest ones are kept.

    Its methods are called inside ticks: they do not raise. A write that fails calls `on_failure` once.
    """

    def __init__(self, writer: RunWriter | None, on_failure: Callable[[InputError], None]) -> None:
        self._writer = writer
        self._on_failure = on_failure
        self._failed = False
        self._rows: deque[bytes] = deque(maxlen=ROWS_IN_MEMORY)
        self._count = 0
        self._saving: asyncio.Task[None] | None = None
        self._unsaved = False

    @property
    def dropped_count(self) -> int:
        """How many rows the bounded memory has let go."""
        return 0 if self._writer else self._count - len(self._rows)

    def add(self, row: RequestRow) -> None:
        self._count += 1
        if self._writer is None:
            self._rows.append(encode(row))
        else:
            self._try(self._writer.add, row)

    def add_tick(self, row: TickRow) -> None:
        if self._writer:
            self._try(self._writer.add_tick, row)

    def anchored(self, anchor_ns: int, now_ns: int) -> None:
        """Note where t0 lies."""
        if self._writer is None:
            return
        clock = self._writer.info.clock
        clock.t0_monotonic_ns = anchor_ns
        clock.t0_unix_ns = time.time_ns() - (now_ns - anchor_ns)
        self._save_soon()

    def note(self, name: str, value: Any) -> None:
        """Note a setting that explains rows."""
        if self._writer:
            self._writer.info.config.extra = {**self._writer.info.config.extra, name: value}
            self._save_soon()

    def start_over(self) -> None:
        self._count = 0
        self._rows.clear()
        if self._writer:
            self._try(self._writer.start_over)
            self._writer.info.clock.t0_monotonic_ns = self._writer.info.clock.t0_unix_ns = None
            self._save_soon()

    async def lines(self) -> AsyncIterator[bytes]:
        """The ledger as JSONL, in pieces of whole or part lines."""
        if self._writer is None:
            for row in list(self._rows):
                yield row + b"\n"
            return
        with (self._writer.path / "requests.jsonl").open("rb") as file:
            while piece := file.read(2**16):
                yield piece

    async def close(self) -> None:
        """Complete the run directory."""
        if self._writer is None:
            return
        if self._saving:
            await self._saving
        self._writer.close(complete=not self._failed)
        write_summary(self._writer.path)

    def _save_soon(self) -> None:
        """Write `run.json` in a thread, for that waits for the disk; one at a time, the latest state last."""
        self._unsaved = True
        if self._saving is None or self._saving.done():
            self._saving = asyncio.get_running_loop().create_task(self._save())

    async def _save(self) -> None:
        while self._unsaved and self._writer:
            self._unsaved = False
            try:
                await asyncio.to_thread(self._writer.save_info)
            except InputError as error:
                self._fail(error)

    def _try(self, write: Callable[..., None], *row: RequestRow | TickRow) -> None:
        if self._failed:
            return
        try:
            write(*row)
        except InputError as error:
            self._fail(error)

    def _fail(self, error: InputError) -> None:
        if not self._failed:
            self._failed = True
            self._on_failure(error)
