"""Who waits for whom, tick by tick, by the rules of the policies. Pure.

Whoever is in the queue after a tick, holds a place in prefill that got no tokens, or was prefilled and had no
turn, waited in that tick for one of these:

- `service`: `immediate` and `static` admit nobody until all that they have admitted is done; for those;
- `prefill`: a batch is being prefilled, and no other starts beside it (`continuous`); for those in it;
- `kv`: it does not fit beside what is reserved; for those who hold the reserve;
- `fifo`: it would fit, but the head of the queue does not, and nothing overtakes; for the head;
- `forming`: the batch is not full, and its head has not waited long enough; for nobody;
- `slots`: every decode slot advances somebody (`chunked`); for those;
- `tokens`: it has a slot, but those before it took all prefill tokens of the tick (`chunked`); for those;
- `rotation`: others had the decode slots in this turn; for those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ledgers.rows import RequestRow
from ledgers.settings import SchedulerSettings
from reports.lab.states import State

Why = Literal["prefill", "service", "kv", "fifo", "forming", "slots", "tokens", "rotation"]
ONE_BATCH = ("immediate", "static")


class Wait(NamedTuple):
    """In one tick: who waited, why, and for whom."""

    id: str
    why: Why
    behind: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "why": self.why, "for": self.behind}


def waits(
    states: Iterable[State], settings: SchedulerSettings, rows: Mapping[str, RequestRow]
) -> Iterator[list[Wait]]:
    """The waits of each tick, in order of the queue, then of prefill, then of the rotation."""
    rules = _Rules(settings, rows)
    before: State | None = None
    for state in states:
        yield [*rules.in_queue(before, state), *rules.in_prefill(before, state), *_in_rotation(before, state)]
        before = state


def totals(each: Iterable[Sequence[Wait]]) -> dict[str, list[dict[str, Any]]]:
    """Of each request: for whom, why, and in how many ticks; the most first. Nobody is None."""
    ticks: dict[str, Counter[tuple[str | None, Why]]] = {}
    for found in each:
        for wait in found:
            counts = ticks.setdefault(wait.id, Counter())
            counts.update((id, wait.why) for id in wait.behind or (None,))
    return {
        id: [{"id": other, "why": why, "ticks": count} for (other, why), count in counts.most_common()]
        for id, counts in ticks.items()
    }


class _Rules:
    def __init__(self, settings: SchedulerSettings, rows: Mapping[str, RequestRow]) -> None:
        self._settings = settings
        self._rows = rows
        self._chunked = settings.policy == "chunked"
        self._lacking: dict[str, int] = {}  # prompt tokens, of those in prefill

    def in_queue(self, before: State | None, state: State) -> Iterator[Wait]:
        if not state.queue:
            return
        if shared := self._for_all(before, state):
            yield from (Wait(id, *shared) for id in state.queue)
            return
        head, holders = state.queue[0], state.prefill + state.ready
        for id in state.queue:
            yield Wait(id, "fifo", (head,)) if self._fits(id, state) else Wait(id, "kv", holders)

    def _for_all(self, before: State | None, state: State) -> tuple[Why, tuple[str, ...]] | None:
        """What keeps all of the queue, whatever their sizes; None if it is the size of the head."""
        one_batch = self._settings.policy in ONE_BATCH
        held: Why = "service" if one_batch else "prefill"
        if before and not self._chunked:
            serving = tuple(id for id in before.ready if id in state.ready) if one_batch else ()
            if under_way := before.prefill + serving:
                return held, under_way
        if not self._fits(state.queue[0], state):
            return None
        if self._chunked:
            return "slots", self._holders(before, state)
        return (held, state.started) if state.started else ("forming", ())

    def _fits(self, id: str, state: State) -> bool:
        row = self._rows[id]
        free = self._settings.hardware.kv_budget_tokens - state.row.kv_reserved
        return row.prompt_tokens + row.output_tokens <= free

    def _holders(self, before: State | None, state: State) -> tuple[str, ...]:
        """Who has a decode slot in this tick under `chunked`: a turn, or a place in prefill."""
        prefilling = (*(before.prefill if before else ()), *state.started)
        return (*state.emitted, *prefilling)[: self._settings.hardware.decode_slots]

    def in_prefill(self, before: State | None, state: State) -> Iterator[Wait]:
        """Under `chunked`; a batch is prefilled as one."""
        if not self._chunked:
            return
        self._lacking.update((id, self._rows[id].prompt_tokens) for id in state.started)
        holders = self._holders(before, state)
        left = self._settings.hardware.prefill_tokens_per_tick
        served: list[str] = []
        for id in (*(before.prefill if before else ()), *state.started):
            if id not in holders:
                yield Wait(id, "slots", holders)
                continue
            tokens = min(self._settings.prefill_chunk, self._lacking[id], left)
            if not tokens:
                yield Wait(id, "tokens", tuple(served))
            self._lacking[id] -= tokens
            left -= tokens
            served.append(id)


def _in_rotation(before: State | None, state: State) -> Iterator[Wait]:
    """Whoever was ready when the tick began, and emitted nothing in it."""
    for id in before.ready if before else ():
        if id not in state.emitted:
            yield Wait(id, "rotation", state.emitted)
