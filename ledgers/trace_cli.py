"""`tokentick trace`: look at traces before anything is sent, shape them, make ledgers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from msgspec.structs import asdict

from ledgers.demand import demand
from ledgers.describer import Describer
from ledgers.description import Description
from ledgers.description_text import description_text
from ledgers.errors import InputError
from ledgers.formats import FORMATS
from ledgers.formats.mapped import Columns
from ledgers.intake import Intake
from ledgers.load import TOY, read_trace, trace_source
from ledgers.options import columns_option, number
from ledgers.printable import printable
from ledgers.rows import encode
from ledgers.saving import check_stdout
from ledgers.settings import HARDWARE, load_hardware
from ledgers.shape_cli import convert, make


@click.group(short_help="Look at traces, shape them, make ledgers.")
def trace() -> None:
    """Look at the traces that ledgers are made of, shape them, or make ledgers."""


trace.add_command(convert)
trace.add_command(make)


@trace.command(
    short_help="What is in a trace?", epilog="Example: tokentick trace describe trace.csv --hardware medium"
)
@click.argument("file")
@click.option(
    "--trace-format", type=click.Choice(list(FORMATS)), help="Read FILE in this format (else: detected)."
)
@columns_option
@click.option("--strict", is_flag=True, help="Refuse FILE at the first record that is no request.")
@click.option(
    "--hardware",
    metavar="NAME|FILE",
    help=f"Tell the load on this machine: {', '.join(HARDWARE)}, or a TOML file.",
)
@click.option(
    "--tick", metavar="SECONDS", callback=number(), help="Length of a tick, in place of the hardware's."
)
@click.option("--plain", is_flag=True, help="Draw with ASCII alone, as where the terminal has no UTF-8.")
@click.option("--json", "as_json", is_flag=True, help="Print the description as one JSON object.")
def describe(file: str, **options: Any) -> int:
    """Describe FILE: lengths, rate over time, sessions, shared prompts, and what was left out.

    FILE is toy, a trace in any format that is known, or - for standard input; nothing is sent. Times are
    exact, and rows out of order, a clock that was set back, and records that are no requests are counted and
    said.
    """
    check_stdout()
    if options["tick"] is not None and options["hardware"] is None:
        raise InputError("--tick: needs --hardware")
    tick_s = None if options["tick"] is None else float(options["tick"])
    hardware = None if options["hardware"] is None else load_hardware(options["hardware"], tick_s)
    how = options["trace_format"], options["columns"]
    found, described = describe_trace(file, *how, strict=options["strict"])
    asked = None if hardware is None else demand(described, hardware)
    if options["as_json"]:
        click.echo(encode(found if hardware is None else {**asdict(found), "hardware": asked}))
    else:
        plain = options["plain"] or "utf" not in (sys.stdout.encoding or "").lower()
        name = TOY if file == TOY else Path(file).name
        click.echo(printable(description_text(name, found, described, asked, plain=plain)))
    return 0 if found.requests else InputError.exit_code  # as where such a trace is loaded


def describe_trace(
    source: str, trace_format: str | None = None, columns: Columns | None = None, *, strict: bool = False
) -> tuple[Description, Describer]:
    """The figures of a trace, and what they are drawn from.

    InputError if it cannot be read as a ledger or, if `strict`, has a record that is no request.
    """
    source = trace_source(source)
    with read_trace(source, trace_format, columns) as (name, records):
        intake = Intake(source, records, strict)
        trace = Describer()
        for _, row in intake:
            trace.add(row)
    trace.finish()
    return trace.description(name, intake), trace
