"""`--plain`: the flag of every command whose text has tables or pictures, or is drawn while it goes on."""

from __future__ import annotations

from functools import partial

import click

plain_option = partial(
    click.option,
    "--plain",
    is_flag=True,
    help="For screen readers: names and values, no tables, no pictures, nothing that is drawn anew.",
)
