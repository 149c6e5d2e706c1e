"""The tick scheduler: what happens in one tick, and nothing about when.

Knows no clock, socket or event loop. Tick numbers, arrivals and cancellations come in; a tick row and events
come out. Two drivers use it: `simulate` on a virtual clock and `engine` on the real one.

One tick, in this order:
 1. arrivals join the queue or are rejected (for ever too large, too many waiting); cancels take effect;
 2. decode: up to `decode_slots` sequences emit one token each;
 3. prefill start: the policy may admit the longest FIFO prefix that fits the KV budget;
 4. prefill advance: at most `prefill_tokens_per_tick` prompt tokens.
Steps 2 to 4 belong to the policy, and so does the queue, for it may have several. In a queue nothing ever
overtakes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Literal, NamedTuple, Protocol

from ledgers.rows import TickRow, Ticks
from ledgers.settings import Hardware

Rejection = Literal["context_length_exceeded", "queue_full"]
Phase = Literal["new", "queued", "prefill", "ready", "ended"]
EventKind = Literal["arrive", "reject", "cancel", "prefill_start", "prefill_end", "token", "finish"]


class Sequence:
    """A request inside the scheduler. `arrival_ns` counts from tick 0."""

    __slots__ = (
        "arrival_ns",
        "cached",
        "class_",
        "emitted",
        "id",
        "number",
        "output_tokens",
        "phase",
        "prefilled",
        "prompt_tokens",
        "rejection",
        "since_ns",
        "ticks",
    )

    def __init__(
        self,
        id: str,
        prompt_tokens: int,
        output_tokens: int,
        arrival_ns: int = 0,
        class_: str | None = None,
    ) -> None:
        self.id = id
        self.class_ = class_
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.arrival_ns = arrival_ns
        self.phase: Phase = "new"
        self.prefilled = 0
        self.emitted = 0
        self.cached = 0
        self.rejection: Rejection | None = None
        self.number = 0  # in the order of arrival
        self.since_ns = 0  # how long it waits for its next turn, where the policy cares
        self.ticks = Ticks()

    @property
    def reserve(self) -> int:
        """KV tokens held from admission to the last token."""
        return self.prompt_tokens + self.output_tokens


class Event(NamedTuple):
    """Something that happened to a sequence in a tick."""

    kind: EventKind
    sequence: Sequence


class Step(NamedTuple):
    """What one tick did: the state after it, and its events in order."""

    row: TickRow
    events: list[Event]


class KvPool:
    """The KV-cache budget: `reserved` bounds admission, `cached` is what is really held."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.reserved = 0
        self.cached = 0

    def can_reserve(self, sequence: Sequence) -> bool:
        return self.reserved + sequence.reserve <= self.budget

    def reserve(self, sequence: Sequence) -> None:
        self.reserved += sequence.reserve

    def cache(self, sequence: Sequence, tokens: int) -> None:
        sequence.cached += tokens
        self.cached += tokens

    def release(self, sequence: Sequence) -> None:
        self.reserved -= sequence.reserve
        self.cached -= sequence.cached
        sequence.cached = 0


class WaitingLine(Protocol):
    """All sequences that wait for admission, in one queue or in several."""

    def append(self, sequence: Sequence, /) -> None: ...

    def remove(self, sequence: Sequence, /) -> None: ...

    def __len__(self) -> int: ...


class Policy(Protocol):
    """Steps 2 to 4 of a tick. A policy holds the sequences that wait and those it has admitted."""

    @property
    def queue(self) -> WaitingLine: ...

    def serve(self, scheduler: Scheduler) -> int:
        """Decode, start and advance prefill for `scheduler.tick`; the number of tokens emitted."""

    def withdraw(self, sequence: Sequence) -> None:
        """Forget an admitted sequence that was cancelled."""

    def counts(self) -> tuple[int, int]:
        """How many sequences are in prefill, and how many are fully prefilled and unfinished."""

    @property
    def busy(self) -> bool:
        """Whether any work is left, prompt tokens of cancelled sequences included."""


class Scheduler:
    """One policy, one KV pool. `step` is called once for each tick that is not idle, in order."""

    def __init__(
        self,
        policy: Policy,
        hardware: Hardware,
        *,
        max_queue: int | None = None,
        max_model_len: int | None = None,
    ) -> None:
        """A request is rejected if `max_queue` wait already, or if it is longer than `max_model_len`."""
        self.policy = policy
        self.hardware = hardware
        self.tick_ns = hardware.tick_ns
        self.kv = KvPool(hardware.kv_budget_tokens)
        self.queue = policy.queue
        self.max_queue = max_queue
        self.max_model_len = min(hardware.kv_budget_tokens, max_model_len or hardware.kv_budget_tokens)
        self.tick = -1
        self.arrived = 0
        self.starved = 0  # slot holders that get no prefill tokens in this tick (for policies)
        self._events: list[Event] = []

    @property
    def now_ns(self) -> int:
        """When the tick under way fires."""
        return self.tick * self.tick_ns

    @property
    def idle(self) -> bool:
        """Nothing queued and nothing in service: without arrivals, every next tick is empty."""
        return not self.queue and not self.policy.busy

    def fits(self, sequence: Sequence) -> bool:
        """Whether the sequence could ever be admitted."""
        return sequence.reserve <= self.max_model_len

    def step(self, tick: int, arrivals: Iterable[Sequence] = (), cancels: Iterable[Sequence] = ()) -> Step:
        """Run tick `tick`. ValueError if it is not later than the one before."""
        if tick <= self.tick:
            raise ValueError(f"tick {tick} after tick {self.tick}")
        self.tick = tick
        self.starved = 0
        self._events = []
        for sequence in arrivals:
            self._arrive(sequence)
        for sequence in cancels:
            self._cancel(sequence)
        emitted = self.policy.serve(self)
        prefill, ready = self.policy.counts()
        row = TickRow(
            tick=tick,
            queue=len(self.queue),
            prefill=prefill,
            ready=ready,
            emitted=emitted,
            kv_reserved=self.kv.reserved,
            kv_cached=self.kv.cached,
            starved=self.starved,
        )
        return Step(row, self._events)

    def admit(self, queue: deque[Sequence]) -> Sequence:
        """Take the head of a queue into prefill (for policies)."""
        sequence = queue.popleft()
        self.kv.reserve(sequence)
        sequence.phase = "prefill"
        sequence.ticks.prefill_start = self.tick
        self._note("prefill_start", sequence)
        return sequence

    def advance_prefill(self, sequence: Sequence, tokens: int) -> None:
        """Prefill `tokens` of the prompt (for policies); a cancelled sequence's are spent, not kept."""
        sequence.prefilled += tokens
        if sequence.phase != "ended":
            self.kv.cache(sequence, tokens)

    def end_prefill(self, sequence: Sequence) -> None:
        """The prompt is prefilled: visible at the end of this tick (for policies)."""
        sequence.phase = "ready"
        sequence.ticks.prefill_end = self.tick + 1
        self._note("prefill_end", sequence)

    def emit(self, sequence: Sequence) -> bool:
        """Emit one token (for policies); True if it was the last, which frees the KV reserve."""
        sequence.emitted += 1
        if sequence.emitted == 1:
            sequence.ticks.first_token = self.tick
        self._note("token", sequence)
        if sequence.emitted < sequence.output_tokens:
            self.kv.cache(sequence, 1)
            return False
        sequence.phase = "ended"
        sequence.ticks.last_token = self.tick
        self.kv.release(sequence)
        self._note("finish", sequence)
        return True

    def _arrive(self, sequence: Sequence) -> None:
        sequence.ticks.received = self.tick
        sequence.number = self.arrived
        self.arrived += 1
        sequence.rejection = self._rejection(sequence)
        if sequence.rejection is None:
            sequence.phase = "queued"
            self.queue.append(sequence)
            self._note("arrive", sequence)
        else:
            sequence.phase = "ended"
            self._note("reject", sequence)

    def _rejection(self, sequence: Sequence) -> Rejection | None:
        if not self.fits(sequence):
            return "context_length_exceeded"
        if self.max_queue is not None and len(self.queue) >= self.max_queue:
            return "queue_full"
        return None

    def _cancel(self, sequence: Sequence) -> None:
        if sequence.phase == "ended":  # its last token and its cancellation crossed
            return
        if sequence.phase == "queued":
            self.queue.remove(sequence)
        else:
            self.kv.release(sequence)
            self.policy.withdraw(sequence)
        sequence.phase = "ended"
        sequence.ticks.cancel = self.tick
        self._note("cancel", sequence)

    def _note(self, kind: EventKind, sequence: Sequence) -> None:
        self._events.append(Event(kind, sequence))
