"""`tokentick trace convert` and `tokentick trace make`: ledgers shaped or made, and saved as native."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from textwrap import fill
from typing import Any

import click
from click.core import ParameterSource

from ledgers.arrivals import Pacing, usual_process
from ledgers.errors import InputError
from ledgers.formats.fields import MOST_TOKENS
from ledgers.formats.native import jsonl
from ledgers.ledger import Ledger
from ledgers.lengths import MOST_SIGMA, Class, Mix, parse_class, parse_pair
from ledgers.making import draw_ledger, lengths_of, recipe_ledger
from ledgers.options import Options, arrival_options, ledger_from, ledger_options
from ledgers.printable import one_line
from ledgers.recipes import RECIPES
from ledgers.saving import check_stdout, check_target, lost_in_csv, save_ledger
from ledgers.settings import HARDWARE, load_hardware
from ledgers.shaping_options import limit_options, shaping_options

STDOUT = "-"
LIST = "list"
FORCE = click.option("--force", is_flag=True, help="Replace OUT if it exists.")


@click.command(
    short_help="Save a ledger, shaped as you like.",
    epilog="Example: tokentick trace convert azure.csv hour.jsonl --from 600 --until 1200 --keep 0.1",
)
@ledger_options
@click.argument("out")
@shaping_options
@click.option("--strict", is_flag=True, help="Refuse LEDGER if any record of it would be left out.")
@FORCE
def convert(**options: Any) -> None:
    """Read LEDGER, shape it, and save it in the native format as OUT.jsonl, OUT.csv, or - for JSONL.

    In this order, however the flags are: --from and --until, --class, --skip and --num-prompts, --keep,
    --times, --scale-prompt and --scale-output, --max-prompt and --max-output; then the arrivals: --speed,
    --request-rate, --arrival, --stages. Each works on what those before it left. Reading OUT gives the same
    requests at the same times.
    """
    _check_out(options)
    _save(options["out"], ledger_from(options))


@click.command(
    short_help="Make a ledger of drawn lengths, or by a recipe.",
    epilog="Example: tokentick trace make mix.jsonl --num-prompts 1000 --request-rate 20 "
    "--mix short=0.8,uniform:50-200,40 --mix long=0.2,lognormal:2000:0.8,uniform:200-800",
)
@click.argument("out", required=False)
@click.option(
    "--prompt-len",
    metavar="LENGTHS",
    help="N, uniform:LEAST-MOST, lognormal:MEDIAN:SIGMA, or empirical:TRACE, any prompt of a trace. Lengths "
    f"are from 1 to {MOST_TOKENS:,} tokens, SIGMA from 0 to {MOST_SIGMA}.",
)
@click.option(
    "--output-len",
    metavar="LENGTHS",
    help="Likewise. Without it, or with the same empirical:TRACE, outputs come with their prompts.",
)
@click.option(
    "--mix",
    metavar="NAME=SHARE,PROMPT,OUTPUT",
    multiple=True,
    help="A class of requests with lengths of its own, as often as its share of all shares says; repeat it.",
)
@arrival_options
@limit_options
@click.option(
    "--recipe",
    metavar="NAME|list",
    type=click.Choice([*RECIPES, LIST]),
    help=f"Edge traffic for --hardware: {', '.join(RECIPES)}; list tells what each provokes.",
)
@click.option(
    "--hardware",
    metavar="NAME|FILE",
    default="toy",
    show_default=True,
    help=f"The machine that a recipe is for: {', '.join(HARDWARE)}, or a TOML file.",
)
@FORCE
def make(**options: Any) -> None:
    """Make a ledger and save it in the native format as OUT.jsonl, OUT.csv, or - for JSONL.

    Lengths are drawn from --prompt-len and --output-len or from a --mix of classes, arrivals as for any
    ledger (all at once without a rate or stages); or a --recipe brings both. The same command makes the same
    ledger on any machine.
    """
    if options["recipe"] == LIST:
        for name, recipe in RECIPES.items():
            click.echo(fill(recipe.provokes, 80, initial_indent=f"{name:15}", subsequent_indent=" " * 15))
        return
    _check_out(options)
    _save(options["out"], _by_recipe(options) if options["recipe"] else _drawn(options))


def _by_recipe(options: Options) -> Ledger:
    _check_not_given(options["recipe"])
    name, hardware = options["recipe"], load_hardware(options["hardware"])
    if options["num_prompts"] is None:
        raise InputError(f"--num-prompts: is needed with --recipe {name}")
    ledger = recipe_ledger(name, options["num_prompts"], options["seed"], hardware)
    if flags := RECIPES[name].flags:
        ledger.notes.append(f"goes with: tokentick run {options['out']} {flags(hardware)}")
    return ledger


def _check_not_given(recipe: str) -> None:
    """A recipe has lengths and arrivals of its own."""
    context = click.get_current_context()
    taken = ("out", "num_prompts", "seed", "recipe", "hardware", "force")
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in taken and context.get_parameter_source(name) == ParameterSource.COMMANDLINE:
            raise InputError(f"{parameter.opts[0]}: means nothing beside --recipe {recipe}")


def _drawn(options: Options) -> Ledger:
    if click.get_current_context().get_parameter_source("hardware") == ParameterSource.COMMANDLINE:
        raise InputError("--hardware: means nothing without --recipe")
    arrival, rate = options["arrival"], options["request_rate"]
    if arrival is None and rate is None and options["stages"] is None:
        rate = "inf"
    process = arrival or usual_process(options["burstiness"])
    named = None if rate == "inf" and arrival is None else process
    pacing = Pacing(
        rate,
        arrival=named,
        burstiness=options["burstiness"],
        seed=options["seed"],
        stages=options["stages"],
    )
    return draw_ledger(
        Mix(_classes(options)),
        options["num_prompts"],
        process,
        pacing,
        max_prompt=options["max_prompt"],
        max_output=options["max_output"],
    )


def _classes(options: Options) -> Sequence[Class]:
    prompt, output = options["prompt_len"], options["output_len"]
    if options["mix"]:
        if prompt or output:
            raise InputError(
                "--mix: says the lengths of its classes, so --prompt-len and --output-len do not"
            )
        classes = [parse_class(text, lengths_of) for text in options["mix"]]
        names = [each.name for each in classes]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InputError(f"--mix: class {twice} is there twice")
        return classes
    if prompt is None:
        raise InputError("no lengths: give --prompt-len and --output-len, or --mix, or --recipe")
    return [Class(None, Fraction(1), parse_pair(prompt, output, lengths_of, "--prompt-len", "--output-len"))]


def _check_out(options: Options) -> None:
    if options["out"] is None:
        raise InputError("no OUT: name a file .jsonl or .csv, or - for JSONL on standard output")
    if options["out"] == STDOUT:
        check_stdout()
    else:
        check_target(options["out"], force=options["force"])


def _save(out: str, ledger: Ledger) -> None:
    """To the file, or to standard output; what was done goes to stderr."""
    notes = list(ledger.notes)
    if out == STDOUT:
        sys.stdout.buffer.writelines(jsonl(ledger.rows))
    else:
        save_ledger(Path(out), ledger.rows)
        notes += lost_in_csv(ledger.rows) if out.endswith(".csv") else []
    for note in notes:
        click.echo(one_line(f"note: {note}"), err=True)
    count = len(ledger.rows)
    click.echo(one_line(f"{out}: {count} request{'s' * (count != 1)}"), err=True)
