"""Tick rows that differ only in their tick and in the tokens cached, as one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ledgers.rows import TickRow

_LINES_AT_ONCE = 1_024  # a run can be as long as a trace is
_PIECES_AT_ONCE = 512


class TickRun(NamedTuple):
    """The rows of so many `ticks` from `first` on; after each of them `kv_growth` more tokens are cached."""

    first: int
    ticks: int
    queue: int
    prefill: int
    ready: int
    emitted: int
    kv_reserved: int
    kv_cached: int
    kv_growth: int = 0
    starved: int = 0

    @property
    def idle(self) -> bool:
        return not (self.queue or self.prefill or self.ready or self.emitted)

    def rows(self) -> Iterator[TickRow]:
        for i in range(self.ticks):
            yield TickRow(
                tick=self.first + i,
                queue=self.queue,
                prefill=self.prefill,
                ready=self.ready,
                emitted=self.emitted,
                kv_reserved=self.kv_reserved,
                kv_cached=self.kv_cached + i * self.kv_growth,
                starved=self.starved,
            )

    def pieces(self) -> Iterator[TickRun]:
        """The same in runs of at most `_LINES_AT_ONCE` ticks."""
        for begin in range(0, self.ticks, _LINES_AT_ONCE):
            yield self._replace(
                first=self.first + begin,
                ticks=min(_LINES_AT_ONCE, self.ticks - begin),
                kv_cached=self.kv_cached + begin * self.kv_growth,
            )

    def lines(self) -> str:
        """The rows as they are encoded, with their newlines."""
        # Written out, for an encoder would need a row for each tick: this takes a tenth of the time.
        first, ticks, queue, prefill, ready, emitted, reserved, cached, growth, starved = self
        middle = (
            f',"queue":{queue},"prefill":{prefill},"ready":{ready},"emitted":{emitted}'
            f',"kv_reserved":{reserved},"kv_cached":'
        )
        end = f',"starved":{starved}}}\n' if starved else "}\n"
        if ticks == 1:
            return f'{{"tick":{first}{middle}{cached}{end}'
        return "".join([f'{{"tick":{first + i}{middle}{cached + i * growth}{end}' for i in range(ticks)])


class TickTable:
    """Passes runs on through the last tick that was not idle, and fills in those that were leapt over."""

    def __init__(self, on_ticks: Callable[[TickRun], None]) -> None:
        self._on_ticks = on_ticks
        self._next = 0

    def add(self, run: TickRun) -> None:
        if run.idle:
            return
        if idle := run.first - self._next:
            self._on_ticks(TickRun(self._next, idle, 0, 0, 0, 0, 0, 0))
        self._on_ticks(run)
        self._next = run.first + run.ticks


class TickLines:
    """Appends the lines of runs to a file, so many at a time that the writes cost little."""

    def __init__(self, append: Callable[[bytes], None]) -> None:
        self._append = append
        self._lines: list[str] = []

    def add(self, run: TickRun) -> None:
        for piece in (run,) if run.ticks <= _LINES_AT_ONCE else run.pieces():
            self._lines.append(piece.lines())
            if len(self._lines) >= _PIECES_AT_ONCE:
                self.flush()

    def flush(self) -> None:
        if self._lines:
            self._append("".join(self._lines).encode())
            self._lines.clear()
