"""The flags of `tokentick run` that say how to ask a server, and when requests leave and end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ledgers.options import Command, all_of, number
from loadgen.dialects import DIALECTS


def _limit(flag: str, text: str, **more: Any) -> Callable[[Command], Command]:
    """An option for how long a client waits."""
    return click.option(flag, callback=number(word="never"), metavar="SECONDS|never", help=text, **more)


_ASKING = (
    click.option(
        "--base-url", required=True, metavar="URL", help="The server, with or without /v1 at the end."
    ),
    click.option("--endpoint", metavar="PATH", help="Path to post to.  [default: that of --api]"),
    click.option(
        "--api", type=click.Choice(list(DIALECTS)), default="chat", show_default=True, help="How to ask."
    ),
    click.option("--model", help="Model to ask for.  [default: the first of /v1/models]"),
    click.option("--header", multiple=True, metavar="NAME=VALUE", help="Add a header to every request."),
    click.option(
        "--extra-body", metavar="JSON", help="Merge this object into every body; null removes a field."
    ),
    click.option("--api-key-file", metavar="FILE", help="Read the API key here, not from OPENAI_API_KEY."),
    click.option("--insecure", is_flag=True, help="Do not verify the certificate of an https server."),
    click.option(
        "--ca-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Trust the certificate authorities in this file instead of the system's.",
    ),
    click.option(
        "--ignore-eos/--no-ignore-eos",
        default=None,
        help="Ask for the full output length.  [default: where the preflight finds that the server takes it]",
    ),
    click.option(
        "--tokenizer",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="A tokenizer.json: for prompts of exact length, and to count outputs that come without usage.",
    ),
    click.option("--prompt-ids", is_flag=True, help="Send prompts as token ids (completions)."),
)

_PACING = (
    click.option(
        "--max-concurrency",
        type=click.IntRange(1),
        metavar="N",
        help="At most N in flight. Without a rate: a closed loop, a request leaves when another ends.",
    ),
    click.option(
        "--duration",
        callback=number(),
        metavar="SECONDS",
        help="Send nothing later than this.",
    ),
    click.option(
        "--connections",
        type=click.IntRange(0),
        default=0,
        metavar="N",
        help="Open N connections before t0.  [default: as many as the ledger needs at once]",
    ),
    click.option(
        "--workers",
        type=click.IntRange(1, 64),
        metavar="N",
        help="Send from N processes, without a cap.  [default: as many as the load needs, at most the cores]",
    ),
    click.option(
        "--connect-timeout",
        callback=number(),
        default="30",
        show_default=True,
        metavar="SECONDS",
        help="For a connection to open, and for an answer in the preflight.",
    ),
    _limit("--first-token-timeout", "From the send to the first token.  [default: never]"),
    _limit("--stall-timeout", "From one token to the next.", default="300", show_default=True),
    _limit("--request-timeout", "From the send to the end.  [default: never]"),
    click.option(
        "--cancel-rate",
        callback=number(zero=True, most=1),
        metavar="SHARE",
        help="Share of the clients that give up, with --cancel-after.  [default: all]",
    ),
    click.option(
        "--cancel-after",
        callback=number(),
        metavar="SECONDS",
        help="Clients give up this long after the send.",
    ),
    click.option(
        "--client-retries",
        type=click.IntRange(0),
        default=0,
        metavar="N",
        help="Clients try again up to N times, as SDKs do. Each attempt is a row.",
    ),
    click.option(
        "--num-warmups",
        type=click.IntRange(0),
        default=0,
        help="Send N requests first, one by one, unrecorded.",
    ),
    click.option("--reset-mock", is_flag=True, help="Have a tokentick server start over before t0."),
    click.option("--no-preflight", is_flag=True, help="Do not look at the server first."),
)


_SCRAPING = (
    click.option(
        "--scrape",
        is_flag=False,
        flag_value="auto",
        metavar="[URL]",
        help="Sample the server's Prometheus metrics beside the run; without a URL its own /metrics.",
    ),
    click.option(
        "--scrape-interval",
        callback=number(),
        metavar="SECONDS",
        help="How often, with --scrape.  [default: 1]",
    ),
)


def scraping_options(command: Command) -> Command:
    """Adds what is asked of the server beside the requests."""
    return all_of(_SCRAPING)(command)


def asking_options(command: Command) -> Command:
    """Adds where requests go, and what they say."""
    return all_of(_ASKING)(command)


def pacing_options(command: Command) -> Command:
    """Adds what holds requests back, what ends them, and what comes before the first."""
    return all_of(_PACING)(command)
