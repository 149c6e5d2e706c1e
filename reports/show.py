"""How runs are shown: by the front door when a command has made one, and again by `tokentick report`."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec

from ledgers.errors import InputError
from ledgers.options import cooldown_from, trim_options, warmup_from
from ledgers.printable import printable
from ledgers.rows import encode
from ledgers.rundir import Finished, Run
from ledgers.summary import save_summary, summarize
from reports.certainty_text import certainty
from reports.server_text import server_text
from reports.text import request_labels, run_text, tick_lines

ROWS_SHOWN = 40
_STDOUT, _STDERR = 1, 2


@click.command(
    short_help="Look at runs again.", epilog="Example: tokentick report runs/demo/continuous/served --ticks"
)
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--ticks", is_flag=True, help="Print the state after each tick, with its events if recorded.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "markdown", "json"]),
    default="text",
    show_default=True,
    help="json: the summaries, or the diagnoses; markdown: diagnoses only.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--diagnose", is_flag=True, help="Print what stands out, and why (docs/diagnosis.md).")
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="With --diagnose: a baseline, for what went up and what did not.",
)
@trim_options
def report(
    runs: tuple[Path, ...],
    ticks: bool,
    form: str,
    as_json: bool,
    diagnose: bool,
    against: Path | None,
    **cut: Any,
) -> None:
    """Rebuild the summary of run directories, whole or cut short, and print it.

    With --warmup or --cooldown the figures are printed as they would be with these, and no file is changed.
    """
    if diagnose and not ticks:
        from reports.diagnose import diagnoses

        return click.echo(diagnoses(runs, against, "json" if as_json else form))
    if diagnose or against or form == "markdown":
        raise InputError(_DIAGNOSE_ALONE)
    if ticks and (as_json or form == "json"):
        raise InputError("--ticks prints a table: ticks.jsonl has the same as JSON")
    if ticks:
        for path in runs:
            _print_ticks(Run(path))
    elif as_json or form == "json":
        summaries = {str(path): _summary(Run(path), cut) for path in runs}
        click.echo(encode(summaries if len(runs) > 1 else summaries[str(runs[0])]))
    else:
        opened = [Run(path) for path in runs]
        for text in [_run_text(run, _summary(run, cut)) for run in opened]:
            say(text)
    return None


_DIAGNOSE_ALONE = "--against and --format markdown belong to --diagnose, which goes without --ticks"


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
    summary = read_summary(finished.path)
    if finished.as_json:
        click.echo(encode(summary))
    elif not finished.quiet:
        run = Run(finished.path)
        if os.path.sameopenfile(_STDOUT, _STDERR):  # one reader of both
            run.info.notes = [note for note in run.info.notes if note not in finished.said]
        say(_run_text(run, summary))
        say(f"\nfiles: {finished.path}")
    return finished.exit_code


def _run_text(run: Run, summary: dict[str, Any]) -> str:
    rows = None
    if summary["scheduled"] <= ROWS_SHOWN:
        rows = list(run.rows())
        labels = request_labels(rows)
        for row in rows:
            row.id = labels.get(row.id, row.id)
    return run_text(
        run.info, summary, rows, run.notes, server=server_text(summary), certainty=certainty(summary)
    )


def read_summary(run: Path) -> dict[str, Any]:
    summary: dict[str, Any] = msgspec.json.decode((run / "summary.json").read_bytes())
    return summary


def say(text: str) -> None:
    click.echo(printable(text))
