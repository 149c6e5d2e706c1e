"""Which sockets can be read: rounds of reading, each over all that can be, with a rest between them.

What the kernel has dated need not be read at once. So bytes after a quiet time are read when they come, but
those that come in a crowd are read together: a thousand streams cost a thousand wake-ups per second, not one
per token. The sockets are in an epoll of their own, of which the event loop sees only a gate
that is shut while we rest. Without epoll nothing dates bytes for us either: every socket wakes the loop.
"""

from __future__ import annotations

import asyncio
import select
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from ledgers.alarm import Alarm
from ledgers.units import NS_PER_MS
from loadgen.stamps import ANCILLARY_BYTES

READ_BYTES = 16_384
_REST_NS = NS_PER_MS
_CROWD = range(8, 40)  # sockets in a round: worth a rest, and after two there would be not too many
_MOST_PER_ROUND = 128  # then the loop looks at its timers: to read so many takes half a millisecond


Received = tuple[bytes, list[tuple[int, int, bytes]], int, Any] | OSError
Take = Callable[[Received, int], None]


def receive(sock: socket.socket) -> Received:
    """One read: the bytes and what came beside them, or the error that it met."""
    try:
        return sock.recvmsg(READ_BYTES, ANCILLARY_BYTES)
    except OSError as error:
        return error


class Readiness:
    """Reads every readable socket, hands on what each gave, and calls `after_round` once for all of them.

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
        self._watched: dict[int, tuple[socket.socket, Take]] = {}
        if sys.platform == "linux":
            self._sockets = select.epoll()
            self._gate = select.epoll()
            self._gate.register(self._sockets.fileno(), select.EPOLLIN | select.EPOLLONESHOT)
            self._rest = Alarm(loop, self._rested)
            loop.add_reader(self._gate.fileno(), self._gate_opened)
        else:
            self._sockets = select.poll()

    def watch(self, sock: socket.socket, take: Take) -> None:
        """From now on `take` gets what a read gave, or the error it met, and the time when it was over."""
        file = sock.fileno()
        self._watched[file] = (sock, take)
        self._sockets.register(file, select.POLLIN)
        if sys.platform != "linux":
            self._loop.add_reader(file, self.look)

    def forget(self, file: int) -> None:
        """Stop watching; nothing happens if it was not watched."""
        if self._watched.pop(file, None) is None:
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
            self._read([file for file, _ in readable])
            self._after_round()
        if len(readable) != _MOST_PER_ROUND:
            self.seen_ns = now
        return len(readable)

    def _read(self, files: list[int]) -> None:
        # As little as can be between two reads: after each the processor has forgotten how Python runs.
        watched = self._watched
        results: list[tuple[int, Take, Received]] = []
        for file in files:
            sock, take = watched[file]
            try:
                results.append((file, take, sock.recvmsg(READ_BYTES, ANCILLARY_BYTES)))
            except OSError as error:
                results.append((file, take, error))
        now = time.monotonic_ns()
        for file, take, received in results:
            if file in watched:  # else what another one gave had it closed
                take(received, now)

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
        elif count and self._round_ns - before_ns < 3 * _REST_NS:
            self._rest.set(self._round_ns + (2 if count in _CROWD else 1) * _REST_NS)
        else:
            self._gate.modify(self._sockets.fileno(), select.EPOLLIN | select.EPOLLONESHOT)
