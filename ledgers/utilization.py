"""What tick rows say: how busy the modelled hardware was, the KV peak, and head-of-line blocking.

Pure. A tick without a row was idle. Figures are over all ticks from 0 through the last one, but for the KV
peak, which is over the ticks that fire in the observation window.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable

import msgspec

from ledgers.metrics import origin_ns
from ledgers.rows import RequestRow, TickRow
from ledgers.settings import Hardware

MOST_HEADS = 5


class HeadOfLine(msgspec.Struct, frozen=True):
    """Ticks with idle decode slots while the queue was not empty, and in how many who was its head."""

    ticks: int
    share: float
    heads: dict[str, int]


class TickFigures(msgspec.Struct, frozen=True):
    """Shares of capacity are between 0 and 1; `kv` is the mean of cached tokens against the budget."""

    batch: float
    prefill: float
    decode: float
    kv: float
    kv_peak_tokens: int
    head_of_line: HeadOfLine


class Admissions:
    """What request rows say about ticks: how many were in prefill, and who was next to be admitted."""

    def __init__(self) -> None:
        self.prefilled_tokens = 0
        self._changes: Counter[int] = Counter()
        self._first_of: dict[int, tuple[int, int, int, str]] = {}

    def add(self, row: RequestRow) -> None:
        if row.ticks is None or (start := row.ticks.prefill_start) is None:
            return
        end = row.ticks.prefill_end
        if end is not None:
            self.prefilled_tokens += row.prompt_tokens
        else:
            end = row.ticks.cancel
        self._changes[start] += 1
        if end is not None:
            self._changes[end] -= 1
        # Ties are broken as the rotation does, then by number: the rows do not tell the order of the ledger.
        this = (origin_ns(row) or 0, row.ticks.first_token or 0, len(row.id), row.id)
        self._first_of[start] = min(self._first_of.get(start, this), this)

    def in_prefill(self) -> tuple[list[int], list[int]]:
        """Ticks at which the number in prefill changed, ascending, and the number from each on."""
        ticks, levels, level = sorted(self._changes), [], 0
        for tick in ticks:
            level += self._changes[tick]
            levels.append(level)
        return ticks, levels

    def heads(self) -> tuple[list[int], list[str]]:
        """Ticks at which requests were admitted, ascending, and the first of each by arrival."""
        starts = sorted(self._first_of)
        return starts, [self._first_of[start][-1] for start in starts]


def tick_figures(
    ticks: Iterable[TickRow], hardware: Hardware, policy: str | None, admissions: Admissions, t_obs_ns: int
) -> TickFigures | None:
    """Figures over ascending tick rows; None if there are none.

    A sequence advances when it emits; under `chunked`, where decode slots also advance prefill, so does one
    in prefill that holds a slot.
    """
    changes = admissions.in_prefill() if policy == "chunked" else ([], [])
    starts, ids = admissions.heads()
    blocked: Counter[str] = Counter()
    emitted = advanced = cached = peak = waiting = 0
    last = -1
    for row in ticks:
        last = last if row.idle else row.tick
        holding = min(hardware.decode_slots - row.emitted, _level(changes, row.tick))
        busy = row.emitted + holding - row.starved
        emitted, advanced, cached = emitted + row.emitted, advanced + busy, cached + row.kv_cached
        if row.tick * hardware.tick_ns <= t_obs_ns:
            peak = max(peak, row.kv_cached)
        if row.queue and busy < hardware.decode_slots:
            waiting += 1
            if (next_start := bisect_right(starts, row.tick)) < len(starts):
                blocked[ids[next_start]] += 1
    if last < 0:
        return None
    count = last + 1
    return TickFigures(
        batch=advanced / (count * hardware.decode_slots),
        prefill=admissions.prefilled_tokens / (count * hardware.prefill_tokens_per_tick),
        decode=emitted / (count * hardware.decode_slots),
        kv=cached / (count * hardware.kv_budget_tokens),
        kv_peak_tokens=peak,
        head_of_line=HeadOfLine(waiting, waiting / count, dict(blocked.most_common(MOST_HEADS))),
    )


def _level(changes: tuple[list[int], list[int]], tick: int) -> int:
    ticks, levels = changes
    index = bisect_right(ticks, tick)
    return levels[index - 1] if index else 0
