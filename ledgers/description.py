"""What a trace is like: how many requests, of which lengths, when, and how much of their prompts they share.

Pure. Rows are looked at once, as they stream by, and all figures are exact. What is held grows with what
differs (lengths, sessions, blocks), not with the rows, as long as these come in order of time; else their
times are kept, in 8 bytes each.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from fractions import Fraction
from heapq import merge
from itertools import accumulate, pairwise
from math import ceil, sqrt
from typing import Any

import msgspec

from ledgers.columns import Column
from ledgers.distributions import PERCENTILES, rank
from ledgers.formats.fields import TraceRow
from ledgers.intake import Intake, Time
from ledgers.units import NS_PER_S

MOST_BINS = 4096
PARTS = 60  # in which arrivals over time are shown
SORTED_AT_ONCE = 1 << 20
WALL_CLOCK_NS = 10**18  # no trace begins 31 years after its own origin: such a time counts from 1970
MOST_PLACES = 60


class Lengths(msgspec.Struct, frozen=True):
    """Figures in tokens over `n` requests; percentiles are nearest-rank."""

    mean: float
    min: int
    p50: int
    p90: int
    p95: int
    p99: int
    max: int
    n: int


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What `trace describe` tells. None stands for what is not known.

    `cv` is the coefficient of variation of the gaps between arrivals: their standard deviation (over all n
    gaps, not n - 1) by their mean. `mean_rate_rps` is what loading stretches to a rate: (n - 1) / duration.
    `first_time` and `last_time` are texts of a clock that shows the date, else numbers in the trace's own
    origin and unit. `prefix_reuse` is the share of prompt tokens in blocks that have come before.
    """

    format: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    duration_s: float | None
    mean_rate_rps: float | None
    cv: float | None
    prompt_percentiles: Lengths | None
    output_percentiles: Lengths | None
    sessions: int | None
    prefix_reuse: float | None
    first_time: str | msgspec.Raw | None
    last_time: str | msgspec.Raw | None
    out_of_order: int
    clock_resets: int
    skipped: dict[str, int]
    notes: list[str]


class Arrivals:
    """Ascending times: their number, what their gaps vary by, and how many came when.

    They are counted in bins of equal width, from the first one on, which grow twice as wide when there would
    be too many of them.
    """

    def __init__(self) -> None:
        self.count = 0
        self.first: Time = 0
        self.last: Time = 0
        self._squares: Time = 0
        self._bins: list[int] = []
        self._shift = 0  # a bin is 2**shift ns wide

    def add(self, time: Time) -> None:
        if not self.count:
            self.first = self.last = time
        self.count += 1
        gap = time - self.last
        self._squares += gap * gap
        self.last = time
        place = int(time - self.first) >> self._shift
        while place >= MOST_BINS:
            self._bins = [sum(self._bins[i : i + 2]) for i in range(0, len(self._bins), 2)]
            self._shift += 1
            place >>= 1
        if place >= len(self._bins):
            self._bins += [0] * (place + 1 - len(self._bins))
        self._bins[place] += 1

    @property
    def span(self) -> Time:
        return self.last - self.first

    @property
    def rate(self) -> float | None:
        """(n - 1) / span, per second; None without a span."""
        return float((self.count - 1) * NS_PER_S / Fraction(self.span)) if self.span else None

    @property
    def cv(self) -> float | None:
        """Of the gaps; None with fewer than two, or if all are 0."""
        if self.count < 3 or not self.span:
            return None
        return _cv(self.count - 1, self.span, self._squares)

    def over_time(self) -> list[tuple[int, float]]:
        """How many arrive in each of at most PARTS parts, and its seconds: they are alike but for a bin."""
        bins = len(self._bins)
        bounds = [bins * part // min(PARTS, bins) for part in range(min(PARTS, bins) + 1)]
        return [(sum(self._bins[i:j]), (j - i) * self._bin_s) for i, j in pairwise(bounds)]

    def busiest_rate(self, window_s: float) -> float:
        """The highest rate, per second, over any stretch of the bins as long as the window, or longer."""
        bins = max(1, ceil(window_s / self._bin_s))
        sums = [*accumulate(self._bins, initial=0)]
        most = max(sums[min(i + bins, len(sums) - 1)] - sums[i] for i in range(max(1, len(sums) - bins)))
        return most / (bins * self._bin_s)

    @property
    def _bin_s(self) -> float:
        return (1 << self._shift) / NS_PER_S


class Describer:
    """Takes the rows that an intake passes on, in order of the file."""

    def __init__(self, *, keep_times: bool) -> None:
        self.arrivals = Arrivals()
        self.prompts: Counter[int] = Counter()
        self.outputs: Counter[int] = Counter()
        self.totals: Counter[int] = Counter()  # prompt and output of a request
        self.products = 0  # of prompt and output
        self.has_unit = True
        self._sessions: set[str] = set()
        self._blocks: set[int] = set()
        self._reused = 0
        self._times = Column() if keep_times else None
        self._pending: list[Time] = []

    def add(self, row: TraceRow) -> bool:
        """Whether it could be taken: a row before the one above cannot, unless times are kept."""
        prompt, output = row.prompt_tokens, row.output_tokens
        self.prompts[prompt] += 1
        self.outputs[output] += 1
        self.totals[prompt + output] += 1
        self.products += prompt * output
        if row.session is not None:
            self._sessions.add(row.session)
        if row.hash_ids:
            self._add_blocks(row.hash_ids, row.block_tokens or 0, prompt)
        if row.time_ns is not None:
            return self._add_time(row.time_ns)
        if row.at is not None:
            self.has_unit = False
            return self._add_time(row.at * NS_PER_S)
        return True

    def _add_time(self, time: Time) -> bool:
        if self._times is None:
            if self.arrivals.count and time < self.arrivals.last:
                return False
            self.arrivals.add(time)
        else:
            self._pending.append(time)
            if len(self._pending) == MOST_BINS:
                self._settle(self._times)
        return True

    def _settle(self, times: Column) -> None:
        times.extend(self._pending)
        self._pending.clear()

    def _add_blocks(self, hash_ids: list[int], block_tokens: int, prompt_tokens: int) -> None:
        """The last block has what is left of the prompt."""
        for place, id in enumerate(hash_ids):
            if id in self._blocks:
                self._reused += min(block_tokens, prompt_tokens - place * block_tokens)
            else:
                self._blocks.add(id)

    def finish(self) -> None:
        """Have the times in order, if they were kept."""
        if self._times is not None:
            self._settle(self._times)
            for time in _ascending(self._times):
                self.arrivals.add(time)
            self._times = None

    def description(self, format_name: str, intake: Intake) -> Description:
        """The figures, once all rows are in, and what the intake has to say."""
        arrivals = self.arrivals
        prompt_tokens = weighted(self.prompts)
        timed = arrivals.count > 0
        with_unit = timed and self.has_unit
        return Description(
            format=format_name,
            requests=self.prompts.total(),
            prompt_tokens=prompt_tokens,
            output_tokens=weighted(self.outputs),
            duration_s=float(Fraction(arrivals.span) / NS_PER_S) if with_unit else None,
            mean_rate_rps=arrivals.rate if with_unit else None,
            cv=arrivals.cv,
            prompt_percentiles=lengths(self.prompts),
            output_percentiles=lengths(self.outputs),
            sessions=len(self._sessions) or None,
            prefix_reuse=self._reused / prompt_tokens if self._blocks else None,
            first_time=_moment(arrivals.first) if timed else None,
            last_time=_moment(arrivals.last) if timed else None,
            out_of_order=intake.clock.out_of_order,
            clock_resets=intake.clock.resets,
            skipped=dict(intake.skipped),
            notes=intake.notes(),
        )


def lengths(counts: Counter[int]) -> Lengths | None:
    """Figures of values, each with how often it comes; None without any."""
    n = counts.total()
    if not n:
        return None
    ordered = sorted(counts)
    reached = list(accumulate(counts[value] for value in ordered))
    ranks = [rank(percent, n) for percent in PERCENTILES]
    p50, p90, p95, p99 = (ordered[bisect_left(reached, place)] for place in ranks)
    return Lengths(weighted(counts) / n, ordered[0], p50, p90, p95, p99, ordered[-1], n)


def weighted(counts: Counter[int], power: int = 1) -> int:
    """The sum of all values, or of their powers."""
    return sum(count * value**power for value, count in counts.items())


def spread(counts: Counter[int]) -> float:
    """The coefficient of variation of values of which one is above 0."""
    return _cv(counts.total(), weighted(counts), weighted(counts, 2))


def _cv(n: int, total: Time, squares: Time) -> float:
    # The mean of squares less the square of the mean, in integers: floats would lose all of a small spread.
    return sqrt(n * Fraction(squares) / Fraction(total) ** 2 - 1)


def _ascending(times: Column) -> Iterable[Time]:
    """A list of all would take forty bytes a time, so that no more than a part is one at any time."""
    if len(times) <= SORTED_AT_ONCE:
        return sorted(times)
    parts = (times[i : i + SORTED_AT_ONCE] for i in range(0, len(times), SORTED_AT_ONCE))
    ordered = [Column(sorted(part)) for part in parts]
    return merge(*ordered)


def _moment(ns: Time) -> Any:
    """A time with all of its digits: of a clock that shows the date as ISO 8601, in UTC."""
    if ns < WALL_CLOCK_NS:
        return msgspec.Raw(_decimal(Fraction(ns) / NS_PER_S).encode())
    whole, rest = divmod(Fraction(ns), NS_PER_S)
    try:
        second = datetime.fromtimestamp(whole, UTC)
    except (OverflowError, ValueError):  # beyond the year 9999
        return msgspec.Raw(_decimal(Fraction(ns) / NS_PER_S).encode())
    return f"{second:%Y-%m-%dT%H:%M:%S}{_decimal(rest / NS_PER_S)[1:]}Z"


def _decimal(value: Fraction) -> str:
    """All digits: 1.25, or 0 and not 0.0."""
    places = next((n for n in range(MOST_PLACES) if not 10**n % value.denominator), MOST_PLACES)
    digits = f"{round(value * 10**places):0{places + 1}d}"
    return f"{digits[:-places]}.{digits[-places:]}" if places else digits
