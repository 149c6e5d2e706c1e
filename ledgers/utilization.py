"""What tick rows say: how busy the modelled hardware was, the KV peak, and head-of-line blocking.

Pure. A tick without a row was idle. Figures are over all ticks from 0 through the last one, but for the KV
peak, which is over the ticks that fire in the observation window.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from heapq import nlargest
from itertools import groupby

import msgspec

from ledgers.columns import Table
from ledgers.concurrency import InFlight
from ledgers.metrics import NEVER, origin_ns
from ledgers.rows import RequestRow, TickRow
from ledgers.settings import Hardware

MOST_HEADS = 5


class HeadOfLine(msgspec.Struct, frozen=True):
    """Ticks with idle decode slots while the queue was not empty.

    `heads` says in how many of them who was next to be admitted: who was kept waiting, not who kept it.
    """

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
        self._rows = Table(("start", "end", "arrival", "first_token", "id"))

    def add(self, row: RequestRow) -> None:
        if row.ticks is None or (start := row.ticks.prefill_start) is None:
            return
        end = row.ticks.prefill_end
        if end is not None:
            self.prefilled_tokens += row.prompt_tokens
        else:
            end = row.ticks.cancel
        self._rows.append((start, end, origin_ns(row) or 0, row.ticks.first_token or 0, row.id))

    def in_prefill(self) -> InFlight:
        """How many were in prefill, by tick."""
        ends = self._rows["end"]
        return InFlight(self._rows["start"], array("q", (NEVER if end is None else end for end in ends)))

    def heads(self) -> tuple[Sequence[int], Sequence[int]]:
        """Ticks at which requests were admitted, ascending, and which was the first of each by arrival."""
        starts = self._rows["start"]
        ticks = array("q", (tick for tick, _ in groupby(sorted(starts))))
        first = array("i", [-1]) * len(ticks)
        for this, start in enumerate(starts):
            place = bisect_left(ticks, start)
            if first[place] < 0 or self._order(this) < self._order(first[place]):
                first[place] = this
        return ticks, first

    def _order(self, this: int) -> tuple[int, int, int, str]:
        # Ties are broken as the rotation does, then by number: the rows do not tell the order of the ledger.
        id = self.id(this)
        return self._rows["arrival"][this], self._rows["first_token"][this], len(id), id

    def id(self, this: int) -> str:
        id: str = self._rows["id"][this]
        return id


def tick_figures(
    ticks: Iterable[TickRow], hardware: Hardware, policy: str | None, admissions: Admissions, t_obs_ns: int
) -> TickFigures | None:
    """Figures over ascending tick rows; None if there are none.

    A sequence advances when it emits; under `chunked`, where decode slots also advance prefill, so does one
    in prefill that holds a slot.
    """
    in_prefill = admissions.in_prefill() if policy == "chunked" else InFlight((), ())
    holding_at = in_prefill.rising()
    slots, last_tick = hardware.decode_slots, t_obs_ns // hardware.tick_ns  # told once: there are many rows
    starts, heads = admissions.heads()
    blocked = array("q", [0]) * len(starts)  # ticks, by the start that they waited for
    emitted = advanced = cached = peak = waiting = 0
    last = -1
    for row in ticks:
        tick, tokens, kv_cached = row.tick, row.emitted, row.kv_cached
        if tokens or not row.idle:
            last = tick
        busy = tokens + min(slots - tokens, holding_at(tick)) - row.starved
        emitted += tokens
        advanced += busy
        cached += kv_cached
        if kv_cached > peak and tick <= last_tick:
            peak = kv_cached
        if row.queue and busy < slots:
            waiting += 1
            if (next_start := bisect_right(starts, tick)) < len(starts):
                blocked[next_start] += 1
    if last < 0:
        return None
    count = last + 1
    most = nlargest(MOST_HEADS, range(len(starts)), key=blocked.__getitem__)
    return TickFigures(
        batch=advanced / (count * hardware.decode_slots),
        prefill=admissions.prefilled_tokens / (count * hardware.prefill_tokens_per_tick),
        decode=emitted / (count * hardware.decode_slots),
        kv=cached / (count * hardware.kv_budget_tokens),
        kv_peak_tokens=peak,
        head_of_line=HeadOfLine(
            waiting, waiting / count, {admissions.id(heads[i]): blocked[i] for i in most if blocked[i]}
        ),
    )
