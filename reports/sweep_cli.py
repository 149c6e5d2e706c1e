"""The command `tokentick sweep`: a grid of settings over offered load, or with --find the highest rate."""

from __future__ import annotations

import shlex
import signal
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ledgers.errors import InputError
from ledgers.formats.fields import shown
from ledgers.html_file import check_html, html_option, save_page
from ledgers.options import ledger_options, scheduler_options, window_from, window_options
from ledgers.plain import plain_option
from ledgers.requirements import Requirement, parse_requirement
from ledgers.rows import encode
from ledgers.rundir import default_path
from ledgers.telling import teller
from ledgers.units import exact
from mock_server.policies import POLICIES
from reports.forms import SILENT, Form, form_option, print_form
from reports.grid import AUTO, AXES, names, numbers, points, settings
from reports.points import Server
from reports.pool import cores
from reports.sweep import Sweep, curves, draws, found_rates, identity, run_sweep
from reports.sweep_dir import SweepDirectory
from reports.sweep_markdown import sweep_markdown
from reports.sweep_text import sweep_text

INTERRUPTED = 130
MOST_POINTS = 1_000_000
LISTED = {
    "request_rate": ("LIST|auto", numbers(words=(AUTO,)), "Rates to offer (req/s): 1,2,4:16:2, or auto."),
    "policy": ("LIST|all", names([*POLICIES]), "Policies, with commas between them."),
    "max_batch": ("LIST", numbers(whole=True), "Most requests in a prefill batch.  [default: 4]"),
    "max_wait": ("LIST", numbers(zero=True), "Longest waits for a batch to fill, in s.  [default: 0.2]"),
    "hardware": ("LIST", names(), "Modelled machines: names or TOML files."),
}
"""The shared flags of which a sweep takes several values: what they look like, how they are read."""
OF_ONE_RUN = ("warmup", "cooldown")
SERVERS_OWN = (*AXES, "prefill_chunk", "classes", "max_queue", "max_model_len", "tick")

EXAMPLE = """
\b
Examples:
  tokentick sweep toy --request-rate 1:16:1 --policy all
  tokentick sweep --num-prompts 2000 --random-input-len 20 --random-output-len 5
    --find --require 'ttft.p95<=800'
"""


def listed(command: click.Command) -> click.Command:
    """Has the shared flags read lists, and does not offer what a sweep refuses."""
    for param in command.params:
        if param.name in LISTED and isinstance(param, click.Option):
            param.type = click.STRING
            param.metavar, param.callback, param.help = LISTED[param.name]
        if param.name in OF_ONE_RUN and isinstance(param, click.Option):
            param.hidden = True
    return command


def _require(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> list[Requirement]:
    return [parse_requirement(value) for value in values]


def _share(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """A share as 0.02 or 2%."""
    percent = value.strip().endswith("%")
    try:
        share = float(exact(value.strip().removesuffix("%"))) / (100 if percent else 1)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise click.BadParameter(f"{shown(value)} is not a share between 0 and 1, as 0.02 or 2%", ctx, param)
    return share


@click.command(short_help="A ledger over rates and settings.", epilog=EXAMPLE)
@ledger_options
@scheduler_options([*POLICIES, "all"])
@window_options
@click.option("--repeats", type=click.IntRange(1, 10_000), default=1, show_default=True, metavar="N")
@click.option("--base-url", metavar="URL", help="Measure this server, one point at a time.")
@click.option("--mock", is_flag=True, help="Measure a mock server of each setting on the real clock.")
@click.option("--run-options", metavar="WORDS", help="More flags for tokentick run, as one quoted text.")
@click.option(
    "--jobs", type=click.IntRange(1, 256), metavar="N", help="Simulate in N processes.  [default: all cores]"
)
@click.option("--find", is_flag=True, help="Find the highest rate at which every --require is met.")
@click.option(
    "--require",
    multiple=True,
    callback=_require,
    metavar="REQUIREMENT",
    help="With --find: as in 'class=short e2e.p95<=1500' (ms) or 'attainment>=0.99'.",
)
@click.option(
    "--resolution",
    callback=_share,
    default="5%",
    show_default=True,
    metavar="SHARE",
    help="With --find: stop when the rate is known this well.",
)
@click.option(
    "--confidence",
    callback=_share,
    default="95%",
    show_default=True,
    metavar="SHARE",
    help="With --find: of each verdict, over all looks at it.",
)
@click.option(
    "--max-requests",
    type=click.IntRange(1),
    metavar="N",
    help="With --find: judge a rate by at most so many requests.  [default: 200,000; measured 20,000]",
)
@click.option("--keep-runs", is_flag=True, help="Leave the run directory of each point below runs/ of --out.")
@form_option()
@click.option("--out", type=click.Path(path_type=Path), help="Directory to make, or to go on with.")
@html_option("the curves, or the answer,")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@plain_option()
def sweep(**options: Any) -> int:
    """Run LEDGER over rates and settings, and say where throughput, goodput and tails bend.

    Simulates, or measures with --base-url or --mock. Lists are 1,2,4 or ranges as 4:16:2. Each repeat has a
    seed of its own. The same command with the same --out goes on where it was stopped.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the processes in order, as Ctrl-C does
    tell = teller(silent=options["form"] in SILENT, plain=options["plain"])
    server = _server(options)
    axes = _axes(options)
    _check_ledger(options)
    _check_trim(options)
    _check_find(options)
    check_html(options["html"], made=options["out"])
    if options["find"]:
        from reports.find_cli import find

        return find(options, axes, server, tell)
    wanted = _sweep(options, axes, server)
    directory = SweepDirectory(
        options["out"] or default_path("sweep", wanted.options["ledger"] or "made"), identity(wanted)
    )
    try:
        run_sweep(wanted, directory, tell)
    except KeyboardInterrupt:
        done = f"{len(directory.done)} of {len(wanted.points)} points"
        tell(f"interrupted: {done} are in {directory.path}; the same command with --out goes on behind them")
        return INTERRUPTED
    finally:
        directory.close()
    tell.clear()
    _show(wanted, directory, options)
    limited = any(record.get("client_limited") for record in directory.done)
    return 4 if limited else 0


def _show(wanted: Sweep, directory: SweepDirectory, options: dict[str, Any]) -> None:
    found = curves(wanted, directory.done)
    directory.keep_curves(found)
    slo_given = window_from(wanted.options).slo.given
    forms: dict[str, Form] = {
        "text": lambda: sweep_text(found, slo_given, directory.path),
        "markdown": lambda: sweep_markdown(found, slo_given, directory.path),
        "json": lambda: encode({"path": str(directory.path), **directory.settings, "curves": found}),
        "quiet": tuple,
    }
    print_form(forms, options["form"], html=options["html"], plain=options["plain"])
    if options["html"]:
        from reports.sweep_page import sweep_page

        save_page(options["html"], sweep_page(directory.settings, found))


def _sweep(options: dict[str, Any], axes: dict[str, list[Any]], server: Server | None) -> Sweep:
    grid = settings(axes)
    rates = options["request_rate"]
    base = {**options, "request_rate": None}
    if rates == AUTO:
        rates = found_rates(base, grid)
    if options["repeats"] > 1 and server is None and not draws(base, (rates or [None])[0]):
        raise InputError(
            f"--repeats {options['repeats']}: every repeat would be the same, for nothing in this ledger is "
            "drawn (--arrival poisson draws when requests come)"
        )
    found: list[Fraction | None] = rates or [None]
    if (count := len(found) * len(grid) * options["repeats"]) > MOST_POINTS:
        raise InputError(f"a sweep of {count:,} points; at most {MOST_POINTS:,}")
    return Sweep(
        options=base,
        axes=axes,
        settings=grid,
        rates=found,
        points=points(found, options["repeats"], options["seed"], len(grid)),
        repeats=options["repeats"],
        server=server,
        jobs=options["jobs"] or cores(),
        keep_runs=options["keep_runs"],
    )


def _axes(options: dict[str, Any]) -> dict[str, list[Any]]:
    """The values of each axis; where none is given, the usual one."""
    policies = options["policy"]
    if policies == ["all"]:
        policies = [policy for policy in POLICIES if policy != "classes" or options["classes"]]
    given = {**options, "policy": policies}
    return {name: given[name] if given[name] is not None else [None] for name in AXES}


def _server(options: dict[str, Any]) -> Server | None:
    """What is measured, if it is not simulated."""
    if not (options["base_url"] or options["mock"]):
        if options["run_options"]:
            raise InputError("--run-options: belong to tokentick run, so they need --base-url or --mock")
        return None
    if options["base_url"] and options["mock"]:
        raise InputError("--mock: means nothing beside --base-url")
    if options["jobs"]:
        raise InputError("--jobs: means nothing where points are measured, one at a time")
    if options["base_url"]:
        _refuse_settings()
        if options["request_rate"] == AUTO or (options["find"] and not options["request_rate"]):
            raise InputError("--request-rate: nobody knows what this server can do, so say the rates")
    try:
        return Server(options["base_url"], shlex.split(options["run_options"] or ""))
    except ValueError as error:
        raise InputError(f"--run-options: {error}") from None


def _refuse_settings() -> None:
    context = click.get_current_context()
    for name in SERVERS_OWN:
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            flag = "--" + name.replace("_", "-")
            raise InputError(f"{flag}: is the server's own, which --base-url cannot set (--mock can)")


def _check_ledger(options: dict[str, Any]) -> None:
    source = options["ledger"]
    if source not in (None, "toy") and Path(source).exists() and not Path(source).is_file():
        raise InputError(f"{source}: is read for each rate, so it must be a file")


def _check_trim(options: dict[str, Any]) -> None:
    """InputError for what only some figures of a sweep would be without."""
    for name in OF_ONE_RUN:
        if options[name] is not None:
            raise InputError(f"--{name}: is for the figures of one run (simulate, run, report), no sweep's")


def _check_run_options(options: dict[str, Any]) -> None:
    """InputError for what a search would not heed."""
    for word in (options["run_options"] or "").split():
        flag = word.split("=")[0]
        if flag in (f"--{name}" for name in OF_ONE_RUN):
            raise InputError(f"--run-options {flag}: means nothing with --find, which judges all requests")


def _check_find(options: dict[str, Any]) -> None:
    """InputError for flags of a search without one."""
    if options["find"]:
        _check_run_options(options)
        return
    context = click.get_current_context()
    for name in ("require", "resolution", "confidence", "max_requests"):
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise InputError(f"--{name.replace('_', '-')}: belongs to --find")


listed(sweep)
