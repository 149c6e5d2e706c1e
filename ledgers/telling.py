"""How commands say on stderr how far they are: one line drawn anew in a terminal, plain lines elsewhere.

stdout is for results. Owns what stands on that line, and takes it away before anything else is said.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Mapping

import click

from ledgers.printable import printable
from ledgers.units import about_left

_STDERR = 2
_NO_SCREEN = ("", "dumb", "unknown")
_REDRAW_S = 0.2
_LINE_S = 10.0
_RECENT = 200  # of what is counted, for its pace
_PACE_S, _PACE_SHARE = 5.0, 0.05  # of which either must have been done for it


def is_screen(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether stderr is a terminal on which lines can be drawn anew."""
    return os.isatty(_STDERR) and environment.get("TERM", "") not in _NO_SCREEN


def left(done: int, total: int, elapsed_s: float) -> str:
    """`, about 12 s left` at the pace so far; empty while there is none, and where that is no time."""
    said = about_left(elapsed_s / done * (total - done)) if 0 < done < total else ""
    return f", {said}" if said else ""


class Teller:
    """Says lines, and where the work stands. `screen`: there is a terminal to draw on."""

    def __init__(self, *, silent: bool = False, screen: bool = False) -> None:
        self._silent, self._screen = silent, screen
        self._begun_s = self._shown_s = time.monotonic()
        self._recent: deque[tuple[float, int]] = deque(maxlen=_RECENT)
        self._tenth = 0
        self._drawn = False

    def __call__(self, line: str) -> None:
        """A line that stays."""
        if not self._silent:
            self.clear()
            click.echo(printable(line), err=True)

    def begun(self, text: str, number: int, total: int) -> None:
        """The `number`-th piece of work begins."""
        if self._screen and not self._silent:
            left_s = left(number - 1, total, time.monotonic() - self._begun_s)
            self._draw(f"{number} of {total}{left_s}: {text}" if total > 1 else text)
        else:
            self(text)

    def counted(self, done: int, total: int, what: str) -> None:
        """So many are done. Called for each: most calls say nothing."""
        now = time.monotonic()
        self._recent.append((now, done))
        text = f"{done:,} of {total:,} {what}{self._left(done, total)}"
        if self._screen and not self._silent:
            if now - self._shown_s >= _REDRAW_S:
                self._shown_s = now
                self._draw(text)
        elif (tenth := done * 10 // max(1, total)) > self._tenth or now - self._shown_s >= _LINE_S:
            self._shown_s, self._tenth = now, tenth
            self(text)

    def _left(self, done: int, total: int) -> str:
        """At the pace of the last ones. Of the first ones little can be said: they waited for the start."""
        (then_s, then), (now_s, _) = self._recent[0], self._recent[-1]
        if now_s - then_s < _PACE_S and done - then < _PACE_SHARE * total:
            return ""
        return left(done - then, total - then, now_s - then_s)

    def clear(self) -> None:
        """Nothing is left of the line that is drawn anew."""
        if self._drawn:
            self._drawn = False
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _draw(self, text: str) -> None:
        try:
            columns = os.get_terminal_size(_STDERR).columns or 80
        except OSError:
            columns = 80
        self._drawn = True
        print(f"\r{printable(text)[: columns - 1]}\x1b[K", end="", file=sys.stderr, flush=True)


def teller(*, silent: bool, plain: bool = False) -> Teller:
    """For a command; what it draws is gone when the command is over, however that ends."""
    made = Teller(silent=silent, screen=not plain and is_screen())
    if (context := click.get_current_context(silent=True)) is not None:
        context.call_on_close(made.clear)
    return made
