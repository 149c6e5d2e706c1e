"""Wakes the engine when a tick is due. The only timer of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mock_server.engine import Engine


class Ticker:
    """Calls the engine when a tick is due. Timers may wake early: the engine looks at the clock again."""

    def __init__(self, engine: Engine, clock: Callable[[], int]) -> None:
        self._engine = engine
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def arm(self) -> None:
        """To be called after anything that can change when the next tick is due."""
        due_ns = self._engine.due_ns
        if due_ns is not None and self._timer is None and not self._stopped:
            wait_s = max(0, due_ns - self._clock()) / 1e9
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._wake)

    def stop(self) -> None:
        self._stopped = True
        if self._timer:
            self._timer.cancel()

    def _wake(self) -> None:
        self._timer = None
        self._engine.run_due()
        self.arm()
