"""A few lines of a terminal that are drawn anew in their place; what is said goes above them.

Each drawing is one write, from the first of the lines down, with nothing erased before it is overwritten, but
after a resize: so there is no flicker. The cursor rests below, and is never hidden, so a kill at any moment
leaves it there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

_LEAST_ROWS, _LEAST_COLUMNS = 2, 4


class Part:
    """Draws through `write`, on a terminal that has `size()` now."""

    def __init__(self, console: Console, write: Callable[[str], None], size: Callable[[], os.terminal_size]):
        self._console, self._write, self._size = console, write, size
        self._widths: list[int] = []  # of the lines that stand there
        self._folds_at = 0  # columns of the terminal when they were written
        self._drawn: list[Text] = []

    @property
    def columns(self) -> int:
        """How wide a line may be; the last column is left alone, for a cursor that stands there may wrap."""
        return max(_LEAST_COLUMNS, self._size().columns) - 1

    def draw(self, lines: Sequence[Text], above: Sequence[str] = ()) -> None:
        """Nothing is written if they stand there already."""
        fitting = list(lines[: max(_LEAST_ROWS, self._size().lines) - 1])
        if fitting == self._drawn and not above:
            return
        shown = [*above, *map(self._ansi, fitting)]
        self._write(self._home() + "".join(f"{line}\x1b[K\n" for line in shown) + "\x1b[J")
        self._drawn, self._widths = fitting, [line.cell_len for line in fitting]

    def leave(self, lines: Sequence[str]) -> None:
        """Print lines as any program does: the terminal is somebody else's, and what stands there stays."""
        self._drawn, self._widths = [], []
        if lines:
            self._write("".join(f"{line}\n" for line in lines))

    def _home(self) -> str:
        """To the first of the lines. A terminal that became narrower has folded those that were wider.

        It remembers which rows it folded, and would unfold them when it is wide again, whatever was written
        over them: so they are erased, one by one (erasing all at once some keep what was there to scroll to).
        """
        columns = max(1, self._size().columns)
        rows = sum(max(1, -(-width // columns)) for width in self._widths)
        resized, self._folds_at = columns != self._folds_at, columns
        if resized:
            return "\r" + "\x1b[1A\x1b[2K" * rows
        return f"\x1b[{rows}A\r" if rows else "\r"

    def _ansi(self, line: Text) -> str:
        with self._console.capture() as captured:
            self._console.print(line, end="", soft_wrap=True)
        return captured.get()
