"""Markdown for issues and pull requests: tables, lists, and text from elsewhere that stays text.

Pure. Code hosts make links and mentions of what they find in a text, also where Markdown's own signs are
escaped. A zero-width space keeps them from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ledgers.printable import printable

_SIGNS = str.maketrans({**{char: f"\\{char}" for char in "\\|*_`~<>[]#"}, "&": "&amp;", "$": "&dollar;"})
_APART = "&#8203;"
_REFERENCES = re.compile(r"@(?=\w)|#(?=\d)|\bGH-(?=\d)|:(?=//)|\bwww(?=\.)", re.IGNORECASE)
_BLOCK = re.compile(r"^(\d*)([-+.)=])(?=\s|$)")  # what would begin a list or a heading of its own
_RULES = {"l": "---", "r": "---:"}


def escaped(text: str) -> str:
    """A text as Markdown shows it, whatever a server or a file name put into it, in one line."""
    line = printable(" ".join(text.split())).translate(_SIGNS)
    return _REFERENCES.sub(lambda found: found[0] + _APART, line)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """A table; `align` has an l or r for each column, and all but the first are r without it."""
    rules = [_RULES[side] for side in align or "l" + "r" * (len(head) - 1)]
    lines = [[escaped(cell) for cell in head], rules, *([escaped(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_BLOCK.sub(_in_text, escaped(line))}" for line in lines)


def joined(blocks: Iterable[str]) -> str:
    """Those that say anything, with an empty line between."""
    return "\n\n".join(block for block in blocks if block)


def _in_text(found: re.Match[str]) -> str:
    return f"{found[1]}\\{found[2]}"
