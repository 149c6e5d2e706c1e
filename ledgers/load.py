"""From what a user names (toy, a file, or just lengths) to a planned ledger.

A file streams through its format, and no more rows are held than are asked for. What loading changes is said
in the ledger's notes.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from importlib.resources import files
from io import BufferedReader, BytesIO, FileIO
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from ledgers.arrivals import PROCESSES, Pacing, Rate, draw_arrivals, replay, stretch
from ledgers.errors import InputError
from ledgers.formats import HEAD_BYTES, choose_format
from ledgers.formats.fields import MOST_TOKENS, TraceRow, located, shown
from ledgers.ledger import Ledger
from ledgers.rows import RequestRow
from ledgers.units import NS_PER_S, ceil_div, to_ns

TOY = "toy"
MOST_SPAN_NS = 10**18  # 31 years; 64 bits hold nine times as much
Numbered = tuple[int, TraceRow]


def load_ledger(
    source: str,
    *,
    trace_format: str | None = None,
    request_rate: Rate | None = None,
    speed: Fraction = Fraction(1),
    num_prompts: int | None = None,
    arrival: str | None = None,
    burstiness: float = 1.0,
    seed: int = 0,
) -> Ledger:
    """The ledger of a trace file, or of `toy`.

    The first `num_prompts` rows in order of time are taken, then their times are stretched to `request_rate`
    (req/s), or divided by `speed`. An `arrival` process needs a rate, and replaces the times that a file may
    have. Rows of a trace that have no tokens are left out. Requests without an id are numbered in order of
    the file. InputError says what in the file, or in the arguments, cannot be used.
    """
    pacing = Pacing(request_rate, speed, arrival, burstiness, seed)
    with _opened(source) as file:
        intake = _Intake(source, choose_format(file, source, trace_format).read(file, source))
        numbered = _first_in_time(intake, num_prompts)
    notes = intake.notes() + _length_notes(numbered)
    if not numbered:
        raise InputError(": ".join([source, "no request in it", *notes]))
    if num_prompts is not None and num_prompts > len(numbered):
        notes.append(f"{num_prompts} requests asked for, the ledger has {len(numbered)}")
    name = TOY if source == TOY else Path(source).name
    return _plan(name, numbered, intake.count, pacing, notes)


def make_ledger(
    num_prompts: int,
    input_len: int,
    output_len: int,
    *,
    range_ratio: Fraction = Fraction(0),
    request_rate: Rate = "inf",
    arrival: str | None = None,
    burstiness: float = 1.0,
    seed: int = 0,
) -> Ledger:
    """A ledger of random lengths, each uniform in [len * (1 - ratio), len * (1 + ratio)] and at least 1.

    The bounds are rounded outwards, and arrivals are Poisson (with a burstiness: gamma), as in vLLM's
    benchmark.
    """
    if num_prompts < 1 or not 0 <= range_ratio <= 1:
        raise InputError("random lengths: at least 1 request, and a range ratio from 0 to 1")
    if not 1 <= min(input_len, output_len) <= max(input_len, output_len) <= MOST_TOKENS:
        raise InputError(f"random lengths: each must be from 1 to {MOST_TOKENS:,} tokens")
    pacing = Pacing(
        request_rate, arrival=arrival or _vllm_process(burstiness), burstiness=burstiness, seed=seed
    )
    random = Random(f"{seed}:lengths")
    traced = [
        TraceRow(
            line=number,
            prompt_tokens=_draw_length(random, input_len, range_ratio),
            output_tokens=_draw_length(random, output_len, range_ratio),
        )
        for number in range(1, num_prompts + 1)
    ]
    ledger = _plan("random", list(enumerate(traced, 1)), num_prompts, pacing, [])
    ledger.made = True
    return ledger


def cut_to_duration(ledger: Ledger, seconds: Fraction) -> Ledger:
    """The ledger without the requests that arrive `seconds` after t0 or later. InputError if none is left."""
    end_ns = to_ns(seconds)
    rows = [row for row in ledger.rows if (row.arrival_ns or 0) < end_ns]
    if not rows:
        raise InputError(f"{ledger.name}: no request arrives within {float(seconds):g} s")
    if len(rows) == len(ledger.rows):
        return ledger
    left_out = f"the last {len(ledger.rows) - len(rows)} of {len(ledger.rows)} requests left out"
    note = f"{left_out}: they arrive at {float(seconds):g} s or later"
    return Ledger(name=ledger.name, rows=rows, notes=[*ledger.notes, note], made=ledger.made)


def _vllm_process(burstiness: float) -> str:
    return "poisson" if burstiness == 1 else "gamma"


def _draw_length(random: Random, length: int, ratio: Fraction) -> int:
    low, high = math.floor(length * (1 - ratio)), math.ceil(length * (1 + ratio))
    return random.randint(max(1, low), high)


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
    return BufferedReader(_WholeReads(source), HEAD_BYTES)


class _WholeReads(FileIO):
    """Reads all that is asked for: a pipe gives a little at a time, but a head is peeked at once."""

    def readinto(self, buffer: Any) -> int:
        view, count = memoryview(buffer), 0
        while count < len(view) and (more := super().readinto(view[count:])):
            count += more
        return count


class _Intake:
    """Passes rows on as they stream by, numbered from 1; leaves out those without tokens.

    InputError if an id comes twice, or a row gives an id or a time and the one before does not.
    """

    def __init__(self, source: str, rows: Iterable[TraceRow]) -> None:
        self.count = 0
        self._source = source
        self._rows = rows
        self._skipped: Counter[str] = Counter()
        self._out_of_order = 0
        self._beyond = 0
        self._line_of_id: dict[str, int] = {}

    def __iter__(self) -> Iterator[Numbered]:
        before = None
        for row in self._rows:
            if not (row.prompt_tokens and row.output_tokens):
                self._skipped["output" if row.prompt_tokens else "prompt"] += 1
                continue
            self._check_id(row)
            if before is not None:
                self._check_alike(before, row)
                self._out_of_order += _time(row) < _time(before)
            before = row
            self.count += 1
            yield self.count, self._within_prompt(row)

    def notes(self) -> list[str]:
        notes = [f"{_rows(count)} without {kind} tokens left out" for kind, count in self._skipped.items()]
        if self._out_of_order:
            notes.append(f"{_rows(self._out_of_order)} out of time order (before the row above): sorted")
        if self._beyond:
            notes.append(
                f"{_rows(self._beyond)} with more hash_ids than the prompt has blocks: those left out"
            )
        return notes

    def _within_prompt(self, row: TraceRow) -> TraceRow:
        if row.hash_ids is None or row.block_tokens is None:
            return row
        blocks = ceil_div(row.prompt_tokens, row.block_tokens)
        if len(row.hash_ids) <= blocks:
            return row
        self._beyond += 1
        return msgspec.structs.replace(row, hash_ids=row.hash_ids[:blocks])

    def _check_id(self, row: TraceRow) -> None:
        if row.id is None:
            return
        first = self._line_of_id.setdefault(row.id, row.line)
        if first != row.line:
            raise located(self._source, row.line, f"id {shown(row.id)} is on line {first} already")

    def _check_alike(self, before: TraceRow, row: TraceRow) -> None:
        for field, had, has in (
            ("id", before.id, row.id),
            ("arrival_s", before.time_ns, row.time_ns),
            ("at", before.at, row.at),
        ):
            if (had is None) != (has is None):
                fault = "missing, but given" if has is None else "given, but missing"
                raise located(self._source, row.line, f"{field} is {fault} on line {before.line}")


def _length_notes(numbered: list[Numbered]) -> list[str]:
    count = sum(row.counted_otherwise for _, row in numbered)
    if not count:
        return []
    prompts = "1 prompt has" if count == 1 else f"{count} prompts have"
    return [f"{prompts} another length by the mock's own count (agree and simulate need that one)"]


def _rows(count: int) -> str:
    return f"{count} row{'s' * (count != 1)}"


def _time(row: TraceRow) -> int | Fraction:
    """What orders rows; rows without times keep the order of the file."""
    return row.time_ns if row.time_ns is not None else row.at or 0


def _first_in_time(intake: _Intake, num_prompts: int | None) -> list[Numbered]:
    def time_of(numbered: Numbered) -> int | Fraction:
        return _time(numbered[1])

    if num_prompts is None:
        return sorted(intake, key=time_of)
    return heapq.nsmallest(num_prompts, intake, key=time_of)


def _plan(name: str, numbered: list[Numbered], count: int, pacing: Pacing, notes: list[str]) -> Ledger:
    """Numbered rows in order of time as a ledger, with the arrivals that the pacing gives them."""
    origin, arrivals = _arrivals(name, [row for _, row in numbered], pacing)
    if arrivals[-1] > MOST_SPAN_NS:
        raise InputError(f"{name}: its last request would arrive later than {MOST_SPAN_NS // NS_PER_S:,} s")
    notes = [*notes, f"{origin}: {_span_text(arrivals)}"]
    width = max(2, len(str(count)))
    rows = [
        RequestRow(
            id=row.id or f"R{number:0{width}}",
            class_=row.class_,
            session=row.session,
            turn=row.turn,
            prompt_tokens=row.prompt_tokens,
            output_tokens=row.output_tokens,
            prompt=row.prompt,
            prefix=row.prefix,
            prefix_tokens=row.prefix_tokens,
            hash_ids=row.hash_ids,
            block_tokens=row.block_tokens,
            arrival_ns=arrival_ns,
        )
        for (number, row), arrival_ns in zip(numbered, arrivals, strict=True)
    ]
    return Ledger(name=name, rows=rows, notes=notes)


def _arrivals(name: str, rows: list[TraceRow], pacing: Pacing) -> tuple[str, list[int]]:
    """Where the arrivals come from, and the arrival of each row, in order of time: ns from the first."""
    rate = pacing.request_rate
    _check_times(name, rows[0], pacing)
    times = [_time(row) for row in rows]
    if rate is None:
        return f"trace times at speed {float(pacing.speed):g}", replay(times, pacing.speed)
    if rate == "inf":
        return "request rate inf", [0] * len(rows)
    if pacing.arrival is None:
        return "times stretched", stretch(times, rate)
    drawn = draw_arrivals(pacing.arrival, len(rows), rate, pacing.seed, pacing.burstiness)
    return f"{pacing.arrival} arrivals drawn from seed {pacing.seed}", drawn


def _check_times(name: str, row: TraceRow, pacing: Pacing) -> None:
    """InputError if arrivals cannot be told from what a row has and what the pacing says."""
    rate = pacing.request_rate
    if row.at is not None and rate is None:
        preset = " (or a --preset)" if name == TOY else ""
        raise InputError(f"{name}: at is a shape without a unit, so give a --request-rate{preset}")
    if row.at is None and row.time_ns is None and pacing.arrival is None and rate != "inf":
        known = "|".join(PROCESSES)
        raise InputError(f"{name}: has no arrival times, so give --arrival {known} and --request-rate")


def _span_text(arrivals: list[int]) -> str:
    """What really comes out: a draw has a rate of its own, and times without a span cannot be stretched."""
    span_s = arrivals[-1] / NS_PER_S
    if not span_s:
        return "all at once"
    return f"{(len(arrivals) - 1) / span_s:.4g} req/s over {span_s:.4g} s"
