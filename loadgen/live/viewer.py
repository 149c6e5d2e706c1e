"""Starts the process that draws, tells it what to say, and sees to its end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ledgers.printable import printable
from ledgers.rows import encode
from ledgers.telling import is_screen
from ledgers.units import NS_PER_S
from loadgen.live.progress import Watched
from loadgen.plan import Plan
from loadgen.replay import to_stderr

_OVER = b"null\n"  # the last message
_END_S = 2.0
_MOST_BYTES = 4_096  # of a line: a pipe takes it as a whole or not at all
_LOADGEN = Path(__file__).parents[2]
_CLEAN = "\r\x1b[J"


def watched_of(plan: Plan) -> Watched:
    """What there is to know of a run before it begins."""
    rows, rules = plan.ledger.rows, plan.rules
    timed = not rules.closed and plan.before is None
    return Watched(
        path=str(plan.out),
        title=f"run {plan.ledger.name} against {plan.target.url}",
        requests=len(rows),
        last_arrival_s=(rows[-1].arrival_ns or 0) / NS_PER_S if timed else None,
        send_for_s=None if rules.send_for_ns is None else rules.send_for_ns / NS_PER_S,
    )


@contextmanager
def live_view(plan: Plan) -> Iterator[None]:
    """Draws the run while the block goes on, if that is wanted and there is a terminal for it.

    What the plan shows is then said there.
    """
    viewer = _begun(plan)
    if viewer is not None:
        plan.show, plan.show_progress = viewer.say, False
    try:
        yield
    finally:
        if viewer is not None:
            viewer.close()


def _begun(plan: Plan) -> Viewer | None:
    occupied = plan.out.exists()  # by a run that this one must not be taken for
    if not plan.live or not is_screen() or occupied:
        return None
    try:
        return Viewer(watched_of(plan))
    except (OSError, ValueError):  # no process is to be had, or a name is no text
        return None


class Viewer:
    """The process, which ends when this one does, however that is."""

    def __init__(self, watched: Watched) -> None:
        """To be made after all workers: they must not hold the pipe whose end says that the run is over."""
        begin = encode(watched) + b"\n"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "loadgen.live"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=_environment(),
        )
        assert self._process.stdin is not None
        self._pipe = self._process.stdin
        os.set_blocking(self._pipe.fileno(), False)  # a terminal that stands still must not stop the run
        self._tell(begin)  # to an empty pipe

    def say(self, line: str) -> None:
        """Has a line printed above the view; if nobody draws any more, here."""
        if not self._tell(message_of(line)):
            to_stderr(line)

    def close(self) -> None:
        """End it: the terminal is as it was, with the lines that were said.

        The pipe stays open until then: one that closes says that the run was killed.
        """
        self._tell(_OVER)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._pipe.close()
        if self._process.returncode:
            print(_CLEAN, end="", file=sys.stderr, flush=True)

    def _tell(self, message: bytes) -> bool:
        try:
            os.write(self._pipe.fileno(), message)
        except (OSError, ValueError):  # it is dead, or behind by all that a pipe holds, or closed
            return False
        return True


def message_of(line: str) -> bytes:
    """As it is said to the process: as much of it as a pipe takes at once."""
    line = printable(line)[:_MOST_BYTES]
    while len(message := encode(line) + b"\n") > _MOST_BYTES:
        line = line[: len(line) * 9 // 10]
    return message


def _environment() -> dict[str, str]:
    """Ours, without the key, and with the place where this package lies."""
    kept = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}
    paths = [str(_LOADGEN), *filter(None, [kept.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths)}
