"""The flags of the mock server's commands: how to serve, which faults to make, and what to keep of it."""

from __future__ import annotations

from pathlib import Path

import click

from ledgers.options import Command, all_of, number

_SERVING = (
    click.option(
        "--default-max-tokens",
        type=click.IntRange(1),
        default=16,
        show_default=True,
        help="Output of requests that set no limit.",
    ),
    click.option(
        "--reasoning-tokens",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="How many output tokens of a chat, from the first on, come as reasoning.",
    ),
    click.option(
        "--tokens-per-chunk",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="Tokens in an event, which is sent with the last of them.",
    ),
    click.option(
        "--role-chunk",
        type=click.Choice(["early", "with-first-token"]),
        default="with-first-token",
        show_default=True,
        help="Whether a chat's role comes alone, with the headers.",
    ),
    click.option(
        "--api-key-file",
        type=click.Path(path_type=Path),
        help="Keys that are let in, one per line; without it, everybody is.",
    ),
    click.option(
        "--grace",
        metavar="SECONDS",
        callback=number(zero=True),
        default="5",
        show_default=True,
        help="How long open streams may go on when the server is stopped.",
    ),
    click.option(
        "--request-timeout",
        metavar="SECONDS",
        callback=number(),
        default="30",
        show_default=True,
        help="How long a request may take to arrive whole.",
    ),
    click.option(
        "--keep-alive",
        metavar="SECONDS",
        callback=number(),
        default="75",
        show_default=True,
        help="How long a connection may be open without a request.",
    ),
    click.option(
        "--max-connections",
        type=click.IntRange(1),
        default=16_384,
        show_default=True,
        help="Connections open at a time; further ones get a 503.",
    ),
    click.option(
        "--strict",
        metavar="MS",
        callback=number(zero=True),
        help="End with exit code 4 when a tick runs later than this.",
    ),
)

_FAULTS = (
    click.option(
        "--fault",
        metavar="FAULT[@P]",
        multiple=True,
        help="A fault for this share of the requests, such as cut:after=5@0.01.",
    ),
    click.option(
        "--fault-seed", type=int, default=0, show_default=True, help="Seed of the draws of --fault."
    ),
    click.option(
        "--fault-plan",
        type=click.Path(path_type=Path),
        help="JSONL or CSV: request_id or number, and the fault it gets.",
    ),
    click.option(
        "--script",
        type=click.Path(path_type=Path),
        multiple=True,
        help="File or directory of raw byte scripts, for faults script:NAME.",
    ),
)

_RECORDING = (
    click.option("--record-tokens", is_flag=True, help="Keep the time of every token."),
    click.option("--record-events", is_flag=True, help="Keep the events of each tick as well."),
    click.option(
        "--ticks", type=click.Choice(["all", "none"]), default="all", help="Keep a row per tick, or none."
    ),
)


def serving_options(command: Command) -> Command:
    """Adds how answers look, who is let in, and how long what may take."""
    return all_of(_SERVING)(command)


def fault_options(command: Command) -> Command:
    """Adds which requests get which fault."""
    return all_of(_FAULTS)(command)


def recording_options(command: Command) -> Command:
    """Adds what is kept besides the rows of requests."""
    return all_of(_RECORDING)(command)
