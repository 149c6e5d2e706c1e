"""What a trace is like: how many requests, of which lengths, when, and how much of their prompts they share.

Rows are looked at once, as they stream by, and all figures are exact. Of lengths each that differs is held,
with how often it comes; times, sessions and blocks go to disk where they are too many.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from fractions import Fraction
from itertools import accumulate, pairwise
from math import ceil, sqrt
from typing import Any

import msgspec

from ledgers.distributions import PERCENTILES, rank
from ledgers.formats.fields import TraceRow
from ledgers.intake import EMPTY, Intake, Time
from ledgers.spilling import Ascending, Firsts
from ledgers.units import NS_PER_S

PARTS = 60  # in which arrivals over time are shown
EPOCH = datetime(1970, 1, 1)
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
    `first_time` and `last_time` are texts where the format has dates, else numbers in the trace's own
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
    """Ascending times: their number, what their gaps vary by, and how many came when."""

    def __init__(self, times: Ascending | Sequence[Time] = ()) -> None:
        self.count = len(times)
        self.first: Time = next(iter(times), 0)
        self.last = self.first
        self._times = times
        self._squares: Time = 0  # of the gaps
        for before, self.last in pairwise(times):
            self._squares += (self.last - before) ** 2

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

    def over_time(self) -> list[int]:
        """How many arrive in each of PARTS equal parts of a span above 0, the very last in the last one."""
        first, span, counts = self.first, self.span, [0] * (PARTS + 1)
        for time in self._times:
            counts[(time - first) * PARTS // span] += 1
        return [*counts[: PARTS - 1], counts[PARTS - 1] + counts[PARTS]]

    def busiest_rate(self, window_s: float) -> float:
        """The highest rate, per second, over any stretch as long as the window."""
        window_ns = ceil(window_s * NS_PER_S)
        begins = iter(self._times)
        begin, most, within = next(begins, 0), 0, 0
        for time in self._times:
            within += 1
            while time - begin >= window_ns:
                within -= 1
                begin = next(begins)
            most = max(most, within)
        return most * NS_PER_S / window_ns


class Describer:
    """Takes the rows that an intake passes on, in order of the file."""

    def __init__(self) -> None:
        self.arrivals = Arrivals()
        self.prompts: Counter[int] = Counter()
        self.outputs: Counter[int] = Counter()
        self.totals: Counter[int] = Counter()  # prompt and output of a request
        self.products = 0  # of prompt and output
        self.has_unit = True
        self._dated = False
        self._sessions: Firsts[str] = Firsts()
        self._blocks: Firsts[int] = Firsts()  # each with the tokens it had where it came first
        self._in_blocks = 0  # tokens
        self._times = Ascending()

    def add(self, row: TraceRow) -> None:
        prompt, output = row.prompt_tokens, row.output_tokens
        self.prompts[prompt] += 1
        self.outputs[output] += 1
        self.totals[prompt + output] += 1
        self.products += prompt * output
        if row.session is not None:
            self._sessions.setdefault(row.session, 0)
        if row.hash_ids:
            self._add_blocks(row.hash_ids, row.block_tokens or 0, prompt)
        if row.time_ns is not None:
            self._dated |= row.dated
            self._times.add(row.time_ns)
        elif row.at is not None:
            self.has_unit = False
            self._times.add(row.at * NS_PER_S)

    def _add_blocks(self, hash_ids: list[int], block_tokens: int, prompt_tokens: int) -> None:
        """The last block has what is left of the prompt."""
        before = block_tokens * (len(hash_ids) - 1)
        last = min(block_tokens, prompt_tokens - before)
        self._in_blocks += before + last
        self._blocks.setdefaults(hash_ids[:-1], block_tokens)
        self._blocks.setdefault(hash_ids[-1], last)

    def _reuse(self, prompt_tokens: int) -> float | None:
        """The share of tokens in blocks, but for those of each block's first time; None without blocks."""
        blocks = first = 0
        for part in self._blocks.parts():
            blocks, first = blocks + len(part), first + sum(part.values())
        return (self._in_blocks - first) / prompt_tokens if blocks else None

    def finish(self) -> None:
        """Have the times in order, once all rows are in."""
        self._times.finish()
        self.arrivals = Arrivals(self._times)

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
            sessions=sum(map(len, self._sessions.parts())) or None,
            prefix_reuse=self._reuse(prompt_tokens),
            first_time=_moment(arrivals.first, dated=self._dated) if timed else None,
            last_time=_moment(arrivals.last, dated=self._dated) if timed else None,
            out_of_order=intake.clock.out_of_order,
            clock_resets=intake.clock.resets,
            skipped=dict(intake.skipped),
            notes=[*([] if self.prompts else [EMPTY]), *intake.notes()],
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


def _cv(n: int, total: Time, squares: Time) -> float:
    # The mean of squares less the square of the mean, in integers: floats would lose all of a small spread.
    return sqrt(n * Fraction(squares) / Fraction(total) ** 2 - 1)


def _moment(ns: Time, *, dated: bool) -> Any:
    """A time with all of its digits: a date as ISO 8601, in UTC."""
    if not dated:
        return msgspec.Raw(_decimal(Fraction(ns) / NS_PER_S).encode())
    whole, rest = divmod(Fraction(ns), NS_PER_S)
    second = EPOCH + timedelta(seconds=whole)
    return f"{second.isoformat()}{_decimal(rest / NS_PER_S)[1:]}Z"


def _decimal(value: Fraction) -> str:
    """All digits: 1.25, -0.5, or 0 and not 0.0."""
    if value < 0:
        return f"-{_decimal(-value)}"
    places = next((n for n in range(MOST_PLACES) if not 10**n % value.denominator), MOST_PLACES)
    digits = f"{round(value * 10**places):0{places + 1}d}"
    return f"{digits[:-places]}.{digits[-places:]}" if places else digits
