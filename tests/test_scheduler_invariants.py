"""What must hold in every tick of every policy, whatever comes and whoever leaves."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ledgers.settings import Hardware, SchedulerSettings
from mock_server.policies import POLICIES, make_scheduler
from mock_server.scheduler import Scheduler, Sequence


class SchedulerMachine(RuleBasedStateMachine):
    """Submits, steps and cancels at random, and keeps its own books from the events alone."""

    def __init__(self) -> None:
        super().__init__()
        self.tick = 0
        self.inbox: list[Sequence] = []
        self.leaving: list[Sequence] = []
        self.all: dict[str, Sequence] = {}
        self.tokens: dict[str, int] = {}
        self.ended: dict[str, str] = {}
        self.admitted: list[str] = []
        self.held: dict[str, int] = {}

    @initialize(
        policy=st.sampled_from(sorted(POLICIES)),
        max_batch=st.integers(1, 4),
        max_wait_ns=st.integers(0, 400_000_000),
        chunk=st.integers(1, 10),
        rate=st.integers(1, 24),
        slots=st.integers(1, 4),
        budget=st.integers(8, 72),
    )
    def set_up(
        self, policy: str, max_batch: int, max_wait_ns: int, chunk: int, rate: int, slots: int, budget: int
    ) -> None:
        self.hardware = Hardware(prefill_tokens_per_tick=rate, decode_slots=slots, kv_budget_tokens=budget)
        self.setup = SchedulerSettings(policy, max_batch, max_wait_ns, chunk, self.hardware)
        self.scheduler: Scheduler = make_scheduler(self.setup)

    @rule(prompt=st.integers(1, 30), output=st.integers(1, 10))
    def submit(self, prompt: int, output: int) -> None:
        sequence = Sequence(f"q{len(self.all)}", prompt, output, self.tick * self.hardware.tick_ns)
        self.all[sequence.id] = sequence
        self.tokens[sequence.id] = 0
        self.inbox.append(sequence)

    @rule(choice=st.integers(0, 1000))
    def cancel(self, choice: int) -> None:
        if self.all:
            self.leaving.append(list(self.all.values())[choice % len(self.all)])

    @rule(ticks=st.integers(1, 6))
    def step(self, ticks: int) -> None:
        for _ in range(ticks):
            self._one_step()

    def _one_step(self) -> None:
        prefilled = sum(sequence.prefilled for sequence in self.all.values())
        step = self.scheduler.step(self.tick, self.inbox, self.leaving)
        self.inbox, self.leaving = [], []
        emitted = 0
        for kind, sequence in step.events:
            assert sequence.id not in self.ended, "nothing happens to a request that has ended"
            if kind == "prefill_start":
                self.admitted.append(sequence.id)
                self.held[sequence.id] = sequence.prompt_tokens + sequence.output_tokens
            elif kind == "token":
                emitted += 1
                self.tokens[sequence.id] += 1
                assert sequence.prefilled == sequence.prompt_tokens
                assert sequence.ticks.prefill_end is not None
                assert sequence.ticks.prefill_end <= self.tick
            elif kind in ("finish", "cancel", "reject"):
                self.ended[sequence.id] = kind
                self.held.pop(sequence.id, None)
        assert emitted == step.row.emitted <= self.hardware.decode_slots
        work = sum(sequence.prefilled for sequence in self.all.values()) - prefilled
        assert 0 <= work <= self.hardware.prefill_tokens_per_tick
        assert step.row.kv_reserved == sum(self.held.values()) <= self.hardware.kv_budget_tokens
        assert 0 <= step.row.kv_cached <= step.row.kv_reserved
        self.tick += 1

    @invariant()
    def admission_is_first_come_first_served(self) -> None:
        numbers = [int(id[1:]) for id in self.admitted]
        assert numbers == sorted(numbers)

    @invariant()
    def tokens_are_conserved(self) -> None:
        for id, sequence in self.all.items():
            assert self.tokens[id] == sequence.emitted <= sequence.output_tokens
            if self.ended.get(id) == "finish":
                assert self.tokens[id] == sequence.output_tokens

    def teardown(self) -> None:
        """In the end everything has ended, and nothing is held."""
        if not hasattr(self, "scheduler"):
            return
        bound = self.tick + 100 + sum(s.prompt_tokens + s.output_tokens + 5 for s in self.all.values())
        self._one_step()
        while not self.scheduler.idle:
            self._one_step()
            assert self.tick < bound, "work that never ends"
        assert set(self.ended) == set(self.all)
        assert (self.scheduler.kv.reserved, self.scheduler.kv.cached) == (0, 0)


SchedulerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestSchedulerInvariants = SchedulerMachine.TestCase
