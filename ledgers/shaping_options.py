"""The flags that shape a ledger before its arrivals are set, for every command that takes a LEDGER."""

from __future__ import annotations

import click

from ledgers.options import Command, all_of, number
from ledgers.shaping import MOST_TIMES

_LIMITS = (
    click.option("--max-prompt", metavar="N", type=click.IntRange(1), help="Cut longer prompts to N tokens."),
    click.option("--max-output", metavar="N", type=click.IntRange(1), help="Cut longer outputs to N tokens."),
)

_SHAPING = (
    click.option(
        "--from",
        "from_s",
        metavar="SECONDS",
        callback=number(zero=True),
        default="0",
        help="Take the requests from so long after the trace's first one on.",
    ),
    click.option(
        "--until",
        "until_s",
        metavar="SECONDS",
        callback=number(),
        help="Take the requests before so long after the trace's first one.",
    ),
    click.option(
        "--class",
        "only_classes",
        metavar="NAME",
        multiple=True,
        help="Take the requests of this class; can be repeated.",
    ),
    click.option(
        "--skip",
        type=click.IntRange(0),
        metavar="N",
        default=0,
        help="Leave out the first N of these; --num-prompts counts from there.",
    ),
    click.option(
        "--keep",
        metavar="SHARE",
        callback=number(most=1),
        default="1",
        help="Keep each request with this probability, drawn by --seed; sessions whole.",
    ),
    click.option(
        "--times",
        type=click.IntRange(1, MOST_TIMES),
        metavar="K",
        default=1,
        help="Have each request K times, each copy a drawn time before the next request. Copies are sessions "
        "of their own and share no prefix.",
    ),
    click.option("--share-prefixes", is_flag=True, help="With --times: prefixes are the same in all copies."),
    click.option(
        "--scale-prompt", metavar="FACTOR", callback=number(), default="1", help="Scale prompt lengths."
    ),
    click.option(
        "--scale-output", metavar="FACTOR", callback=number(), default="1", help="Scale output lengths."
    ),
    *_LIMITS,
)


def shaping_options(command: Command) -> Command:
    """Adds what is done to a ledger, in the order in which it is done."""
    return all_of(_SHAPING)(command)


def limit_options(command: Command) -> Command:
    """Adds the largest lengths."""
    return all_of(_LIMITS)(command)
