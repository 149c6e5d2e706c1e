"""Wakes the engine when a tick is due. The only timer of the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ledgers.alarm import Alarm
from mock_server.engine import Engine


class Ticker:
    """Calls the engine when a tick is due, on the clock of `time.monotonic_ns`."""

    def __init__(self, engine: Engine, on_failure: Callable[[Exception], None]) -> None:
        """`on_failure` gets what a tick raised, whoever called it; no tick runs after that."""
        self._engine = engine
        self._on_failure = on_failure
        self._alarm = Alarm(asyncio.get_running_loop(), self._wake)
        self._set_ns: int | None = None
        self._behind = False
        self._stopped = False

    def arm(self) -> None:
        """To be called after anything that can change when the next tick is due."""
        due_ns = self._engine.due_ns
        if due_ns is not None and due_ns != self._set_ns and not self._stopped:
            self._set_ns = due_ns
            self._behind = due_ns <= time.monotonic_ns()
            self._alarm.set(due_ns)

    def check(self) -> None:
        """Run a tick whose time has come while the loop has much else to do in one turn.

        One that was late already when it was armed is left to the alarm: an engine that cannot keep up would
        else run ticks between any two reads, and hardly anything would be read.
        """
        if self._set_ns is not None and not self._behind and time.monotonic_ns() >= self._set_ns:
            self._wake()

    def stop(self) -> None:
        """No tick runs any more, whatever clients still send."""
        self._stopped, self._set_ns = True, None
        self._alarm.close()

    def _wake(self) -> None:
        self._set_ns = None
        try:
            self._engine.run_due()
        except Exception as error:  # a caller that reads from a client would take it for that client's fault
            self.stop()
            self._on_failure(error)
        else:
            self.arm()
