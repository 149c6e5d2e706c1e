"""`--html FILE` of all commands with pages: the flag, what is refused before any work, the writing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ledgers.errors import InputError
from ledgers.rundir import replace_file

STDOUT = "-"
PAGE_FILE = "agreement.html"
"""What an agreement always leaves beside its figures."""
BEGINNING = b"<!doctype html"
Command = TypeVar("Command", bound=Callable[..., Any])


def html_option(what: str) -> Callable[[Command], Command]:
    """`--html`, which writes `what`."""
    said = f"Also write {what} as a page with charts; - is stdout, and nothing else then."
    return click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help=said)


def is_stdout(path: Path | None) -> bool:
    """Whether the page is all that is to be printed."""
    return path is not None and str(path) == STDOUT


def check_html(path: Path | None, *, made: Path | None = None) -> None:
    """InputError if no page can be written there. `made` is a directory that the command fills."""
    if path is None or is_stdout(path):
        return
    _check_replaced(path)
    if made is not None and _is_below(made, path):
        raise InputError(f"--html {path}: is where --out {made} will be")
    if made is not None and _is_below(path, made):
        if path.suffix.lower() != ".html":  # the command has files of its own there
            raise InputError(f"--html {path}: in the directory of --out only names that end in .html")
        if path.parent.resolve() == made.resolve() and not made.exists():
            return
    temporary = _temporary(path)
    try:
        temporary.touch()
        temporary.unlink()
    except OSError as error:
        raise InputError(f"--html {path}: {error.strerror}") from None


def save_page(path: Path, page: str) -> None:
    """Make or replace a page; `-` is stdout. InputError if that cannot be, or would destroy another file."""
    if is_stdout(path):
        click.echo(page, nl=False)
    else:
        _check_replaced(path)
        replace_file(path, page.encode())


def _check_replaced(path: Path) -> None:
    """InputError if what is there is not ours to replace: a page is, and an empty file."""
    try:
        is_directory, is_ours = path.is_dir(), not path.exists() or _is_page(path)
    except OSError as error:
        raise InputError(f"--html {path}: {error.strerror}") from None
    if is_directory:
        raise InputError(f"--html {path}: is a directory")
    if not is_ours:
        raise InputError(f"--html {path}: exists and is no HTML page, so it is not replaced")


def _is_below(path: Path, directory: Path) -> bool:
    return path.resolve().is_relative_to(directory.resolve())


def _is_page(path: Path) -> bool:
    if not path.is_file():  # a directory; a device or a pipe, which is not even to be opened
        return False
    with path.open("rb") as file:
        return file.read(len(BEGINNING)).lower() in (b"", BEGINNING)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")
