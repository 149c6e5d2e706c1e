"""Wakes the engine when a tick is due. The only timer of the server."""

from __future__ import annotations

import asyncio
import time

from ledgers.alarm import Alarm
from mock_server.engine import Engine


class Ticker:
    """Calls the engine when a tick is due, on the clock of `time.monotonic_ns`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._alarm = Alarm(asyncio.get_running_loop(), self._wake)
        self._set_ns: int | None = None
        self._stopped = False

    def arm(self) -> None:
        """To be called after anything that can change when the next tick is due."""
        due_ns = self._engine.due_ns
        if due_ns is not None and due_ns != self._set_ns and not self._stopped:
            self._set_ns = due_ns
            self._alarm.set(due_ns)

    def check(self) -> None:
        """Run a tick whose time has come while the loop has much else to do in one turn."""
        if self._set_ns is not None and time.monotonic_ns() >= self._set_ns:
            self._wake()

    def stop(self) -> None:
        """No tick runs any more, whatever clients still send."""
        self._stopped, self._set_ns = True, None
        self._alarm.close()

    def _wake(self) -> None:
        self._set_ns = None
        self._engine.run_due()
        self.arm()
