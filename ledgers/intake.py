"""Which records of a trace are requests, and what else there is to say of them, as they stream by.

Loading a trace and describing it take their rows from here, so that they cannot disagree. Ids and sessions
go to disk where they are too many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import chain

import msgspec

from ledgers.errors import InputError
from ledgers.formats.fields import Skipped, TraceRow, located, shown
from ledgers.kept import Kept
from ledgers.spilling import Firsts
from ledgers.taken import time_of
from ledgers.units import ceil_div

MOST_BEHIND = 100  # rows: those of a busy server's log, which are late as they come, catch up before
EMPTY = "no request in it"
Numbered = tuple[int, TraceRow]
Time = int | Fraction


class Clock:
    """How the times of rows, in order of the file, go back: rows before the row above, and clocks set back.

    A clock is set back where a row falls back over nine tenths of the time since the clock began, or more, or
    where so many rows in a row stay behind the latest one before them that it was no row that came late. In
    a file that is in no order at all nothing can be said of clocks.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.out_of_order = 0
        self.first_line: int | None = None
        self.first_reset_line: int | None = None
        self._resets = 0
        self._start: Time | None = None
        self._before: Time = 0
        self._latest: Time = 0
        self._behind = 0  # rows since the latest time
        self._fell: tuple[Time, int] = (0, 0)  # the first of them, and its line
        self._peak: Time = 0  # the latest of them

    def see(self, time: Time, line: int) -> None:
        """The next row's time."""
        self.rows += 1
        if self._start is None:
            self._start = self._latest = time
        elif time >= self._latest:
            self._latest, self._behind = time, 0
        else:
            self._see_behind(time, line, self._start)
        self._before = time

    @property
    def resets(self) -> int:
        """How often the clock was set back."""
        return self._resets if 3 * self.out_of_order <= self.rows else 0

    def _see_behind(self, time: Time, line: int, start: Time) -> None:
        if not self._behind:
            self._fell, self._peak = (time, line), time
        self._behind += 1
        self._peak = max(self._peak, time)
        over = False
        if time < self._before:
            self.out_of_order += 1
            self.first_line = self.first_line or line
            over = self._latest > start and 10 * (self._latest - time) >= 9 * (self._latest - start)
        if over:
            self._reset(time, line, time)
        elif self._behind == MOST_BEHIND:
            self._reset(*self._fell, self._peak)

    def _reset(self, start: Time, line: int, latest: Time) -> None:
        self._resets += 1
        self.first_reset_line = self.first_reset_line or line
        self._start, self._latest, self._behind = start, latest, 0


class Intake:
    """Passes rows on as they stream by, numbered from 1; leaves out those that cannot be replayed.

    InputError if an id comes twice, or a row gives an id or a time and the one before does not; if `strict`,
    also for what would be left out.
    """

    def __init__(
        self, source: str, rows: Iterable[TraceRow | Skipped], strict: bool, *, waits: bool = True
    ) -> None:
        """`waits`: a turn with a think time needs no time of its own."""
        self.count = 0
        self.skipped: Counter[str] = Counter()
        self.clock = Clock()
        self._source = source
        self._rows = rows
        self._strict = strict
        self._waits = waits
        self._times_of_session: Kept[tuple[Time | None, Fraction | None]] = Kept()
        self._beyond = 0
        self._line_of_id: Firsts[str] = Firsts()

    def __iter__(self) -> Iterator[Numbered]:
        before, alike = None, (False, False, False)
        for given in self._rows:
            if isinstance(given, Skipped) or not (given.prompt_tokens and given.output_tokens):
                self._skip(given)
                continue
            row = self._timed(given)
            if row.id is not None:
                self._check_id(row.id, row.line)
            gaps = row.id is None, row.time_ns is None, row.at is None
            if before is not None and gaps != alike:
                raise self._unlike(before, row)
            if row is given:
                self.clock.see(time_of(row), row.line)
                before, alike = row, gaps
            self.count += 1
            yield self.count, self._within_prompt(row)
        if again := min(self._again(), default=None):
            raise self._id_again(*again)

    def _timed(self, row: TraceRow) -> TraceRow:
        """A turn without a time gets the earliest possible, which is what orders it among the others."""
        session = row.session
        if not self._waits or session is None:
            return row
        if row.think_ns is not None and row.time_ns is row.at is None:
            time_ns, at = self._times_of_session.get(session) or (None, None)
            if time_ns is not None:
                row = msgspec.structs.replace(row, time_ns=time_ns + row.think_ns)
            elif at is not None:
                row = msgspec.structs.replace(row, at=at)
        if _has_time(row):
            self._times_of_session[session] = (row.time_ns, row.at)
        return row

    def notes(self) -> list[str]:
        notes = [f"{_rows(count)} left out: {reason}" for reason, count in self.skipped.items()]
        clock = self.clock
        if clock.out_of_order:
            first = f"before the row above, the first on line {clock.first_line}"
            notes.append(f"{_rows(clock.out_of_order)} out of time order ({first}): sorted")
        if clock.resets:
            times = f"{clock.resets} time{'s' * (clock.resets != 1)}"
            first = f"as if the clock was set back {times}, the first on line {clock.first_reset_line}"
            notes.append(f"times fall back {first}: what comes after is sorted in among what was before")
        if self._beyond:
            notes.append(
                f"{_rows(self._beyond)} with more hash_ids than the prompt has blocks: those left out"
            )
        return notes

    def _skip(self, row: TraceRow | Skipped) -> None:
        if isinstance(row, Skipped):
            reason = row.reason
        else:
            reason = "no output tokens" if row.prompt_tokens else "no prompt tokens"
        if self._strict:
            raise located(self._source, row.line, reason)
        self.skipped[reason] += 1

    def _within_prompt(self, row: TraceRow) -> TraceRow:
        if row.hash_ids is None or row.block_tokens is None:
            return row
        blocks = ceil_div(row.prompt_tokens, row.block_tokens)
        if len(row.hash_ids) <= blocks:
            return row
        self._beyond += 1
        return msgspec.structs.replace(row, hash_ids=row.hash_ids[:blocks])

    def _check_id(self, id: str, line: int) -> None:
        first = self._line_of_id.setdefault(id, line)
        if first != line:
            raise self._id_again(*min(chain([(line, first, id)], self._again())))

    def _again(self) -> Iterator[tuple[int, int, str]]:
        """(line, first line, id) of ids that come again so far from the first time that this was on disk."""
        return ((again, first, id) for id, first, again in self._line_of_id.again())

    def _id_again(self, line: int, first: int, id: str) -> InputError:
        return located(self._source, line, f"id {shown(id)} is on line {first} already")

    def _unlike(self, before: TraceRow, row: TraceRow) -> InputError:
        """Of two rows, one of which gives what the other does not."""
        timed = [_has_time(before), _has_time(row)]
        untimed = before if timed[1] else row
        if timed[0] != timed[1] and untimed.session is not None and untimed.think_ns is not None:
            return located(self._source, untimed.line, self._cannot_wait(untimed.session))
        had_and_has = (
            ("id", before.id, row.id),
            ("time", before.time_ns, row.time_ns),
            ("at", before.at, row.at),
        )
        field, has = next((f, has) for f, had, has in had_and_has if (had is None) != (has is None))
        fault = "missing, but given" if has is None else "given, but missing"
        return located(self._source, row.line, f"{field} is {fault} on line {before.line}")

    def _cannot_wait(self, session: str) -> str:
        """Why a turn without a time does not get one from the turn before."""
        if not self._waits:
            remedy = "give the turn one, or leave that out, and it waits for the answer before"
            return f"time is missing, which --sessions replay needs: {remedy}"
        return f"time is missing, and no turn of session {shown(session)} is above: the first needs a time"


def _has_time(row: TraceRow) -> bool:
    return row.time_ns is not None or row.at is not None


def no_request(source: str, notes: Iterable[str]) -> InputError:
    """What is said of a trace that has nothing to replay."""
    return InputError(": ".join([source, EMPTY, *notes]))


def _rows(count: int) -> str:
    return f"{count} row{'s' * (count != 1)}"
