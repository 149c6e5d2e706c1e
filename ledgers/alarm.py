"""Waking at an absolute time of the monotonic clock, to the microsecond where the system can.

The timers of event loops move in steps of a millisecond and may fire early. A Linux timerfd does neither: it
is one more file to wait for. Elsewhere the loop's own timer wakes us, and whoever is woken looks at the clock
again anyway.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable

from ledgers.units import NS_PER_S

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1


class _Timespec(ctypes.Structure):
    _fields_ = [("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long)]


class _ItimerSpec(ctypes.Structure):
    _fields_ = [("it_interval", _Timespec), ("it_value", _Timespec)]


class Alarm:
    """Calls `ring` once for each `set`. One time at a time: a new one replaces the old."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
        self._spec = _ItimerSpec()
        self._wake = ctypes.byref(self._spec)
        self._file = self._open()

    def set(self, at_ns: int) -> None:
        """Ring at `at_ns` on time.monotonic_ns, or at once if that is over."""
        if self._file is None:
            self._set_on_loop(at_ns)
            return
        at = self._spec.it_value
        at.tv_sec, at.tv_nsec = divmod(max(at_ns, 1), NS_PER_S)  # a zero would disarm the timer
        assert self._libc is not None
        if self._libc.timerfd_settime(self._file, _TFD_TIMER_ABSTIME, self._wake, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        if self._file is not None:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = None

    def _open(self) -> int | None:
        if self._libc is None or not hasattr(self._libc, "timerfd_create"):
            return None
        file: int = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if file < 0:
            return None
        self._loop.add_reader(file, self._readable, file)
        return file

    def _readable(self, file: int) -> None:
        try:
            os.read(file, 8)
        except BlockingIOError:  # set anew since the loop saw it
            return
        self._ring()

    def _set_on_loop(self, at_ns: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        wait_s = max(0, at_ns - time.monotonic_ns()) / NS_PER_S
        self._handle = self._loop.call_later(wait_s, self._ring)
