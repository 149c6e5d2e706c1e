"""What the batch policies share: one prefill batch at a time, finished as a whole, and a ready rotation.

A policy with one queue and one rotation says only when a batch may start, and of how many requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

from mock_server.scheduler import Scheduler, Sequence


class PrefillBatch:
    """The prefill batch under way, if there is one. A cancelled sequence stays in it for its bill."""

    def __init__(self) -> None:
        self._members: list[Sequence] = []
        self._unfinished: deque[Sequence] = deque()

    def __bool__(self) -> bool:
        return bool(self._members)

    @property
    def in_prefill(self) -> int:
        return sum(sequence.phase == "prefill" for sequence in self._members)

    def start(self, scheduler: Scheduler, queue: deque[Sequence], most: int) -> None:
        """Admit the longest FIFO prefix of at most `most` that fits beside what is reserved."""
        members: list[Sequence] = []
        while queue and len(members) < most and scheduler.kv.can_reserve(queue[0]):
            members.append(scheduler.admit(queue))
        self._members = members
        self._unfinished.extend(members)

    def advance(self, scheduler: Scheduler) -> list[Sequence]:
        """Prefill for one tick. Those who are ready now: all of the batch, or none."""
        left = scheduler.hardware.prefill_tokens_per_tick
        while self._unfinished and left:
            sequence = self._unfinished[0]
            tokens = min(left, sequence.prompt_tokens - sequence.prefilled)
            scheduler.advance_prefill(sequence, tokens)
            left -= tokens
            if sequence.prefilled == sequence.prompt_tokens:
                self._unfinished.popleft()
        return [] if self._unfinished else self._finish(scheduler)

    def _finish(self, scheduler: Scheduler) -> list[Sequence]:
        finished = [sequence for sequence in self._members if sequence.phase == "prefill"]
        for sequence in finished:
            scheduler.end_prefill(sequence)
        self._members = []
        return finished


class BatchPolicy(ABC):
    """Decode from the front of the rotation; start a batch when `may_start`; advance it."""

    def __init__(self, max_batch: int, max_wait_ns: int = 0) -> None:
        self.max_batch = max_batch
        self.max_wait_ns = max_wait_ns
        self.queue: deque[Sequence] = deque()
        self.batch = PrefillBatch()
        self.ready: deque[Sequence] = deque()

    @abstractmethod
    def may_start(self, scheduler: Scheduler) -> bool:
        """Whether a batch may start now, given that none is under way and the queue is not empty."""

    def formed(self, scheduler: Scheduler) -> bool:
        return formed(self.queue, self.max_batch, self.max_wait_ns, scheduler.now_ns)

    def serve(self, scheduler: Scheduler) -> int:
        emitted = self._decode(scheduler)
        if not self.batch and self.queue and self.may_start(scheduler):
            self.batch.start(scheduler, self.queue, self.max_batch)
        if self.batch:
            self.ready.extend(self.batch.advance(scheduler))
        return emitted

    def withdraw(self, sequence: Sequence) -> None:
        if sequence.phase == "ready":
            self.ready.remove(sequence)

    def counts(self) -> tuple[int, int]:
        return self.batch.in_prefill, len(self.ready)

    @property
    def busy(self) -> bool:
        return bool(self.batch or self.ready)

    def _decode(self, scheduler: Scheduler) -> int:
        turns = min(len(self.ready), scheduler.hardware.decode_slots)
        for _ in range(turns):
            sequence = self.ready.popleft()
            if not scheduler.emit(sequence):
                self.ready.append(sequence)
        return turns


def formed(queue: deque[Sequence], max_batch: int, max_wait_ns: int, now_ns: int) -> bool:
    """Enough requests wait, or the head has waited long enough."""
    return len(queue) >= max_batch or now_ns - queue[0].arrival_ns >= max_wait_ns
