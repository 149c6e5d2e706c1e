"""Sections of text, tables and charts as one HTML file that needs nothing else.

The template escapes all that comes in; only the pictures of charts are markup already. Equal sections give
equal bytes.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup

from ledgers.printable import printable
from reports.charts.shapes import Chart, Table

HERE = Path(__file__).parent
_QUANTITY = re.compile(r"[-+−]?[\d.,]+\s*(%|ms|s)?[†*\s]*$|-$")


class Section(NamedTuple):
    """A part of a page: its paragraphs, then tables, charts, text that is aligned already, and inner parts.

    `id` is for links to it; from the heading if empty.
    """

    heading: str
    paragraphs: Sequence[str] = ()
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()
    id: str = ""
    text: str = ""
    parts: Sequence[Section] = ()


def render(title: str, sections: Sequence[Section]) -> str:
    """A whole page."""
    style = style_sheet()
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=title,
            sections=list(zip(_ids(sections), sections, strict=True)),
            style=Markup(style),
            style_hash=b64encode(sha256(style.encode()).digest()).decode(),
        )
    )


@cache
def style_sheet() -> str:
    return (HERE / "style.css").read_text(encoding="utf-8")


def _ids(sections: Sequence[Section]) -> list[str]:
    """One for each, and no two alike."""
    taken: dict[str, int] = {}
    found = []
    for section in sections:
        plain = re.sub(r"[^a-z0-9]+", "-", (section.id or section.heading).lower()).strip("-")[:40] or "part"
        taken[plain] = taken.get(plain, 0) + 1
        found.append(plain if taken[plain] == 1 else f"{plain}.{taken[plain]}")
    return found


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
    )
    environment.filters["quantities"] = _quantities
    return environment


def _shown(value: Any) -> Any:
    """Text as it can be shown; what is markup already stays."""
    return printable(value) if type(value) is str else value


def _quantities(table: Table) -> set[int]:
    """The columns but the first of which every cell is a number or a dash, to be aligned to the right."""
    columns = range(1, len(table.head))
    return {place for place in columns if all(_QUANTITY.match(row[place]) for row in table.rows)}
