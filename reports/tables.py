"""Tables and paragraphs for a terminal of 80 columns, readable without colour. Values in, text out.

What servers and files say is shown with its control characters escaped, before it is measured and wrapped.
Within `plainly` the same rows come as a screen reader wants them: a line each, every value with its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from textwrap import wrap

from ledgers.printable import printable

WIDTH = 80
DASH = "-"
LEAST_SHOWN = 8  # characters of an id
_plain: ContextVar[bool] = ContextVar("plain", default=False)


@contextmanager
def plainly(plain: bool = True) -> Iterator[None]:
    """Whether text is for a screen reader, while the block that makes it to be printed goes on.

    What is made beside it, as a page or Markdown, has no part in that.
    """
    before = _plain.set(plain)
    try:
        yield
    finally:
        _plain.reset(before)


def is_plain() -> bool:
    return _plain.get()


def ms(value: float | None) -> str:
    """A duration in ms with as many digits as a reader can use."""
    if value is None:
        return DASH
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def number(value: float | None, digits: int = 2) -> str:
    if value is None:
        return DASH
    return str(value) if isinstance(value, int) else f"{value:.{digits}f}"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """A table, whose first `left` columns say what a row is about."""
    cells = [[printable(cell) for cell in row] for row in rows]
    return _spoken(columns, cells, max(left, 1)) if is_plain() else _aligned(columns, cells, left)


def _aligned(columns: Sequence[str], rows: Iterable[list[str]], left: int) -> str:
    """The first `left` columns to the left, the others to the right.

    Where it would be too wide, columns stand closer together, and the first one is shortened.
    """
    lines = [list(columns), *rows]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    gap = "  " if sum(widths) + 2 * (len(widths) - 1) <= WIDTH else " "
    room = WIDTH - sum(widths[1:]) - len(gap) * (len(widths) - 1)
    widths[0] = min(widths[0], max(room, LEAST_SHOWN))
    for cells in lines:
        cells[0] = shortened(cells[0], widths[0])
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        gap.join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()
        for cells in lines
    )


def _spoken(columns: Sequence[str], rows: Iterable[list[str]], left: int) -> str:
    """`TTFT: p50 1.2, p90 3.4`; what the first columns are called stands once, above; no row is cut short."""
    lines = [f"{', '.join(columns[:left])}:"]
    for cells in rows:
        about = ", ".join(cell for cell in cells[:left] if cell != DASH)
        values = zip(columns[left:], cells[left:], strict=True)
        said = ", ".join(f"{name} {cell}" for name, cell in values if cell not in ("", DASH))
        lines.append(f"{about or DASH}: {said or 'nothing'}")
    return "\n".join(lines)


def wrapped(
    text: str, *, width: int = WIDTH, first: str = "", then: str = "", most: int | None = None
) -> list[str]:
    """A text of any origin as lines, indented by `first` and `then`, and at `most` so many."""
    return wrap(printable(text), width, initial_indent=first, subsequent_indent=then, max_lines=most)


def shortened(text: str, width: int) -> str:
    """Its beginning and its end: what tells ids apart is often at the end."""
    text = printable(text)
    if len(text) <= width:
        return text
    tail = (width - 1) * 2 // 3
    return f"{text[: width - 1 - tail]}~{text[-tail:]}"


def joined(parts: Iterable[str]) -> str:
    """The parts one after another, a new line where they would be too wide."""
    joint = "; " if is_plain() else " | "
    lines: list[str] = []
    for part in map(printable, parts):
        if lines and len(lines[-1]) + len(joint) + len(part) <= WIDTH:
            lines[-1] += joint + part
        else:
            lines += wrapped(part)
    return "\n".join(lines)
