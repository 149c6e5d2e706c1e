"""A command as a user gives it, without a process of its own, which takes longer to start than most work."""

from __future__ import annotations

import io
import os
import signal
import subprocess
from contextlib import chdir, redirect_stderr, redirect_stdout
from contextvars import copy_context
from pathlib import Path

import pytest

from tokentick import main

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def in_process(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """As tests.conftest.tokentick, for a command that no signal ends and that no limit is set for."""
    written = out, err = io.BytesIO(), io.BytesIO()
    streams = [io.TextIOWrapper(each, "utf-8", write_through=True) for each in written]
    with chdir(cwd), redirect_stdout(streams[0]), redirect_stderr(streams[1]):
        code = _exit_code(arguments)
    return subprocess.CompletedProcess(arguments, code, out.getvalue().decode(), err.getvalue().decode())


def _exit_code(arguments: tuple[str, ...]) -> int:
    """The signals' handlers and what is set for a command's time are afterwards as they were."""
    handlers = [signal.getsignal(number) for number in SIGNALS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["tokentick", *arguments])
        patch.setitem(os.environ, "COLUMNS", "80")
        with pytest.raises(SystemExit) as ended:
            copy_context().run(main)
    for number, handler in zip(SIGNALS, handlers, strict=True):
        signal.signal(number, handler)
    assert isinstance(ended.value.code, int)
    return ended.value.code
