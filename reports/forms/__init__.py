"""The forms in which runs can be had beside text and JSON. A new one is a module here and a line in `FORMS`.

Each module has `lines(runs, detailed)`, which gives the text line by line, so that a long one is never held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from importlib import import_module
from typing import Any, NamedTuple

import click

from ledgers.requirements import Judged
from ledgers.rundir import Run

FORMS = {"markdown": "reports.forms.markdown", "csv": "reports.forms.csv", "vllm": "reports.forms.vllm"}
DETAILED = ("csv", "vllm")


class Shown(NamedTuple):
    """A run that is to be shown: its summary, and what became of each requirement."""

    run: Run
    summary: dict[str, Any]
    judged: Sequence[Judged] = ()


def lines(form: str, runs: Sequence[Shown], *, detailed: bool) -> Iterator[str]:
    """The runs in this form, by lines without their ends; in detail with each request, where it has such."""
    found: Iterator[str] = import_module(FORMS[form]).lines(runs, detailed)
    return found


def format_option(command: Callable[..., int]) -> Callable[..., int]:
    """`--format` for a command that has a `--json`, of which `--format json` is another word."""

    @wraps(command)
    def with_form(**options: Any) -> int:
        return command(**{**options, "as_json": options["as_json"] or options["form"] == "json"})

    forms = click.Choice(["text", "markdown", "json"])
    help_ = "markdown: for an issue or a pull request."
    option = click.option("--format", "form", type=forms, default="text", show_default=True, help=help_)
    return option(with_form)
