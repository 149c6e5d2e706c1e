"""The server and the load generator as processes of their own, and their ends whatever happens here."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from typing import IO, Any

import msgspec

from ledgers.errors import InputError, TargetError

START_LIMIT_S = 30.0
STOP_LIMIT_S = 600.0  # it may have the summary of hours to write
DYING_LIMIT_S = 2.0
IN_FLIGHT_LIMIT_S = 5.0  # of an interrupted run
PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def mock_server(arguments: Sequence[str]) -> Iterator[str]:
    """Runs `tokentick serve` and gives its URL; when it has stopped its run directory is complete."""
    with tempfile.TemporaryFile() as errors:
        command = ["serve", *arguments, "--port=0", "--json"]
        process = _start(command, stdout=subprocess.PIPE, stderr=errors)
        try:
            with _blamed_on_server(process, errors):
                yield _announced_url(process, errors)
            code = _stop(process, signal.SIGTERM)
            if code != 0:
                raise TargetError(f"the mock server ended: {_last_line(errors) or f'code {code}'}")
        finally:
            _stop(process, signal.SIGTERM)


@contextlib.contextmanager
def _blamed_on_server(process: subprocess.Popen[bytes], errors: IO[bytes]) -> Iterator[None]:
    """If the server ended in the middle, that is why the load generator failed."""
    try:
        yield
    except TargetError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(DYING_LIMIT_S)
        if process.returncode:
            reason = _last_line(errors) or f"code {process.returncode}"
            raise InputError(f"the mock server ended: {reason.removeprefix('tokentick: ')}") from None
        raise


def load_generator(arguments: Sequence[str], *, with_key: bool = False) -> None:
    """Runs `tokentick run` to its end. Interrupting this process interrupts that one.

    `with_key`: it may have the API key of the environment.
    """
    with tempfile.TemporaryFile() as errors:
        streams = {"stdout": subprocess.DEVNULL, "stderr": errors}
        process = _start(["run", *arguments, "--quiet"], with_key=with_key, **streams)
        try:
            code = process.wait()
        except KeyboardInterrupt:
            _pass_on_interrupts(process)
            raise
        finally:
            _stop(process, signal.SIGKILL)
        if code not in (0, 1, 4):  # done, whatever came of it
            reason = _last_line(errors).removeprefix("tokentick: ") or f"code {code}"
            kind = InputError if code == 2 else TargetError
            raise kind(f"the load generator ended: {reason}")


def _pass_on_interrupts(process: subprocess.Popen[bytes]) -> None:
    """Each Ctrl-C goes on to the process, which waits for what is in flight after the first, not after more.

    Nobody will judge what it still waits for, so it is told once more before long. As a SIGTERM, for in the
    background of a script both of us ignore Ctrl-C.
    """
    while process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
            process.wait(IN_FLIGHT_LIMIT_S)


def _start(arguments: Sequence[str], *, with_key: bool = False, **streams: Any) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if with_key or name != "OPENAI_API_KEY"}
    return subprocess.Popen(
        [sys.executable, "-m", "tokentick", *arguments],
        stdin=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # Ctrl-C is ours to pass on, in the right order
        preexec_fn=partial(end_with_parent, os.getpid()) if sys.platform == "linux" else None,
        **streams,
    )


def end_with_parent(parent: int) -> None:
    """Should the parent be killed, the kernel stops the child too; it may be gone already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def _announced_url(process: subprocess.Popen[bytes], errors: IO[bytes]) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], START_LIMIT_S)
    line = process.stdout.readline() if ready else b""
    if not line:
        _stop(process, signal.SIGKILL)
        raise TargetError(f"the mock server did not start: {_last_line(errors) or 'no answer'}")
    return str(msgspec.json.decode(line)["url"])


def _stop(process: subprocess.Popen[bytes], number: signal.Signals) -> int:
    if process.poll() is None:
        process.send_signal(number)
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout:
        process.stdout.close()
    return process.returncode


def _last_line(errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
