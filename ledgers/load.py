"""From what a user names (toy, a file, or just lengths) to a planned ledger.

A file streams through its format into columns, with no more than twice the rows that are asked for. What
loading changes is said in the ledger's notes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from importlib.resources import files
from io import BufferedReader, BytesIO, FileIO
from pathlib import Path
from random import Random
from typing import Any, Literal

from ledgers.arrivals import PROCESSES, Pacing, Rate, replay, stretch, usual_process
from ledgers.columns import Column, Table
from ledgers.errors import InputError
from ledgers.formats import HEAD_BYTES, choose_format, rundir
from ledgers.formats.fields import MOST_TOKENS, Files, Skipped, TraceRow
from ledgers.formats.mapped import Columns
from ledgers.intake import Intake, no_request
from ledgers.joined import Joined, trace_files
from ledgers.ledger import Ledger, PlannedRows
from ledgers.profile import Profile
from ledgers.sessions import Turns, linked
from ledgers.shaping import Shaping
from ledgers.taken import Taken
from ledgers.timing import Timing, at_once, draw_timing
from ledgers.units import NS_PER_S, to_ns

TOY = "toy"
STDIN = "-"
RUN = "run.json"
MOST_SPAN_NS = 10**18  # 31 years; 64 bits hold nine times as much
LENGTHS = ("prompt_tokens", "output_tokens")
Sessions = Literal["wait", "replay"]


def load_ledger(
    source: str,
    *,
    trace_format: str | None = None,
    columns: Columns | None = None,
    request_rate: Rate | None = None,
    speed: Fraction = Fraction(1),
    num_prompts: int | None = None,
    arrival: str | None = None,
    burstiness: float = 1.0,
    seed: int = 0,
    stages: Profile | None = None,
    strict: bool = False,
    sessions: Sessions | None = None,
    shaping: Shaping | None = None,
) -> Ledger:
    """The ledger of a trace file, of a run directory, or of `toy`; `columns` name what a trace's are.

    The first `num_prompts` rows in order of time are taken (a `shaping` has a number of its own, and may do
    more), then their times are stretched to `request_rate` (req/s), or divided by `speed`. An `arrival`
    process needs a rate or `stages`, and replaces the times that a file may have; rows that would come after
    the stages are left out. Rows of a trace that have no tokens are left out; `strict` refuses them. Requests
    without an id are numbered in order of the file. Turns with a think time wait for the one before, unless
    `sessions` are to be replayed at the trace's own times; then the rate, the process or the stages are those
    of the other requests. InputError says what in the file, or in the arguments, cannot be used.
    """
    pacing = Pacing(request_rate, speed, arrival, burstiness, seed, stages)
    shaping = shaping or Shaping(num_prompts=num_prompts)
    source = trace_source(source)
    with read_trace(source, trace_format, columns) as (form, rows):
        if sessions == "replay" and form == rundir.name:
            rows = rundir.that_came(rows)
        intake = Intake(source, rows, strict, waits=sessions != "replay")
        taken = Taken(shaping.most)
        for number, row in intake:
            taken.add(number, row)
        taken.sort()
    notes = intake.notes()
    if not taken:
        raise no_request(source, notes)
    notes += shaping.apply(taken, intake.count, seed)
    notes += _length_notes(taken)
    name = TOY if source == TOY else Path(source).name
    count = intake.count * shaping.times
    planned = taken.planned()
    thinks_ns = planned.pop("think_ns", None)
    before = linked(taken["session"], thinks_ns) if thinks_ns and sessions != "replay" else None
    if before is not None and thinks_ns is not None:
        turns = Turns(before, thinks_ns, pacing.speed)
        return _plan_turns(name, taken, turns, count, planned, pacing, notes)
    if sessions == "wait":
        raise InputError(f"{name}: --sessions wait: no turn of a session has a think time")
    return plan(name, taken["number"], count, planned, _timing(name, taken, pacing), notes)


def make_ledger(
    num_prompts: int | None,
    input_len: int,
    output_len: int,
    *,
    range_ratio: Fraction = Fraction(0),
    request_rate: Rate | None = None,
    arrival: str | None = None,
    burstiness: float = 1.0,
    seed: int = 0,
    stages: Profile | None = None,
) -> Ledger:
    """A ledger of random lengths, each uniform in [len * (1 - ratio), len * (1 + ratio)] and at least 1.

    The bounds are rounded outwards, and arrivals are Poisson (with a burstiness: gamma), as in vLLM's
    benchmark; all at once without a rate. In `stages`, `num_prompts` None makes as many as they hold.
    """
    if num_prompts is None and stages is None:
        raise InputError("random lengths: only stages tell how many requests to make")
    if (num_prompts is not None and num_prompts < 1) or not 0 <= range_ratio <= 1:
        raise InputError("random lengths: at least 1 request, and a range ratio from 0 to 1")
    if not 1 <= min(input_len, output_len) <= max(input_len, output_len) <= MOST_TOKENS:
        raise InputError(f"random lengths: each must be from 1 to {MOST_TOKENS:,} tokens")
    rate = "inf" if request_rate is None and stages is None else request_rate
    process = arrival or usual_process(burstiness)
    pacing = Pacing(rate, arrival=process, burstiness=burstiness, seed=seed, stages=stages)
    timing = draw_timing(process, num_prompts, pacing)
    random = Random(f"{seed}:lengths")
    ranges = [_length_range(length, range_ratio) for length in (input_len, output_len)]
    numbers = range(1, len(timing.arrivals) + 1)
    lengths = Table(LENGTHS)
    for _ in numbers:
        lengths.append([random.randint(least, most) for least, most in ranges])
    columns = {field: lengths[field] for field in LENGTHS}
    ledger = plan("random", numbers, num_prompts or len(numbers), columns, timing, [])
    ledger.made = True
    return ledger


def cut_to_duration(ledger: Ledger, seconds: Fraction) -> Ledger:
    """The ledger without the requests that arrive `seconds` after t0 or later. InputError if none is left."""
    end_ns = to_ns(seconds)
    rows = ledger.rows[: bisect_left(ledger.rows, end_ns, key=lambda row: row.arrival_ns or 0)]
    if not rows:
        raise InputError(f"{ledger.name}: no request arrives within {float(seconds):g} s")
    if len(rows) == len(ledger.rows):
        return ledger
    left_out = f"the last {len(ledger.rows) - len(rows)} of {len(ledger.rows)} requests left out"
    note = f"{left_out}: they arrive at {float(seconds):g} s or later"
    return Ledger(name=ledger.name, rows=rows, notes=[*ledger.notes, note], made=ledger.made)


def _length_range(length: int, ratio: Fraction) -> tuple[int, int]:
    return max(1, math.floor(length * (1 - ratio))), math.ceil(length * (1 + ratio))


def trace_source(source: str) -> str:
    """What is named, or where that is a directory of traces and of no run, the files in it."""
    path = Path(source)
    try:
        if not path.is_dir() or any((path / name).exists() for name in (rundir.ROWS, RUN)):
            return source
        return trace_files(source) or source
    except OSError as error:
        raise InputError(f"{source}: {error.strerror}") from None


@contextmanager
def read_trace(
    source: str, trace_format: str | None = None, columns: Columns | None = None
) -> Iterator[tuple[str, Iterator[TraceRow | Skipped]]]:
    """The name of a trace's format, and its records as they stream by. InputError as for `load_ledger`."""
    with _opened(source) as file:
        form = choose_format(file, source, trace_format, columns)
        yield form.name, form.read(file, source)


@contextmanager
def _opened(source: str) -> Iterator[BufferedReader]:
    try:
        with _open(source) as file:
            yield file
    except OSError as error:
        raise InputError(f"{source}: {error.strerror}") from None


def _open(source: str) -> BufferedReader:
    if source == TOY:
        # The buffered reader is what formats expect, wherever the package's data lies.
        return BufferedReader(BytesIO((files("ledgers") / "data" / "toy_ledger.csv").read_bytes()))
    if source == STDIN:
        source = "/dev/stdin"
    if Path(source).is_dir():
        if isinstance(source, Files):
            return BufferedReader(Joined(source), HEAD_BYTES)
        source = _rows_of_run(source)
    return BufferedReader(_WholeReads(source), HEAD_BYTES)


def _rows_of_run(directory: str) -> str:
    rows = Path(directory) / rundir.ROWS
    if not rows.exists():
        seen = f"it has no {rundir.ROWS}, and no .json or .jsonl of a trace"
        raise InputError(f"{directory}: a directory, but no run directory ({seen})")
    return str(rows)


class _WholeReads(FileIO):
    """Reads all that is asked for: a pipe gives a little at a time, but a head is peeked at once."""

    def readinto(self, buffer: Any) -> int:
        view, count = memoryview(buffer), 0
        while count < len(view) and (more := super().readinto(view[count:])):
            count += more
        return count


def _length_notes(taken: Taken) -> list[str]:
    count = sum(taken["counted_otherwise"])
    if not count:
        return []
    prompts = "1 prompt has" if count == 1 else f"{count} prompts have"
    return [f"{prompts} another length by the mock's own count (agree and simulate need that one)"]


def plan(
    name: str,
    numbers: Sequence[int],
    count: int,
    columns: dict[str, Column],
    timing: Timing,
    notes: list[str],
    arrivals: Sequence[int] | None = None,
) -> Ledger:
    """Columns in order of time as a ledger of `count` numbers; rows behind the last arrival are left out.

    `arrivals` are those of all rows, where the timing is of the first turns alone.
    """
    first_turns = "" if arrivals is None else "first turns: "
    arrivals = timing.arrivals if arrivals is None else arrivals
    if arrivals[-1] > MOST_SPAN_NS:
        raise InputError(f"{name}: its last request would arrive later than {MOST_SPAN_NS // NS_PER_S:,} s")
    notes = [*notes, *timing.notes, f"{first_turns}{timing.origin}: {_span_text(timing.arrivals)}"]
    if (arrived := len(arrivals)) < len(numbers):
        numbers = numbers[:arrived]
        columns = {name: column[:arrived] for name, column in columns.items()}
    width = max(2, len(str(count)))
    rows = PlannedRows(numbers, width, {**columns, "arrival_ns": Column(arrivals)})
    return Ledger(name=name, rows=rows, notes=notes)


def _plan_turns(
    name: str,
    taken: Taken,
    turns: Turns,
    count: int,
    columns: dict[str, Column],
    pacing: Pacing,
    notes: list[str],
) -> Ledger:
    """The same where turns wait: the timing is of those that do not, and tells the earliest of the others."""
    timing = _timing(name, taken, pacing, turns.first)
    order, arrivals = turns.in_order(timing.arrivals)
    labels = list(taken["session"])
    turns.check(name, order, labels, taken["turn"])
    columns = {**columns, "think_ns": turns.thinks_ns}
    columns = {field: column.take(order) for field, column in columns.items()}
    numbers = taken["number"].take(order)
    return plan(name, numbers, count, columns, timing, [*notes, turns.note(labels, order)], arrivals)


def _timing(name: str, taken: Taken, pacing: Pacing, which: Column | None = None) -> Timing:
    """When rows of a trace, in order of time, arrive: all, or the ones at the places `which`."""
    rate = pacing.request_rate
    times = taken.times
    count = len(taken) if which is None else len(which)
    _check_times(name, taken, pacing)
    if pacing.process is not None:
        return draw_timing(pacing.process, count, pacing)
    if rate == "inf" or times is None:
        return at_once(count)
    if which is not None:
        times = times.take(which)
    if rate is None:
        return Timing(f"trace times at speed {float(pacing.speed):g}", replay(times, pacing.speed))
    return Timing("times stretched", stretch(times, rate))


def _check_times(name: str, taken: Taken, pacing: Pacing) -> None:
    """InputError if arrivals cannot be told from what a row has and what the pacing says."""
    rate = pacing.request_rate
    if pacing.stages is not None:
        return
    if rate is None and not taken["at"].empty:
        preset = " (or a --preset)" if name == TOY else ""
        raise InputError(
            f"{name}: at is a shape without a unit, so give a --request-rate or --stages{preset}"
        )
    if taken.times is None and pacing.arrival is None and rate != "inf":
        known = "|".join(PROCESSES)
        raise InputError(
            f"{name}: has no arrival times, so give --arrival {known} and --request-rate, or --stages"
        )


def _span_text(arrivals: Sequence[int]) -> str:
    """What really comes out: a draw has a rate of its own, and times without a span cannot be stretched."""
    span_s = arrivals[-1] / NS_PER_S
    if not span_s:
        return "all at once"
    return f"{(len(arrivals) - 1) / span_s:.4g} req/s over {span_s:.4g} s"
