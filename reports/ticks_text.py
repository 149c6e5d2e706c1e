"""The ticks of a run, with what happened in each. Values in, lines out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ledgers.rows import TickRow
from reports.tables import WIDTH, is_plain, wrapped

TICK_COLUMNS = {
    "tick": "tick",
    "queue": "queue",
    "prefill": "prefill",
    "ready": "ready",
    "emitted": "emitted",
    "reserved": "kv_reserved",
    "cached": "kv_cached",
}
EVENTS_FROM = sum(max(len(name), 5) + 1 for name in TICK_COLUMNS) + 2


def tick_lines(ticks: Iterable[TickRow], labels: Mapping[str, str]) -> Iterator[str]:
    """The state after each tick, with what happened in it, a line per kind, where that was recorded."""
    if is_plain():
        yield from (_spoken(tick, labels) for tick in ticks)
        return
    yield _tick_cells({name: name for name in TICK_COLUMNS}) + "  events"
    for tick in ticks:
        cells = _tick_cells({name: getattr(tick, field) for name, field in TICK_COLUMNS.items()})
        first, *more = list(_event_lines(tick, labels)) or [""]
        yield f"{cells}  {first}".rstrip()
        for line in more:
            yield " " * EVENTS_FROM + line


def _spoken(tick: TickRow, labels: Mapping[str, str]) -> str:
    """`tick 7: queue 1, prefill 0, ...; token R01 R02`."""
    state = ", ".join(
        f"{name} {getattr(tick, field)}" for name, field in TICK_COLUMNS.items() if name != "tick"
    )
    return "; ".join([f"tick {tick.tick}: {state}", *_event_words(tick, labels)])


def _tick_cells(values: Mapping[str, object]) -> str:
    return "".join(f" {value!s:>{max(len(name), 5)}}" for name, value in values.items())


def _event_lines(tick: TickRow, labels: Mapping[str, str]) -> Iterator[str]:
    for words in _event_words(tick, labels):
        yield from wrapped(words, width=WIDTH - EVENTS_FROM, then="  ")


def _event_words(tick: TickRow, labels: Mapping[str, str]) -> Iterator[str]:
    """The kinds in order of their first event, each with its requests: `token R01 R02`."""
    happened: dict[str, list[str]] = {}
    for kind, id in tick.events or ():
        happened.setdefault(kind, []).append(labels.get(id, id))
    for kind, ids in happened.items():
        yield f"{kind} {' '.join(ids)}"
