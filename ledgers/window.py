"""Which requests completed in the observation window, told while the run goes on. Pure.

The window ends a tail after the last arrival. Where turns wait for answers, nobody knows that one beforehand:
what would complete behind the end as it is known is kept until a later arrival moves the end, or for good.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Generic, TypeVar

from ledgers.metrics import NEVER, Tail, completed_by, leave_ns, window_end_ns
from ledgers.rows import RequestRow

T = TypeVar("T")


class Window(Generic[T]):
    """From t0 to the tail's end; rows go in as they end, what is wanted of those in it comes out."""

    def __init__(self, last_arrival_ns: int, tail_s: Tail, *, grows: bool) -> None:
        """`grows`: the last arrival is not known beforehand; it may come later than planned, or never."""
        self._end_ns = window_end_ns(0 if grows else last_arrival_ns, tail_s)
        self._tail_s = tail_s
        self._grows = grows
        self._count = 0
        self._held: list[tuple[int, int, T]] = []  # a heap: the first to leave first

    def take(self, row: RequestRow, values: Callable[[], T]) -> list[T]:
        """The values of this row, and of those before it, that are known now to belong to the window."""
        found = []
        if self._grows and row.arrival_ns is not None:
            self._end_ns = max(self._end_ns, window_end_ns(row.arrival_ns, self._tail_s))
            while self._held and self._held[0][0] <= self._end_ns:
                found.append(heappop(self._held)[2])
        if completed_by(row, self._end_ns):
            found.append(values())
        elif self._grows and completed_by(row, NEVER):
            self._count += 1
            heappush(self._held, (leave_ns(row) or 0, self._count, values()))
        return found
