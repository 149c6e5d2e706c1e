"""When bytes reached this machine: the kernel's receive stamps on the monotonic clock.

On Linux, SO_TIMESTAMPNS makes recvmsg hand out the time at which the newest of the bytes came in, whatever
the event loop was doing then. The kernel stamps on the wall clock; the offset to the monotonic clock is
sampled, and must be sampled again as the wall clock is disciplined (`sample`, once a second) or set
(`follow`, before each round of reads).
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from typing import Literal

from ledgers.units import NS_PER_MS, NS_PER_S

StampSource = Literal["kernel", "read"]

# <asm-generic/socket.h>; the socket module of this Python does not name it, and other systems lack it.
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@ll")
ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)
_unpack = _TIMESPEC.unpack_from
_OFFSET_TRIES = 16
_STEP_NS = NS_PER_MS

Ancillary = list[tuple[int, int, bytes]]


def stamp_source() -> StampSource:
    return "kernel" if sys.platform == "linux" else "read"


def ask_for_stamps(sock: socket.socket) -> None:
    """Turn the stamps on for a socket, before it connects. A kernel without them costs the stamps only."""
    if sys.platform == "linux":
        try:
            sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        except OSError:
            return


class StampClock:
    """Turns kernel stamps into monotonic ones. `largest_step_ns` tells how far the wall clock jumped."""

    def __init__(self) -> None:
        self.source = stamp_source()
        self.offset_ns = self._offset()
        self.largest_step_ns = 0
        self.unstamped = 0
        self._max_read_lag_ns = 0

    def sample(self) -> None:
        offset = self._offset()
        self.largest_step_ns = max(self.largest_step_ns, abs(offset - self.offset_ns))
        self.offset_ns = offset

    def follow(self) -> None:
        """Notice a step of the wall clock before the next stamps are read."""
        if abs(time.monotonic_ns() - time.time_ns() - self.offset_ns) > _STEP_NS:
            self.sample()

    def stamp(self, ancillary: Ancillary, floor_ns: int, now_ns: int) -> int:
        """The time of arrival, not before `floor_ns` and not after the read; the read's without a stamp."""
        if not ancillary or len(ancillary[0][2]) < _TIMESPEC.size:
            self.unstamped += 1
            return now_ns
        seconds, nanoseconds = _unpack(ancillary[0][2])
        ns: int = seconds * NS_PER_S + nanoseconds + self.offset_ns
        if not floor_ns <= ns <= now_ns:
            ns = now_ns if ns > now_ns else floor_ns
        if now_ns - ns > self._max_read_lag_ns:
            self._max_read_lag_ns = now_ns - ns
        return ns

    def take_max_read_lag(self) -> int:
        """How late the loop read what had come, at worst, since the last call."""
        lag_ns, self._max_read_lag_ns = self._max_read_lag_ns, 0
        return lag_ns

    @staticmethod
    def _offset() -> int:
        """Monotonic minus wall clock, from the tightest of a few pairs of readings."""
        best = None
        for _ in range(_OFFSET_TRIES):
            before = time.monotonic_ns()
            wall = time.time_ns()
            after = time.monotonic_ns()
            if best is None or after - before < best[0]:
                best = (after - before, (before + after) // 2 - wall)
        assert best is not None
        return best[1]
