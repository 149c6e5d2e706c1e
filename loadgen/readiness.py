"""Which sockets can be read: one inner epoll for all of them, seen by the event loop as a single file.

A loop that watches each socket itself spends more per token on its own handles than reading costs. Where
there is no epoll, the loop does watch each.
"""

from __future__ import annotations

import asyncio
import select
import sys
from collections.abc import Callable

_MOST_PER_ROUND = 1_024


class Readiness:
    """Calls back for every readable socket, then `after_round` once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        before_round: Callable[[], None],
        after_round: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._before_round = before_round
        self._after_round = after_round
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._scheduled = False
        if sys.platform == "linux":
            self._epoll = select.epoll()
            loop.add_reader(self._epoll.fileno(), self._round)

    def watch(self, file: int, callback: Callable[[], None]) -> None:
        if sys.platform == "linux":
            self._callbacks[file] = callback
            self._epoll.register(file, select.EPOLLIN)
        else:
            self._loop.add_reader(file, self._one, callback)

    def forget(self, file: int) -> None:
        """Stop watching; nothing happens if it was not watched."""
        if sys.platform == "linux":
            if self._callbacks.pop(file, None) is not None:
                self._epoll.unregister(file)
        else:
            self._loop.remove_reader(file)

    def close(self) -> None:
        if sys.platform == "linux":
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    def _round(self) -> None:
        """Read everything that is readable before anything is looked at."""
        callbacks = self._callbacks
        self._before_round()
        for file, _ in self._epoll.poll(0, _MOST_PER_ROUND):
            if file in callbacks:
                callbacks[file]()
        self._after_round()

    def _one(self, callback: Callable[[], None]) -> None:
        callback()
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._end_round)

    def _end_round(self) -> None:
        self._scheduled = False
        self._after_round()
