"""Takes of the rows of a trace, as they stream by once, what its description is made of.

Of lengths each that differs is held, with how often it comes; times, sessions and blocks go to disk where
they are too many.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

import msgspec

from ledgers.description import Arrivals, Description, lengths, weighted
from ledgers.formats.fields import TraceRow
from ledgers.intake import EMPTY, Intake, Time
from ledgers.spilling import Ascending, Firsts
from ledgers.units import NS_PER_S

EPOCH = datetime(1970, 1, 1)
MOST_PLACES = 60


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
