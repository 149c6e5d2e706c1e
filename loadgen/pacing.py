"""When to send, when to connect and when to encode: all from the ledger's intended arrivals. Pure.

Times are absolute: computed once, never "sleep the gap", so that no delay adds to the next. Nothing is due
before its time, nothing late is skipped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

FAR_NS = 2**63 - 1


class Schedule:
    """The intended sends of a run, in order.

    `connect_ahead_ns`, `prepare_ahead_ns` and `prepare_bytes` say how long before its send a request's
    connection is opened and its body encoded, and how many bytes of encoded bodies may wait.
    """

    def __init__(
        self,
        arrivals_ns: Sequence[int],
        *,
        connect_ahead_ns: int = 50_000_000,
        prepare_ahead_ns: int = 2_000_000_000,
        prepare_bytes: int = 64 << 20,
    ) -> None:
        """`arrivals_ns` count from t0 and never decrease. ValueError if they do."""
        if any(later < earlier for earlier, later in pairwise(arrivals_ns)):
            raise ValueError("arrivals decrease")
        self._arrivals = arrivals_ns
        self._t0 = 0
        self._connect_ahead = connect_ahead_ns
        self._prepare_ahead = prepare_ahead_ns
        self._prepare_bytes = prepare_bytes
        self._sent = 0  # requests before this index are on their way
        self._connecting = 0  # requests before this index have been connected for
        self._prepared = 0

    def start(self, t0_ns: int) -> None:
        """Fix the time from which arrivals count."""
        self._t0 = t0_ns

    def __len__(self) -> int:
        return len(self._arrivals)

    @property
    def remaining(self) -> int:
        return len(self._arrivals) - self._sent

    @property
    def sent(self) -> int:
        return self._sent

    def at_ns(self, index: int) -> int:
        """The intended send of a request, on the clock of `start`."""
        return self._t0 + self._arrivals[index]

    def last_ns(self) -> int:
        """The last intended send of all; t0 if there is none."""
        return self.at_ns(len(self) - 1) if len(self) else self._t0

    def next_ns(self) -> int:
        """When the next request is to be sent; far in the future if there is none."""
        return self.at_ns(self._sent) if self.remaining else FAR_NS

    def take_due(self, now_ns: int) -> int | None:
        """The next request whose time has come, each once and in order; None when there is none."""
        if self._sent >= len(self._arrivals) or self.at_ns(self._sent) > now_ns:
            return None
        self._sent += 1
        return self._sent - 1

    def due_by(self, now_ns: int) -> int:
        """How many requests were to be sent until now."""
        return bisect_right(self._arrivals, now_ns - self._t0)

    def unsent_soon(self, now_ns: int) -> int:
        """How many requests will want a connection within the look-ahead; counts each look as done."""
        horizon = now_ns + self._connect_ahead - self._t0
        self._connecting = max(self._connecting, bisect_right(self._arrivals, horizon))
        return max(0, self._connecting - self._sent)

    def wake_ns(self) -> int | None:
        """When something is to be sent or connected next; None when all has been."""
        times = []
        if self._sent < len(self._arrivals):
            times.append(self.at_ns(self._sent))
        if self._connecting < len(self._arrivals):
            times.append(self.at_ns(self._connecting) - self._connect_ahead)
        return min(times, default=None)

    def close(self) -> int:
        """Nothing more will be sent: how many were left."""
        left = self.remaining
        self._arrivals = self._arrivals[: self._sent]
        self._connecting = self._prepared = self._sent
        return left

    def take_to_prepare(self, now_ns: int, held_bytes: int) -> int | None:
        """The next request whose body should be encoded now, each once; None while there is time or no room.

        Requests that were sent without having been prepared are passed over.
        """
        self._prepared = max(self._prepared, self._sent)
        at = self.prepare_ns()
        if at is None or at > now_ns or held_bytes >= self._prepare_bytes:
            return None
        self._prepared += 1
        return self._prepared - 1

    def prepare_ns(self) -> int | None:
        """When the next body is to be encoded, room permitting; None when all have been."""
        if self._prepared >= len(self._arrivals):
            return None
        return self.at_ns(self._prepared) - self._prepare_ahead


class Places:
    """How many requests may be in flight, and when each place came free. `count` None is without a limit."""

    def __init__(self, count: int | None = None) -> None:
        self._count = count
        self._taken = 0
        self._freed = deque([0] * (count or 0))  # when the free places came free

    @property
    def left(self) -> int | None:
        """How many more may be taken now; None when any number."""
        return None if self._count is None else self._count - self._taken

    @property
    def full(self) -> bool:
        return self._taken == self._count

    def take(self, wanted_ns: int) -> int | None:
        """Take a place wanted since `wanted_ns`: since when it could be had, None where there is no limit."""
        self._taken += 1
        if self._count is None:
            return None
        return max(wanted_ns, self._freed.popleft())

    def give_back(self, ns: int) -> None:
        self._taken -= 1
        if self._count is not None:
            self._freed.append(ns)
