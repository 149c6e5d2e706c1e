"""The forms in which a result can be had: `--format`, and the printing. Runs have forms beside text and JSON.

A new one for runs is a module here and a line in `FORMS`. Each has `lines(runs, detailed)`, which gives the
text line by line, so that a long one is never held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import click

from ledgers.errors import InputError
from ledgers.html_file import is_stdout
from ledgers.printable import printable
from ledgers.requirements import Judged
from ledgers.rundir import Run
from reports.tables import plainly

FORMS = {"markdown": "reports.forms.markdown", "csv": "reports.forms.csv", "vllm": "reports.forms.vllm"}
DETAILED = ("csv", "vllm")
SILENT = ("json", "quiet")
"""Beside these a command says nothing of how far it is."""
Form = Callable[..., str | bytes | Iterable[str | bytes]]
"""Text for people, or bytes for programs, which get them as they are."""


class Shown(NamedTuple):
    """A run that is to be shown: its summary, and what became of each requirement."""

    run: Run
    summary: dict[str, Any]
    judged: Sequence[Judged] = ()


def lines(form: str, runs: Sequence[Shown], *, detailed: bool) -> Iterator[str]:
    """The runs in this form, by lines without their ends; in detail with each request, where it has such."""
    found: Iterator[str] = import_module(FORMS[form]).lines(runs, detailed)
    return found


def form_option(
    *more: str, about: str = "markdown: for an issue or a pull request."
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """`--format`, and `--json` for that of JSON, as one `form`; `quiet` is one if a command has the flag."""
    forms = click.Choice(["text", "markdown", "json", *more])
    format_ = click.option("--format", "form", type=forms, help=f"{about}  [default: text]")
    json_ = click.option("--json", "as_json", is_flag=True, help="The same as --format json.")

    def with_options(command: Callable[..., int]) -> Callable[..., int]:
        @wraps(command)
        def with_form(*, form: str | None, as_json: bool, **options: Any) -> int:
            if as_json and form not in (None, "json"):
                raise InputError(f"--json: goes without --format {form}")
            if form == "json" or as_json:
                form = "json"
            elif options.get("quiet"):
                form = "quiet"
            return command(form=form or "text", **options)

        return format_(json_(with_form))

    return with_options


def print_form(
    forms: Mapping[str, Form], form: str, *values: Any, html: Path | None = None, plain: bool = False
) -> None:
    """Print the values in this form, unless the page is all that is to be printed."""
    if is_stdout(html):
        return
    with plainly(plain and form == "text"):
        found = forms[form](*values)
        for part in [found] if isinstance(found, str | bytes) else found:
            click.echo(part if isinstance(part, bytes) else printable(part))
