"""A command in a process forked from the tests' own: all that a process has, but no interpreter to start.

One that starts and imports costs half a second of processor time, which over hundreds of commands is minutes.
How the front door itself starts is told by tests that start it (test_front_door.py, test_documents.py).
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import tokentick

_LOOK_EVERY_S = 0.002


def run(arguments: Sequence[str], cwd: Path, timeout: float) -> subprocess.CompletedProcess[str]:
    """The command's exit code and what it wrote; killed and TimeoutExpired after so many seconds."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        with warnings.catch_warnings():  # other threads of the tests hold nothing that a command needs
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            _be_the_command(arguments, cwd, out, errors)
        code = _wait(pid, timeout, arguments)
        return subprocess.CompletedProcess([*arguments], code, _text(out), _text(errors))


def _be_the_command(arguments: Sequence[str], cwd: Path, out: IO[bytes], errors: IO[bytes]) -> None:
    """In the child: nothing of the tests goes on here, whatever happens."""
    code = 70
    try:
        gc.freeze()  # what the tests have is not this command's to look through
        os.chdir(cwd)
        os.environ["COLUMNS"] = "80"
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["tokentick", *arguments]
        tokentick.main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(pid: int, timeout: float, arguments: Sequence[str]) -> int:
    deadline = time.monotonic() + timeout
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise subprocess.TimeoutExpired([*arguments], timeout)
        time.sleep(_LOOK_EVERY_S)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode().replace("\r\n", "\n").replace("\r", "\n")
