"""`tokentick trace`: look at traces, shape them, make ledgers."""

from __future__ import annotations

import click

from ledgers.shape_cli import convert, make


@click.group(short_help="Shape traces, make ledgers.")
def trace() -> None:
    """Turn traces into the ledgers that are wanted, or make some."""


trace.add_command(convert)
trace.add_command(make)
