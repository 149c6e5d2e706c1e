"""Ledgers that are made, of drawn lengths or by a recipe; with times as any ledger has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from ledgers.arrivals import Pacing
from ledgers.columns import Column, Table
from ledgers.errors import InputError
from ledgers.intake import Intake, no_request
from ledgers.ledger import Ledger
from ledgers.lengths import Mix
from ledgers.load import LENGTHS, plan, read_trace, trace_source
from ledgers.recipes import make_requests
from ledgers.settings import Hardware
from ledgers.timing import Timing, draw_timing

FIELDS = ("class_", *LENGTHS)


def draw_ledger(
    mix: Mix,
    num_prompts: int | None,
    process: str,
    pacing: Pacing,
    *,
    max_prompt: int | None = None,
    max_output: int | None = None,
) -> Ledger:
    """A ledger of drawn lengths, cut where there is a limit; None makes as many as the stages hold."""
    if num_prompts is None and pacing.stages is None:
        raise InputError("--num-prompts: is needed where no stages tell how many requests to make")
    timing = draw_timing(process, num_prompts, pacing)
    rows = (
        (name, _within(prompt, max_prompt), _within(output, max_output))
        for name, prompt, output in mix.draw(len(timing.arrivals), pacing.seed)
    )
    return _planned("made", rows, num_prompts, timing)


def recipe_ledger(name: str, num_prompts: int, seed: int, hardware: Hardware) -> Ledger:
    made = make_requests(name, num_prompts, seed, hardware)
    timing = Timing(f"recipe {name}, drawn from seed {seed}", Column(row.arrival_ns for row in made))
    return _planned(name, (row[1:] for row in made), num_prompts, timing)


@cache
def lengths_of(source: str) -> tuple[Sequence[int], Sequence[int]]:
    """The prompts and outputs of a trace, read once. InputError if it cannot be."""
    lengths = Table(LENGTHS)
    source = trace_source(source)
    with read_trace(source) as (_, records):
        intake = Intake(source, records, strict=False)
        for _, row in intake:
            lengths.append((row.prompt_tokens, row.output_tokens))
    if not len(lengths):
        raise no_request(source, intake.notes())
    return lengths["prompt_tokens"], lengths["output_tokens"]


def _within(tokens: int, most: int | None) -> int:
    return tokens if most is None else min(tokens, most)


def _planned(
    name: str, rows: Iterable[tuple[str | None, int, int]], count: int | None, timing: Timing
) -> Ledger:
    table = Table(FIELDS)
    for row in rows:
        table.append(row)
    numbers = range(1, len(table) + 1)
    columns = {field: table[field] for field in FIELDS}
    ledger = plan(name, numbers, count or len(table), columns, timing, [])
    ledger.made = True
    return ledger
