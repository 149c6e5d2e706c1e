"""Who is where after each tick: queue, prefill, ready rotation, from the events of tick rows. Pure.

The rows may be simulated or served, whole or as they come: nothing looks ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ledgers.rows import TickRow


class State(NamedTuple):
    """Ids in their order; `started` and `emitted` are of this tick, the others as they stand after it."""

    row: TickRow
    queue: tuple[str, ...]
    prefill: tuple[str, ...]
    ready: tuple[str, ...]
    started: tuple[str, ...]
    emitted: tuple[str, ...]

    def to_json(self, tick_ns: int) -> dict[str, Any]:
        return {
            "tick": self.row.tick,
            "time_ms": self.row.tick * tick_ns / 1e6,
            "queue": self.queue,
            "prefill": self.prefill,
            "ready": self.ready,
            "emitted": self.emitted,
            "kv_reserved": self.row.kv_reserved,
            "kv_cached": self.row.kv_cached,
            "events": [f"{kind} {id}" for kind, id in self.row.events or ()],
        }


class Floor:
    """Follows the events of one run, tick by tick. `names` are what its ids are to be called, if not so."""

    def __init__(self, policy: str, names: Mapping[str, str] | None = None) -> None:
        self._rotates = policy != "chunked"
        self._names = names or {}
        self._queue: list[str] = []
        self._prefill: list[str] = []
        self._ready: list[str] = []
        self._admitted: list[str] = []

    def after(self, row: TickRow) -> State:
        events = [(kind, self._names.get(id, id)) for kind, id in row.events or ()]
        row.events = events
        for kind, id in events:
            self._note(kind, id)
        return State(
            row,
            tuple(self._queue),
            tuple(self._prefill),
            tuple(self._ready),
            _of("prefill_start", events),
            _of("token", events),
        )

    def _note(self, kind: str, id: str) -> None:
        if kind == "arrive":
            self._queue.append(id)
        elif kind == "prefill_start":
            self._queue.remove(id)
            self._prefill.append(id)
            self._admitted.append(id)
        elif kind == "prefill_end":
            self._prefill.remove(id)
            self._ready.append(id)
            if not self._rotates:  # one list in the order of admission
                self._ready.sort(key=self._admitted.index)
        elif kind == "token" and self._rotates:
            self._ready.remove(id)
            self._ready.append(id)
        elif kind in ("finish", "cancel"):
            self._leave(id)

    def _leave(self, id: str) -> None:
        for place in (self._queue, self._prefill, self._ready):
            if id in place:
                place.remove(id)


def _of(wanted: str, events: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(id for kind, id in events if kind == wanted)
