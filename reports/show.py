"""How runs are shown: by the front door when a command has made one, and again by `tokentick report`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from ledgers.errors import InputError
from ledgers.options import cooldown_from, trim_options, warmup_from
from ledgers.printable import printable
from ledgers.required import exit_code, require_option, unproven, verdicts
from ledgers.requirements import Judged, parse_requirement
from ledgers.rows import encode
from ledgers.rundir import Finished, Run
from ledgers.summary import save_summary, summarize
from reports.certainty_text import certainty
from reports.forms import DETAILED, FORMS, Shown, lines
from reports.required_text import required_text
from reports.server_text import server_text
from reports.tables import WIDTH, is_plain, plain_text, plainly
from reports.text import request_labels, run_text, tick_lines

ROWS_SHOWN = 20
Command = TypeVar("Command", bound=Callable[..., Any])
_STDOUT, _STDERR = 1, 2


def form_options(what: str, more: Sequence[str] = ()) -> Callable[[Command], Command]:
    """`--format`, whose forms are `what`, and `--json`."""
    forms = click.Choice(["text", "markdown", "json", *more])
    form = click.option("--format", "form", type=forms, default="text", show_default=True, help=what)
    as_json = click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
    return lambda command: form(as_json(command))


@click.command(
    short_help="Look at runs again.", epilog="Example: tokentick report runs/demo/continuous/served --ticks"
)
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--ticks", is_flag=True, help="Print the state after each tick, with its events if recorded.")
@form_options("csv: a row per run; vllm: the result JSON of vllm bench serve, a line per run.", DETAILED)
@click.option("--detailed", is_flag=True, help="With csv a row per request; with vllm arrays of them.")
@plain_text
@require_option
@click.option("--diagnose", is_flag=True, help="Print what stands out, and why (docs/diagnosis.md).")
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="With --diagnose: a baseline, for what went up and what did not.",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write the run as a page with charts (docs/html.md); - is stdout, and nothing else then.",
)
@trim_options
def report(
    runs: tuple[Path, ...],
    ticks: bool,
    form: str,
    as_json: bool,
    detailed: bool,
    diagnose: bool,
    against: Path | None,
    require: Sequence[str],
    html: Path | None,
    **cut: Any,
) -> int:
    """Rebuild the summary of run directories, whole or cut short, and print it.

    With --warmup or --cooldown the figures are printed as they would be with these, and no file is changed.
    With --require the exit code is 1 if a run misses any of it.
    """
    _check_form(form, ticks, diagnose, detailed)
    required = [parse_requirement(word) for word in require]
    if html and (diagnose or ticks or len(runs) > 1):
        raise InputError(_HTML_OF_ONE)
    if required and (diagnose or ticks):
        raise InputError("--require: goes without --diagnose and --ticks")
    if diagnose and not ticks:
        from reports.diagnose import diagnoses

        click.echo(diagnoses(runs, against, "json" if as_json else form))
        return 0
    if diagnose or (against and not html):
        raise InputError(_DIAGNOSE_ALONE)
    if ticks and (as_json or form == "json"):
        raise InputError("--ticks prints a table: ticks.jsonl has the same as JSON")
    if ticks:
        for path in runs:
            _print_ticks(Run(path))
        return 0
    if html and not required and not (runs[0] / "run.json").exists():
        from reports.directory_page import save_directory_page

        if save_directory_page(html, runs[0]):
            return 0
    opened = [Run(path) for path in runs]
    summaries = [_summary(run, cut) for run in opened]
    judged = [verdicts(run, summary, required) for run, summary in zip(opened, summaries, strict=True)]
    if html:
        from reports.run_page import save_run_page

        text = _run_text(opened[0], summaries[0], judged[0])
        save_run_page(html, opened[0], summaries[0], text, against)
    if str(html) == STDOUT:
        pass  # the page is what was asked for
    elif as_json or form == "json":
        each = {
            str(path): _with_verdicts(summary, found)
            for path, summary, found in zip(runs, summaries, judged, strict=True)
        }
        click.echo(encode(each if len(runs) > 1 else each[str(runs[0])]))
    elif form in FORMS:
        for line in lines(form, list(map(Shown, opened, summaries, judged)), detailed=detailed):
            click.echo(line.encode())
    else:
        for text in [_run_text(*one) for one in zip(opened, summaries, judged, strict=True)]:
            say(text)
    return max((exit_code(*pair) for pair in zip(summaries, judged, strict=True)), default=0)


def _check_form(form: str, ticks: bool, diagnose: bool, detailed: bool) -> None:
    """InputError for flags that mean nothing beside one another."""
    if ticks and diagnose:
        raise InputError("--ticks: goes without --diagnose")
    if detailed and form not in DETAILED:
        raise InputError(f"--detailed: belongs to --format {' and '.join(DETAILED)}")
    if form in FORMS and ticks:
        raise InputError(
            f"--format {form}: goes without --ticks, which prints a table (ticks.jsonl has JSON)"
        )
    if form in DETAILED and diagnose:
        raise InputError(f"--format {form}: goes without --diagnose")


def _with_verdicts(summary: dict[str, Any], judged: Sequence[Judged]) -> dict[str, Any]:
    """`requirements` stands beside the summary, where there are any; never in its file."""
    return {**summary, "requirements": judged} if judged else summary


STDOUT = "-"
_HTML_OF_ONE = (
    "--html: a page is of one run, and has its diagnosis; without --ticks and --diagnose. "
    "tokentick compare puts several beside each other"
)
_DIAGNOSE_ALONE = "--against: belongs to --diagnose and --html"


def _summary(run: Run, cut: dict[str, Any]) -> dict[str, Any]:
    """As the files have it, or as the flags have it, which is to be looked at only."""
    if cut["warmup"] is None and cut["cooldown"] is None:
        return refreshed_summary(run)
    config = run.info.config
    config.warmup_s = warmup_from(cut) if cut["warmup"] is not None else config.warmup_s
    config.cooldown_s = cooldown_from(cut) if cut["cooldown"] is not None else config.cooldown_s
    return summarize(run)


def _print_ticks(run: Run) -> None:
    if not (run.path / "ticks.jsonl").exists():
        raise InputError(f"{run.path}: has no ticks.jsonl: a measured run has no ticks, others may keep none")
    labels = request_labels(run.rows())
    for line in tick_lines(run.ticks(), labels):
        say(line)


def refreshed_summary(run: Run) -> dict[str, Any]:
    """The summary, built anew; `summary.json` is put right where that is missing or not the same."""
    summary = summarize(run)
    with suppress(InputError):  # a directory that is read only can be looked at
        save_summary(run.path, summary)
    return summary


def show(finished: Finished) -> int:
    """What the front door prints of a run that a command has made; the exit code."""
    with plainly(finished.plain):
        return _show(finished)


def _show(finished: Finished) -> int:
    summary, run = read_summary(finished.path), Run(finished.path)
    judged = verdicts(run, summary, finished.required)
    if finished.as_json:
        click.echo(encode(_with_verdicts(summary, judged)))
    elif not finished.quiet:
        if os.path.sameopenfile(_STDOUT, _STDERR):  # one reader of both
            run.info.notes = [note for note in run.info.notes if note not in finished.said]
        say(_run_text(run, summary, judged))
        say(f"\n{next_steps(finished.path)}")
    return finished.exit_code or exit_code(summary, judged)


def _run_text(run: Run, summary: dict[str, Any], judged: Sequence[Judged]) -> str:
    rows = None
    if summary["scheduled"] <= ROWS_SHOWN:
        rows = list(run.rows())
        labels = request_labels(rows)
        for row in rows:
            row.id = labels.get(row.id, row.id)
    text = run_text(
        run.info, summary, rows, run.notes, server=server_text(summary), certainty=certainty(summary)
    )
    required = required_text(judged, unproven=unproven(summary))
    return f"{text}\n\n{required}" if required else text


def next_steps(path: Path) -> str:
    """Where the files are, and commands to look further with."""
    run = shlex.quote(str(path))
    page = shlex.quote(f"{path}.html")
    steps = {
        f"tokentick report {run} --diagnose": "where the time went",
        f"tokentick report {run} --html {page}": "charts, as one file",
        f"tokentick compare {run} OTHER": "another run beside it",
    }
    if is_plain():
        said = [f"next, {what}: {command}" for command, what in steps.items()]
        return "\n".join([f"files: {path}", *said])
    width = max(map(len, steps))
    fits = 7 + width + 2 + max(map(len, steps.values())) <= WIDTH
    lines = [f"{command:<{width}}  {what}" if fits else command for command, what in steps.items()]
    return "\n".join([f"files: {path}", f"next:  {lines[0]}", *(f"       {line}" for line in lines[1:])])


def read_summary(run: Path) -> dict[str, Any]:
    summary: dict[str, Any] = msgspec.json.decode((run / "summary.json").read_bytes())
    return summary


def say(text: str) -> None:
    click.echo(printable(text))
