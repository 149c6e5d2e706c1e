"""How runs are shown: by the front door when a command has made one, and again by `tokentick report`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from ledgers.errors import InputError
from ledgers.html_file import check_html, html_option, is_stdout, save_page
from ledgers.options import cooldown_from, trim_options, warmup_from
from ledgers.plain import plain_option
from ledgers.printable import printable
from ledgers.required import MISSED, exit_code, require_option, unproven, verdicts
from ledgers.requirements import Judged, parse_requirement
from ledgers.rows import encode
from ledgers.rundir import Finished, Run
from ledgers.summary import save_summary, summarize
from reports.certainty_text import certainty
from reports.forms import DETAILED, FORMS, Form, Shown, form_option, lines, print_form
from reports.requests_text import request_labels
from reports.required_text import required_text
from reports.server_text import server_text
from reports.tables import WIDTH, is_plain, plainly
from reports.text import run_text
from reports.ticks_text import tick_lines

ROWS_SHOWN = 20
_STDOUT, _STDERR = 1, 2


@click.command(
    short_help="Look at runs again.", epilog="Example: tokentick report runs/demo/continuous/served --ticks"
)
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--ticks", is_flag=True, help="Print the state after each tick, with its events if recorded.")
@form_option(
    *DETAILED, about="csv: a row per run; vllm: the result JSON of vllm bench serve, a line per run."
)
@click.option("--detailed", is_flag=True, help="With csv a row per request; with vllm arrays of them.")
@plain_option()
@require_option
@click.option("--diagnose", is_flag=True, help="Print what stands out, and why (docs/diagnosis.md).")
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="With --diagnose or --html: a baseline, for what went up and what did not.",
)
@html_option("the run")
@trim_options
def report(
    runs: tuple[Path, ...],
    ticks: bool,
    form: str,
    detailed: bool,
    plain: bool,
    diagnose: bool,
    against: Path | None,
    require: Sequence[str],
    html: Path | None,
    **cut: Any,
) -> int:
    """Rebuild the summary of run directories, whole or cut short, and print it.

    With --warmup or --cooldown the figures are printed as they would be with these, and no file is changed.
    With --require the exit code is 1 if a run misses any of it. --html also makes the page of a directory
    of sweep, agree or calibrate again.
    """
    _check_form(form, ticks, diagnose, detailed)
    required = [parse_requirement(word) for word in require]
    if html and (diagnose or ticks or len(runs) > 1):
        raise InputError(_HTML_OF_ONE)
    if required and (diagnose or ticks):
        raise InputError("--require: goes without --diagnose and --ticks")
    if against and not (diagnose or html):
        raise InputError(_AGAINST_ALONE)
    check_html(html)
    if diagnose:
        from reports.diagnose import DIAGNOSES, diagnoses

        print_form(DIAGNOSES, form, diagnoses(runs, against), plain=plain)
        return 0
    if ticks:
        print_form({"text": _ticks_text}, form, runs, plain=plain)
        return 0
    if html and (page := _directory_page(runs[0])):
        save_page(html, page)
        return 0
    opened = [Run(path) for path in runs]
    summaries = [_summary(run, cut) for run in opened]
    judged = [verdicts(run, summary, required) for run, summary in zip(opened, summaries, strict=True)]
    shown = list(map(Shown, opened, summaries, judged))
    forms: dict[str, Form] = {"text": _texts, "json": _json, **_forms_by_line(detailed)}
    print_form(forms, form, shown, html=html, plain=plain)
    if html:
        _save_page(html, opened[0], summaries[0], judged[0], against)
    return worst(exit_code(each.summary, each.judged) for each in shown)


def worst(codes: Iterable[int]) -> int:
    """Of the exit codes of several runs: one that misses decides, then one of which nobody can tell."""
    found = set(codes)
    return MISSED if MISSED in found else max(found, default=0)


def _texts(runs: Sequence[Shown]) -> list[str]:
    """All of them before the first is printed: one that cannot be read ends the command."""
    return [_run_text(*each) for each in runs]


def _json(runs: Sequence[Shown]) -> bytes:
    """One object, by path of several."""
    found = {str(each.run.path): _with_verdicts(each.summary, each.judged) for each in runs}
    return encode(found if len(runs) > 1 else next(iter(found.values())))


def _forms_by_line(detailed: bool) -> dict[str, Form]:
    def encoded(form: str, runs: Sequence[Shown]) -> Iterator[bytes]:
        return (line.encode() for line in lines(form, runs, detailed=detailed))

    return {form: partial(encoded, form) for form in FORMS}


def _directory_page(path: Path) -> str | None:
    """The page of a directory that is of several runs; None of one. InputError for flags beside it."""
    from reports.directory_page import directory_page

    page = None if (path / "run.json").exists() else directory_page(path)
    context = click.get_current_context()
    for option in context.command.params if page else ():
        given = option.name and context.get_parameter_source(option.name) is not ParameterSource.DEFAULT
        if given and option.name not in ("runs", "html", "plain"):
            raise InputError(f"{option.opts[0]}: is for a run; {path} is of several, and has its page only")
    return page


def _check_form(form: str, ticks: bool, diagnose: bool, detailed: bool) -> None:
    """InputError for flags that mean nothing beside one another."""
    if ticks and diagnose:
        raise InputError("--ticks: goes without --diagnose")
    if detailed and form not in DETAILED:
        raise InputError(f"--detailed: belongs to --format {' and '.join(DETAILED)}")
    if form != "text" and ticks:
        raise InputError(
            f"--format {form}: goes without --ticks, which prints a table (ticks.jsonl has JSON)"
        )
    if form in DETAILED and diagnose:
        raise InputError(f"--format {form}: goes without --diagnose")


def _with_verdicts(summary: dict[str, Any], judged: Sequence[Judged]) -> dict[str, Any]:
    """`requirements` stands beside the summary, where there are any; never in its file."""
    return {**summary, "requirements": judged} if judged else summary


_HTML_OF_ONE = (
    "--html: a page is of one run, and has its diagnosis; without --ticks and --diagnose. "
    "tokentick compare puts several beside each other"
)
_AGAINST_ALONE = "--against: belongs to --diagnose and --html"


def _summary(run: Run, cut: dict[str, Any]) -> dict[str, Any]:
    """As the files have it, or as the flags have it, which is to be looked at only."""
    if cut["warmup"] is None and cut["cooldown"] is None:
        return refreshed_summary(run)
    config = run.info.config
    config.warmup_s = warmup_from(cut) if cut["warmup"] is not None else config.warmup_s
    config.cooldown_s = cooldown_from(cut) if cut["cooldown"] is not None else config.cooldown_s
    return summarize(run)


def _ticks_text(runs: Sequence[Path]) -> Iterator[str]:
    for run in map(Run, runs):
        if not (run.path / "ticks.jsonl").exists():
            raise InputError(
                f"{run.path}: has no ticks.jsonl: a measured run has no ticks, others may keep none"
            )
        yield from tick_lines(run.ticks(), request_labels(run.rows()))


def refreshed_summary(run: Run) -> dict[str, Any]:
    """The summary, built anew; `summary.json` is put right where that is missing or not the same."""
    summary = summarize(run)
    with suppress(InputError):  # a directory that is read only can be looked at
        save_summary(run.path, summary)
    return summary


def show(finished: Finished) -> int:
    """What the front door prints of a run that a command has made, and its page; the exit code."""
    summary, run = read_summary(finished.path), Run(finished.path)
    judged = verdicts(run, summary, finished.required)
    if finished.as_json and not is_stdout(finished.html):
        click.echo(encode(_with_verdicts(summary, judged)))
    elif not finished.quiet and not is_stdout(finished.html):
        with plainly(finished.plain):
            say(_text_of(run, summary, judged, without=finished.said))
            say(f"\n{next_steps(finished.path, finished.html)}")
    if finished.html:
        _save_page(finished.html, Run(finished.path), summary, judged)
    return finished.exit_code or exit_code(summary, judged)


def _text_of(run: Run, summary: dict[str, Any], judged: Sequence[Judged], without: Sequence[str]) -> str:
    if os.path.sameopenfile(_STDOUT, _STDERR):  # one reader of both
        run.info.notes = [note for note in run.info.notes if note not in without]
    return _run_text(run, summary, judged)


def _save_page(
    html: Path, run: Run, summary: dict[str, Any], judged: Sequence[Judged], against: Path | None = None
) -> None:
    from reports.run_page import run_page

    save_page(html, run_page(run, summary, _run_text(run, summary, judged), against))


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


def next_steps(path: Path, html: Path | None = None) -> str:
    """Where the files are, and commands to look further with. `html` is a page that is there already."""
    run = shlex.quote(str(path))
    page = shlex.quote(f"{path}.html")
    steps = {f"tokentick report {run} --diagnose": "where the time went"}
    if html is None:
        steps[f"tokentick report {run} --html {page}"] = "charts, as one file"
    steps[f"tokentick compare {run} OTHER"] = "another run beside it"
    there = [f"files: {path}", *([f"page:  {html}"] if html else [])]
    if is_plain():
        return "\n".join([*there, *(f"next, {what}: {command}" for command, what in steps.items())])
    width = max(map(len, steps))
    fits = 7 + width + 2 + max(map(len, steps.values())) <= WIDTH
    lines = [f"{command:<{width}}  {what}" if fits else command for command, what in steps.items()]
    return "\n".join([*there, f"next:  {lines[0]}", *(f"       {line}" for line in lines[1:])])


def read_summary(run: Path) -> dict[str, Any]:
    path = run / "summary.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise InputError(f"{path}: {error}") from None


def say(text: str) -> None:
    click.echo(printable(text))
