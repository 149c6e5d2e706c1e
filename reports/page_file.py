"""Where a page goes: a file, whole or not at all, or stdout."""

from __future__ import annotations

from pathlib import Path

import click

from ledgers.errors import InputError
from ledgers.rundir import replace_file

STDOUT = "-"


def save_page(file: Path, page: str) -> None:
    """Replace a file by a page; `-` is stdout. InputError if it cannot be done."""
    if str(file) == STDOUT:
        click.echo(page, nl=False)
    elif not file.name:
        raise InputError(f"{file}: Is a directory")
    else:
        replace_file(file, page.encode())
