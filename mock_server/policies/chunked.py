"""`chunked`: decode first, prefill in chunks beside it, as in Sarathi-Serve (Agrawal et al., OSDI 2024)."""

from __future__ import annotations

from collections import deque

from mock_server.scheduler import Scheduler, Sequence


class Chunked:
    """One list in admission order. A decode takes a slot; each slot left advances one prefill by a chunk."""

    def __init__(self, prefill_chunk: int) -> None:
        self.prefill_chunk = prefill_chunk
        self.queue: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def serve(self, scheduler: Scheduler) -> int:
        emitted = self._decode(scheduler)
        spare = scheduler.hardware.decode_slots - emitted
        prefilling = [sequence for sequence in self.running if sequence.phase == "prefill"]
        while len(prefilling) < spare and self.queue and scheduler.kv.can_reserve(self.queue[0]):
            sequence = scheduler.admit(self.queue)
            self.running.append(sequence)
            prefilling.append(sequence)
        self._advance(scheduler, prefilling[:spare])
        return emitted

    def withdraw(self, sequence: Sequence) -> None:
        self.running.remove(sequence)

    def counts(self) -> tuple[int, int]:
        prefill = sum(sequence.phase == "prefill" for sequence in self.running)
        return prefill, len(self.running) - prefill

    @property
    def busy(self) -> bool:
        return bool(self.running)

    def _decode(self, scheduler: Scheduler) -> int:
        ready = [sequence for sequence in self.running if sequence.phase == "ready"]
        turns = ready[: scheduler.hardware.decode_slots]
        for sequence in turns:
            if scheduler.emit(sequence):
                self.running.remove(sequence)
        return len(turns)

    def _advance(self, scheduler: Scheduler, sequences: list[Sequence]) -> None:
        left = scheduler.hardware.prefill_tokens_per_tick
        for sequence in sequences:
            tokens = min(self.prefill_chunk, sequence.prompt_tokens - sequence.prefilled, left)
            scheduler.advance_prefill(sequence, tokens)
            left -= tokens
            scheduler.starved += tokens == 0
            if sequence.prefilled == sequence.prompt_tokens:
                scheduler.end_prefill(sequence)
