"""`--html FILE` of the commands that compare: the flag, and what is refused before any work is done."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ledgers.errors import InputError
from reports.page_file import STDOUT

PAGE_FILE = "agreement.html"
"""What an agreement always leaves beside its figures."""
BEGINNING = b"<!doctype html"
Command = TypeVar("Command", bound=Callable[..., Any])


def html_option(what: str) -> Callable[[Command], Command]:
    """`--html`, which writes `what`."""
    said = f"Also write {what} as a page with charts; - is stdout, and nothing else then."
    return click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help=said)


def check_html(path: Path | None, *, made: Path | None = None) -> None:
    """InputError if no page can be written there. `made` is a directory that is still to be made."""
    if path is None or is_stdout(path):
        return
    if path.is_dir():
        raise InputError(f"--html {path}: is a directory")
    if path.exists() and not _is_page(path):
        raise InputError(f"--html {path}: exists and is no HTML page, so it is not replaced")
    if made is not None and path.parent == made and not made.exists():
        return
    temporary = _temporary(path)
    try:
        temporary.touch()
        temporary.unlink()
    except OSError as error:
        raise InputError(f"--html {path}: {error.strerror}") from None


def is_stdout(path: Path | None) -> bool:
    """Whether the page is all that is to be printed."""
    return path is not None and str(path) == STDOUT


def _is_page(path: Path) -> bool:
    """Whether a file is ours to replace: a page, or empty."""
    try:
        if not path.is_file():  # a device or a pipe, which is not even to be opened
            return False
        with path.open("rb") as file:
            return file.read(len(BEGINNING)).lower() in (b"", BEGINNING)
    except OSError as error:
        raise InputError(f"--html {path}: {error.strerror}") from None


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")
