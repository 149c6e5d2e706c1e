"""What the queue waited for, tick by tick, and which request kept which others waiting. Pure.

From request rows and tick rows, with the rules of the policies. In a tick with a queue, its head, the request
that is admitted next, waits for one of these:

- `prefill`: a batch is being prefilled, and the policies that have one start no other. Its longest prompt
  blocks the others;
- `service`: `immediate` and `static` wait until all that they have admitted is done. Who ends last blocks;
- `kv`: the head does not fit beside what is reserved. If one soon behind it would, it blocks those behind it,
  for nothing overtakes;
- `forming`: nothing but the rule for batches keeps it;
- `slots`: all decode slots advance something, and the policy admits only into free ones (`chunked`);
- `tokens`: slots are held for prefill that got no tokens in this tick, for there are so many (`chunked`);
- `other`: the rows do not tell, as of a head that left before it was admitted.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from heapq import nlargest, nsmallest
from itertools import chain, islice
from typing import Literal, NamedTuple

import msgspec

from ledgers.columns import Table
from ledgers.metrics import NEVER, origin_ns
from ledgers.rows import RequestRow, TickRow
from ledgers.settings import SchedulerSettings
from ledgers.utilization import Admissions

Cause = Literal["prefill", "service", "kv", "forming", "slots", "tokens", "other"]
ONE_BATCH = ("immediate", "static")
LEAST_BLOCKED = 3  # ticks: who keeps others for less is served as anybody is
MOST_BLOCKERS = 5
MOST_VICTIMS = 5
FEW_BEHIND = 16


class Blocker(msgspec.Struct, frozen=True):
    """A request for which others waited in `ticks` ticks with idle decode slots, and the first of them."""

    id: str
    prompt_tokens: int
    output_tokens: int
    ticks: int
    causes: dict[Cause, int]  # these ticks, by what the queue waited for
    victims: list[str]
    victim_count: int


class Waits(msgspec.Struct, frozen=True):
    """Ticks with a queue, by what its head waited for.

    `idle`: those of them with idle decode slots; `queued`: the requests in the queue, summed over these;
    `blocked`: those of the idle ones in which a request kept others waiting that did so in LEAST_BLOCKED.
    `share_mean` and `share_variance` are of the turns per prefilled sequence and tick, `crowded` the ticks
    in which more were prefilled than there are slots, of `decoding` with any.
    """

    ticks: int
    waiting: dict[Cause, int]
    idle: dict[Cause, int]
    queued: dict[Cause, int]
    blocked: int
    kv_reserved_mean: float | None
    kv_cached_mean: float | None
    decoding: int
    crowded: int
    share_mean: float | None
    share_variance: float | None
    blockers: list[Blocker]


class Admitted:
    """What request rows tell of the scheduler: who was admitted when, and who waited for how long."""

    def __init__(self) -> None:
        self.admissions = Admissions()
        self._rows = Table(("start", "prefilled", "left", "prompt", "output", "received", "origin", "class"))
        self._queued = Table(("since", "until", "id"))

    def add(self, row: RequestRow) -> None:
        ticks = row.ticks
        if ticks is None or ticks.received is None or row.outcome == "rejected":
            return
        start = ticks.prefill_start
        end = start if start is not None else ticks.cancel
        self._queued.append((ticks.received, NEVER if end is None else end, row.id))
        if start is None:
            return
        self.admissions.add(row)
        left = ticks.last_token if ticks.cancel is None else ticks.cancel
        prefilled = left if ticks.prefill_end is None else ticks.prefill_end
        ends = (NEVER if end is None else end for end in (prefilled, left))
        came = (ticks.received, origin_ns(row) or 0)
        self._rows.append((start, *ends, row.prompt_tokens, row.output_tokens, *came, row.class_))

    def batches(self) -> Batches:
        starts, heads = self.admissions.heads()
        members: list[list[int]] = [[] for _ in starts]
        for this, start in enumerate(self._rows["start"]):
            members[bisect_left(starts, start)].append(this)
        return Batches(self._rows, starts, heads, members)

    def blocker(self, this: int, ticks: Sequence[int], causes: dict[Cause, int]) -> Blocker:
        """With the requests that waited in any of these ascending `ticks`, itself aside, first come first."""
        id = self.admissions.id(this)
        since, until, ids = (self._queued[name] for name in ("since", "until", "id"))
        waited = [
            (first, i)
            for i, (first, end) in enumerate(zip(since, until, strict=True))
            if bisect_left(ticks, first) < bisect_left(ticks, end) and ids[i] != id
        ]
        return Blocker(
            id=id,
            prompt_tokens=self._rows["prompt"][this],
            output_tokens=self._rows["output"][this],
            ticks=len(ticks),
            causes=causes,
            victims=[ids[i] for _, i in nsmallest(MOST_VICTIMS, waited)],
            victim_count=len(waited),
        )


class Batches(NamedTuple):
    """Requests by the tick at which they were admitted: who, and who of them had come first."""

    rows: Table
    starts: Sequence[int]
    heads: Sequence[int]
    members: list[list[int]]

    def last(self, tick: int) -> list[int]:
        """The members of the batch that was admitted last, in this tick or before."""
        place = bisect_right(self.starts, tick)
        return self.members[place - 1] if place else []

    def head(self, tick: int) -> int | None:
        """Who is admitted next."""
        place = bisect_right(self.starts, tick)
        return self.heads[place] if place < len(self.starts) else None

    def behind(self, tick: int) -> list[int]:
        """Those who wait and are admitted after the head, the first few."""
        place = bisect_right(self.starts, tick)
        coming = chain.from_iterable(islice(self.members, place, place + FEW_BEHIND))
        waiting = (this for this in coming if self.rows["received"][this] <= tick)
        return [this for this in islice(waiting, 1 + FEW_BEHIND) if this != self.heads[place]]

    def until(self, name: str, members: Iterable[int], tick: int) -> list[int]:
        """Those that are still `prefilled` or `left` later than this tick."""
        ends = self.rows[name]
        return [this for this in members if ends[this] > tick]


def waits(ticks: Iterable[TickRow], settings: SchedulerSettings, admitted: Admitted) -> Waits | None:
    """All of it over ascending tick rows; None if there are none."""
    tally = _Tally(settings, admitted)
    for row in ticks:
        tally.add(row)
    return tally.figures()


class _Tally:
    def __init__(self, settings: SchedulerSettings, admitted: Admitted) -> None:
        self._settings = settings
        self._slots = settings.hardware.decode_slots
        self._admitted = admitted
        self._batches = admitted.batches()
        self._chunked = settings.policy == "chunked"
        self._in_prefill = admitted.admissions.in_prefill()
        self._last = self._before = -1
        self._ready = 0
        self._waiting: Counter[Cause] = Counter()
        self._idle: Counter[Cause] = Counter()
        self._queued: Counter[Cause] = Counter()
        self._kv_reserved = self._kv_cached = 0
        self._shares = _Moments()
        self._crowded = 0
        self._blocked: defaultdict[int, array[int]] = defaultdict(lambda: array("q"))
        self._blamed: Counter[tuple[int, Cause]] = Counter()

    def add(self, row: TickRow) -> None:
        self._add_share(row)
        if not row.idle:
            self._last = row.tick
        if not row.queue:
            return
        idle = self._busy(row) < self._slots
        cause, blocker = _cause(row, self._settings, self._batches, idle=idle)
        self._waiting[cause] += 1
        if cause == "kv":
            self._kv_reserved += row.kv_reserved
            self._kv_cached += row.kv_cached
        if idle:
            self._idle[cause] += 1
            self._queued[cause] += row.queue
            if blocker is not None:
                self._blocked[blocker].append(row.tick)
                self._blamed[blocker, cause] += 1

    def _add_share(self, row: TickRow) -> None:
        """Prefilled at the end of the tick before is who may have a turn in this one."""
        ready = self._ready if row.tick == self._before + 1 else 0
        if ready:
            self._shares.add(min(1.0, row.emitted / ready))
            self._crowded += ready > self._slots
        self._before, self._ready = row.tick, row.ready

    def _busy(self, row: TickRow) -> int:
        if not self._chunked:
            return row.emitted
        holding = min(self._slots - row.emitted, self._in_prefill.at(row.tick))
        return row.emitted + holding - row.starved

    def figures(self) -> Waits | None:
        if self._last < 0:
            return None
        blocked = {who: ticks for who, ticks in self._blocked.items() if len(ticks) >= LEAST_BLOCKED}
        most = nlargest(MOST_BLOCKERS, blocked.items(), key=lambda item: len(item[1]))
        kv = self._waiting["kv"]
        return Waits(
            ticks=self._last + 1,
            waiting=dict(self._waiting),
            idle=dict(self._idle),
            queued=dict(self._queued),
            blocked=sum(map(len, blocked.values())),
            kv_reserved_mean=self._kv_reserved / kv if kv else None,
            kv_cached_mean=self._kv_cached / kv if kv else None,
            decoding=self._shares.n,
            crowded=self._crowded,
            share_mean=self._shares.mean,
            share_variance=self._shares.variance,
            blockers=[self._admitted.blocker(who, ticks, self._causes(who)) for who, ticks in most],
        )

    def _causes(self, who: int) -> dict[Cause, int]:
        return {cause: ticks for (blamed, cause), ticks in self._blamed.items() if blamed == who}


class _Moments:
    """Mean and variance of values, one after another (Welford's recurrence, which does not cancel)."""

    def __init__(self) -> None:
        self.n = 0
        self._mean = self._squares = 0.0

    def add(self, value: float) -> None:
        self.n += 1
        off = value - self._mean
        self._mean += off / self.n
        self._squares += off * (value - self._mean)

    @property
    def mean(self) -> float | None:
        return self._mean if self.n else None

    @property
    def variance(self) -> float | None:
        return self._squares / self.n if self.n else None


def _cause(
    row: TickRow, settings: SchedulerSettings, batches: Batches, *, idle: bool
) -> tuple[Cause, int | None]:
    """What the head waits for in this tick, and who is to blame, if anybody is."""
    last, head = batches.last(row.tick), batches.head(row.tick)
    if settings.policy != "chunked":
        if prefilling := batches.until("prefilled", last, row.tick):
            return "prefill", max(prefilling, key=batches.rows["prompt"].__getitem__)
        if settings.policy in ONE_BATCH and (serving := batches.until("left", last, row.tick)):
            return "service", max(serving, key=batches.rows["left"].__getitem__)
    if head is None:
        return "other", None
    free = settings.hardware.kv_budget_tokens - row.kv_reserved
    if _reserve(batches.rows, head) > free:
        behind = batches.behind(row.tick)
        return "kv", head if any(_reserve(batches.rows, this) <= free for this in behind) else None
    if settings.policy == "chunked":
        return ("tokens" if row.starved else "other" if idle else "slots"), None
    return ("other" if _formed(row, settings, batches.rows, head) else "forming"), None


def _reserve(rows: Table, this: int) -> int:
    reserve: int = rows["prompt"][this] + rows["output"][this]
    return reserve


def _formed(row: TickRow, settings: SchedulerSettings, rows: Table, head: int) -> bool:
    """Whether the rule for batches lets the head go. Rows do not tell how many of each class wait."""
    waited = row.tick * settings.hardware.tick_ns - rows["origin"][head]
    if waited >= settings.wait_ns(rows["class"][head]) or settings.policy == "immediate":
        return True
    return settings.policy != "classes" and row.queue >= settings.max_batch
