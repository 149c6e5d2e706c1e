"""Signals that ask a run to stop: the first time gently, then at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from types import TracebackType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Counts them while the block runs, and passes each on to `tell`. Afterwards they are ignored.

    What nohup or a shell's background has us ignore stays ignored.
    """

    def __init__(self) -> None:
        self.count = 0
        self.tell: Callable[[], None] = lambda: None
        self._handled: list[signal.Signals] = []

    def __enter__(self) -> Interrupts:
        self._handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        for number in self._handled:
            asyncio.get_running_loop().add_signal_handler(number, self._came)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in self._handled:
            asyncio.get_running_loop().remove_signal_handler(number)
            # What is left is to complete the files and to show them.
            signal.signal(number, signal.SIG_IGN)

    def _came(self) -> None:
        self.count += 1
        self.tell()
