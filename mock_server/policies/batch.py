"""What the batch policies share: a ready rotation, and one prefill batch at a time, finished as a whole.

A policy of this kind says only when a batch may start, and of how many requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

from mock_server.scheduler import Scheduler, Sequence


class BatchPolicy(ABC):
    """Decode from the front of the rotation; start a batch when `may_start`; advance it."""

    def __init__(self, max_batch: int, max_wait_ns: int = 0) -> None:
        self.max_batch = max_batch
        self.max_wait_ns = max_wait_ns
        self.batch: deque[Sequence] = deque()  # not yet prefilled; a cancelled one stays for its bill
        self.batched: list[Sequence] = []  # the whole batch under way
        self.ready: deque[Sequence] = deque()

    @abstractmethod
    def may_start(self, scheduler: Scheduler) -> bool:
        """Whether a batch may start now, given that none is under way and the queue is not empty."""

    def formed(self, scheduler: Scheduler) -> bool:
        """Enough requests wait, or the head has waited long enough."""
        head_wait_ns = scheduler.now_ns - scheduler.queue[0].arrival_ns
        return len(scheduler.queue) >= self.max_batch or head_wait_ns >= self.max_wait_ns

    def serve(self, scheduler: Scheduler) -> int:
        emitted = self._decode(scheduler)
        if not self.batched and scheduler.queue and self.may_start(scheduler):
            self._start(scheduler)
        if self.batched:
            self._advance(scheduler)
        return emitted

    def withdraw(self, sequence: Sequence) -> None:
        if sequence.phase == "ready":
            self.ready.remove(sequence)

    def counts(self) -> tuple[int, int]:
        return sum(sequence.phase == "prefill" for sequence in self.batched), len(self.ready)

    @property
    def busy(self) -> bool:
        return bool(self.batched or self.ready)

    def _decode(self, scheduler: Scheduler) -> int:
        turns = min(len(self.ready), scheduler.hardware.decode_slots)
        for _ in range(turns):
            sequence = self.ready.popleft()
            if not scheduler.emit(sequence):
                self.ready.append(sequence)
        return turns

    def _start(self, scheduler: Scheduler) -> None:
        queue = scheduler.queue
        while queue and len(self.batched) < self.max_batch and scheduler.kv.can_reserve(queue[0]):
            self.batched.append(scheduler.admit())
        self.batch.extend(self.batched)

    def _advance(self, scheduler: Scheduler) -> None:
        left = scheduler.hardware.prefill_tokens_per_tick
        while self.batch and left:
            sequence = self.batch[0]
            tokens = min(left, sequence.prompt_tokens - sequence.prefilled)
            scheduler.advance_prefill(sequence, tokens)
            left -= tokens
            if sequence.prefilled == sequence.prompt_tokens:
                self.batch.popleft()
        if not self.batch:
            self._finish(scheduler)

    def _finish(self, scheduler: Scheduler) -> None:
        for sequence in self.batched:
            if sequence.phase == "prefill":
                scheduler.end_prefill(sequence)
                self.ready.append(sequence)
        self.batched = []
