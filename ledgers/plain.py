"""`--plain`: the flag of every command whose text has tables or pictures, or is drawn while it goes on."""

from __future__ import annotations

import click

plain_option = click.option(
    "--plain",
    is_flag=True,
    help="For screen readers: lines of names and values, no tables, pictures, or live view.",
)
