"""The process that draws: its stdin says what to watch, then what to say, then that the run is over.

A stdin that ends without that is a run that was killed. By then the terminal is somebody else's, who may have
written to it: nothing is touched any more.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from itertools import chain
from textwrap import wrap

import msgspec
from rich.console import Console

from ledgers.printable import printable
from loadgen.live.progress import Watched
from loadgen.live.screen import Part
from loadgen.live.view import view
from loadgen.live.watched import Watch

_STDIN, _STDERR = 0, 2
_END = b"null"  # the last message
_EVERY_S = 0.5
_NICENESS = 10  # what is measured comes first
_USUAL_SIZE = os.terminal_size((80, 24))


def main() -> None:
    """Watch, draw and say until the run is over. A terminal that is gone, or anything else, is no news."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)  # the run has them, and ends this
    os.nice(_NICENESS)
    messages = _messages()
    first, *said_first = next(filter(None, messages))
    watched = msgspec.json.decode(first, type=Watched)
    console = Console(stderr=True, highlight=False, force_terminal=True)
    part = Part(console, _write, _size)
    watch, seen_at = Watch(watched), time.monotonic()
    ascii_only = "utf" not in (sys.stderr.encoding or "").lower()
    for said in chain([said_first], messages):
        over = said[-1:] == [_END]
        said_lines = _said(said[:-1] if over else said)
        if watch.look():
            seen_at = time.monotonic()
        if _is_ours():
            silent_s = time.monotonic() - seen_at
            shown = [] if over else view(watch.progress, part.columns, silent_s, ascii_only=ascii_only)
            part.draw(shown, said_lines)
        else:
            part.leave(said_lines)
        if over:
            return


def _messages() -> Iterator[list[bytes]]:
    """What has been said, twice a second at least, until the run is gone."""
    rest, due = b"", time.monotonic()
    while True:
        ready, _, _ = select.select([_STDIN], [], [], max(0.0, due - time.monotonic()))
        data = os.read(_STDIN, 1 << 16) if ready else None
        if data == b"":
            return
        *whole, rest = (rest + (data or b"")).split(b"\n")
        if whole or not ready:
            yield whole
        if not ready:
            due = time.monotonic() + _EVERY_S


def _said(messages: list[bytes]) -> list[str]:
    texts = (msgspec.json.decode(message, type=str) for message in messages)
    return [line for text in texts for line in wrap(printable(text), 80, subsequent_indent="  ")]


def _is_ours() -> bool:
    """Whether the run is in the foreground of its terminal; a terminal that knows of none is ours."""
    try:
        return os.tcgetpgrp(_STDERR) == os.getpgrp()
    except OSError:
        return True


def _size() -> os.terminal_size:
    try:
        found = os.get_terminal_size(_STDERR)
    except OSError:
        return _USUAL_SIZE
    return found if found.columns and found.lines else _USUAL_SIZE


def _is_killed() -> bool:
    """Whether the run is gone: it holds the other end of our stdin until we have ended."""
    poll = select.poll()
    poll.register(_STDIN, 0)
    return bool(poll.poll(0))


def _write(text: str) -> None:
    if _is_killed():  # since we began to draw
        sys.exit()
    data = text.encode(sys.stderr.encoding or "ascii", "backslashreplace")
    while data:
        data = data[os.write(_STDERR, data) :]


if __name__ == "__main__":
    try:
        main()
    except Exception:  # the run says what there is to say without it
        os._exit(1)
