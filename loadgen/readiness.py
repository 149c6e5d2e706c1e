"""Which sockets can be read: rounds of reading, each over all that can be, with a rest between them.

What the kernel has dated need not be read at once. So bytes after a quiet time are read when they come, but
those that come in a crowd are read together: a thousand streams cost a thousand wake-ups per second, not one
per token. The sockets are in an epoll of their own, of which the event loop sees only a gate
that is shut while we rest. Without epoll nothing dates bytes for us either: every socket wakes the loop.
"""

from __future__ import annotations

import asyncio
import select
import sys
import time
from collections.abc import Callable

from ledgers.units import NS_PER_MS
from loadgen.alarm import Alarm

_REST_NS = NS_PER_MS
_MOST_PER_ROUND = 128  # then the loop looks at its timers: to read so many takes half a millisecond


class Readiness:
    """Calls back for every readable socket, and `after_round` once when all of them were.

    What came before `seen_ns` has been read.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        before_round: Callable[[], None],
        after_round: Callable[[], None],
    ) -> None:
        self.seen_ns = 0
        self._round_ns = 0
        self._loop = loop
        self._before_round = before_round
        self._after_round = after_round
        self._callbacks: dict[int, Callable[[], None]] = {}
        if sys.platform == "linux":
            self._sockets = select.epoll()
            self._gate = select.epoll()
            self._gate.register(self._sockets.fileno(), select.EPOLLIN | select.EPOLLONESHOT)
            self._rest = Alarm(loop, self._rested)
            loop.add_reader(self._gate.fileno(), self._gate_opened)
        else:
            self._sockets = select.poll()

    def watch(self, file: int, callback: Callable[[], None]) -> None:
        self._callbacks[file] = callback
        self._sockets.register(file, select.POLLIN)
        if sys.platform != "linux":
            self._loop.add_reader(file, self.look)

    def forget(self, file: int) -> None:
        """Stop watching; nothing happens if it was not watched."""
        if self._callbacks.pop(file, None) is None:
            return
        self._sockets.unregister(file)
        if sys.platform != "linux":
            self._loop.remove_reader(file)

    def look(self) -> None:
        """Read all that has come."""
        while self.round() == _MOST_PER_ROUND:
            pass

    def round(self) -> int:
        """Read a number of sockets, before anything of it is looked at: of how many there was something."""
        now = self._round_ns = time.monotonic_ns()
        if sys.platform == "linux":
            readable = self._sockets.poll(0, _MOST_PER_ROUND)
        else:
            readable = self._sockets.poll(0)
        if readable:
            self._before_round()
            callbacks = self._callbacks
            for file, _ in readable:
                if file in callbacks:
                    callbacks[file]()
            self._after_round()
        if len(readable) != _MOST_PER_ROUND:
            self.seen_ns = now
        return len(readable)

    def close(self) -> None:
        if sys.platform == "linux":
            self._rest.close()
            self._loop.remove_reader(self._gate.fileno())
            self._gate.close()
            self._sockets.close()

    def _gate_opened(self) -> None:
        self._gate.poll(0)  # which shuts it
        self._rested()

    def _rested(self) -> None:
        """Go on reading and resting while bytes come in a crowd; else wait for the next."""
        before_ns = self._round_ns
        count = self.round()
        if count == _MOST_PER_ROUND:
            self._rest.set(0)
        elif count and self._round_ns - before_ns < 2 * _REST_NS:
            self._rest.set(self._round_ns + _REST_NS)
        else:
            self._gate.modify(self._sockets.fileno(), select.EPOLLIN | select.EPOLLONESHOT)
