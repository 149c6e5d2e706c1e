"""The programs of a benchmark: built, started, and their whole process tree's use of the machine."""

from __future__ import annotations

import csv
import os
import select
import socket
import subprocess
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.workload import Workload
from reports.stamp_errors import Truth

_RUN_LIMIT_S = 600.0
_START_LIMIT_S = 5.0
_MEMORY_LOOK_S = 0.02


class Usage(NamedTuple):
    """How a process ended, and what it and all the children that it waited for used."""

    exit_code: int
    last_words: str  # on stderr
    cpu_s: float
    peak_rss_mb: float | None


def build(source: Path, out: Path) -> Path:
    """Compile a C program. SystemExit if that cannot be done."""
    try:
        result = subprocess.run(["gcc", "-O2", "-o", str(out), str(source)])
    except FileNotFoundError:
        raise SystemExit("the server and the reference client are C programs: gcc is needed") from None
    if result.returncode:
        raise SystemExit(f"{source}: does not compile")
    return out


@contextmanager
def truth_server(program: Sequence[str], workload: Workload, log: Path) -> Iterator[int]:
    """The server on a free port of loopback; its log is complete when the block ends."""
    port = _free_port()
    flags = ["--port", str(port), *workload.server_flags(), "--log", str(log)]
    if workload.record_tokens:
        flags += ["--chunks", str(log.with_suffix(".bin"))]
    server = subprocess.Popen([*program, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_until_open(port, server)
        yield port
    finally:
        server.terminate()
        server.wait()


def read_truths(log: Path) -> dict[str, Truth]:
    """What the server did for each request that it answered to the end."""
    writes = _read_writes(log.with_suffix(".bin"))
    with log.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["status"] == "ok"]
    return {
        row["x_request_id"]: Truth(
            received_ns=int(row["recv_ns"]),
            first_token_ns=int(row["first_ns"]),
            last_token_ns=int(row["last_ns"]),
            tokens=int(row["sent"]),
            token_ns=writes.get(int(row["req"])),
        )
        for row in rows
    }


def _read_writes(file: Path) -> dict[int, array[int]]:
    """When each token of a request was written, by the request's number in the log."""
    words = array("Q", file.read_bytes() if file.exists() else b"")
    writes, place = {}, 0
    while place < len(words):
        request, count = words[place : place + 2]
        writes[request] = words[place + 2 : place + 2 + count]
        place += 2 + count
    return writes


def run_to_end(command: Sequence[str], *, watch_memory: bool = False) -> Usage:
    """Run a program to its end, and take its status with what the kernel counted."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            peak = _wait(process, watch_memory)
        except BaseException:
            process.kill()
            raise
        finally:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        last_words = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
    return Usage(process.returncode, last_words, used.ru_utime + used.ru_stime, peak)


def _wait(process: subprocess.Popen[bytes], watch_memory: bool) -> float | None:
    """Until the process has ended, without taking its status. The peak of its memory, if that is watched.

    Its rusage cannot tell: there a process begins with the peak of the one that started it.
    """
    peak_kb: dict[int, int] = {}
    deadline = time.monotonic() + _RUN_LIMIT_S
    ended = os.pidfd_open(process.pid)
    try:
        while not select.select([ended], [], [], _MEMORY_LOOK_S if watch_memory else _RUN_LIMIT_S)[0]:
            if time.monotonic() > deadline:
                raise SystemExit(f"{process.args!r} did not end within {_RUN_LIMIT_S:.0f} s")
            peak_kb |= _peak_rss_kb(process.pid)
    finally:
        os.close(ended)
    return sum(peak_kb.values()) / 1024 if watch_memory else None


def _peak_rss_kb(pid: int) -> dict[int, int]:
    """Of a process and its descendants, as far as they live."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return {}
    peaks = {}
    if "VmHWM:" in status:  # not of a process that is about to end
        peaks[pid] = int(status.partition("VmHWM:")[2].split()[0])
    for child in children:
        peaks |= _peak_rss_kb(int(child))
    return peaks


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_open(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline and server.poll() is None:
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise SystemExit(f"{server.args!r} does not listen")
