"""What leaves next: of the schedule, turns that were let go, further attempts.

Owns what is made ahead: bodies long before their time, whole requests shortly before it. When a request is
due there is only to send it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from typing import NamedTuple

import msgspec

from ledgers.rows import RequestRow
from ledgers.units import NS_PER_MS
from loadgen.bodies import Bodies
from loadgen.pacing import Schedule
from loadgen.prompts import RequestEncoder
from loadgen.recorder import Recorder
from loadgen.requests import Requests
from loadgen.turns import Later, Turns

_ARM_AHEAD_NS = 50 * NS_PER_MS
_MOST_ARMED = 128


class Leaving(NamedTuple):
    """A request, and the plan by which it leaves if it is none of the schedule's."""

    which: int  # of the requests
    recorder: Recorder
    request: bytes
    later: Later | None = None


class Outgoing:
    """Everything of a share that is yet to leave at a time that is known. `later` is a heap."""

    def __init__(
        self,
        requests: Requests,
        schedule: Schedule,
        encoder: RequestEncoder,
        turns: Turns,
        record: Callable[[RequestRow], Recorder],
        most_in_flight: int | None,
    ) -> None:
        self.later: list[Later] = []
        self._requests = requests
        self._schedule = schedule
        self._encoder = encoder
        self._turns = turns
        self._record = record
        self._bodies = Bodies(requests, schedule, encoder, most_in_flight)
        self._armed: deque[Leaving] = deque()  # of the schedule, what is due next

    async def prepare_one(self) -> bool:
        """Encode one of those that leave first; whether there was one to encode, and room."""
        return await self._bodies.prepare_one(0)

    def preparing(self) -> list[Coroutine[None, None, None]]:
        """What is to run beside the sending."""
        return [self._bodies.prepare(), *([self._turns.prepare()] if self._turns else [])]

    def plan(self, later: Later) -> None:
        heappush(self.later, later)

    def let_go(self) -> list[Later]:
        """The turns among `later`, in order of time."""
        return sorted(later for later in self.later if later.is_turn)

    def take_due(self, now_ns: int, *, closed: bool) -> Leaving | None:
        """Of the requests that are due the one that has been for longest."""
        # In a closed loop the ledger has no times: who has waited goes before who has not.
        since_ns = now_ns if closed else self._schedule.next_ns()
        if self.later and self.later[0].due_ns <= min(now_ns, since_ns):
            later = heappop(self.later)
            row, request = self._turns.take(later) if later.is_turn else self._again(later)
            return Leaving(later.which, self._record(row), request, later)
        index = self._schedule.take_due(now_ns)
        if index is None:
            return None
        return self._armed.popleft() if self._armed else self._ready(index)

    def arm(self, now_ns: int) -> None:
        """Make ready what comes soon: when its time has come there is only to send it."""
        index = self._schedule.sent + len(self._armed)
        while len(self._armed) < _MOST_ARMED and index < len(self._schedule) and self._bodies.has(index):
            if self._schedule.at_ns(index) > now_ns + _ARM_AHEAD_NS:
                return
            self._armed.append(self._ready(index))
            index += 1

    def wake_ns(self) -> int | None:
        """When something is to be sent or connected next; None if nothing is planned."""
        times = [at for at in (self._schedule.wake_ns(),) if at is not None]
        times += [later.due_ns for later in self.later[:1]]
        return min(times, default=None)

    def _ready(self, index: int) -> Leaving:
        row, request = self._bodies.take(index)
        return Leaving(index, self._record(row), request)

    def _again(self, again: Later) -> tuple[RequestRow, bytes]:
        """Its latency counts from the first attempt's arrival, which in a closed loop was its send."""
        first = self._requests[again.which]
        row = msgspec.structs.replace(
            first,
            id=f"{first.id}~{again.attempt}",
            retry_of=first.id,
            request_id=f"{first.request_id}~{again.attempt}",
            arrival_ns=again.arrival_ns,
        )
        return row, self._encoder.encode(row, self._requests.text_number(again.which))
