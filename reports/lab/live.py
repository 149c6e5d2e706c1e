"""A live run: the same setting on the real clock, one at a time, told as it happens.

`tokentick agree` does it, as a process with a server and a load generator of its own; its files are followed
while they are written, and its answer is the last thing that is told. What it told so far is kept, so that a
page that comes later, or comes back, gets all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ledgers.metrics import e2e_ns, meets, tpot_ns, ttft_ns
from ledgers.rows import RequestRow, row_decoder, tick_decoder
from ledgers.settings import DEFAULT_PRESET, PRESETS
from ledgers.tail import Tail
from reports.agree import WARM_UPS
from reports.agreement import Agreement
from reports.agreement_text import agreement_text
from reports.lab.experiment import makespan_ns, simulation, toy
from reports.lab.setting import Setting, SettingError
from reports.lab.states import Floor
from reports.processes import end_with_parent

MOST_S = 120.0
OVERTIME_S = 30.0  # for processes to start, and for the comparison
POLL_S = 0.04
ENDING = ((signal.SIGINT, 0.5), (signal.SIGINT, 15.0), (signal.SIGKILL, 5.0))  # and how long each has
_WARM_UP_TICKS = 8  # the smallest request, with time to spare
ENDS = ("agreement", "stopped", "failed")
_DONE = (0, 1, 4)  # exit codes of an agreement that was made, whatever its verdict


class BusyError(Exception):
    """There is a live run already."""


class LiveRun:
    """One run, from its start to its last event. `events` are `(name, data)`, in order.

    `state` is the one told last, or how it ended: the name of its last event.
    """

    def __init__(self, setting: Setting, simulated_s: float) -> None:
        self.id = secrets.token_hex(8)
        self.setting = setting
        self.simulated_s = simulated_s
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.state = "starting"
        self.over = False
        self._stop = asyncio.Event()
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    def to_json(self) -> dict[str, str]:
        return {"id": self.id, "query": self.setting.query(), "state": self.state}

    async def stop(self) -> None:
        """End it now; returns when nothing of it is left."""
        self._stop.set()
        await asyncio.shield(self._task)

    async def more_than(self, count: int) -> None:
        """Wait until there are more events than these, or it is over."""
        while len(self.events) <= count and not self.over:
            await self._news.wait()

    def _tell(self, name: str, data: dict[str, Any]) -> None:
        self.events.append((name, data))
        if name == "state":
            self.state = data["state"]
        elif name in ENDS:
            self.state = name
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _run(self) -> None:
        try:
            with tempfile.TemporaryDirectory(
                prefix="tokentick-lab-", ignore_cleanup_errors=True
            ) as directory:
                await self._agree(Path(directory) / "run")
        except OSError as error:  # no place for its files, or no process
            self._tell("failed", {"message": f"the live run failed: {error.strerror or error}"})
        except Exception:
            logging.getLogger(__name__).exception("live run")
            self._tell("failed", {"message": "the live run failed; the lab's terminal says more"})
        finally:
            self.over = True
            self._wake()

    async def _agree(self, out: Path) -> None:
        state = {"state": "starting", "query": self.setting.query(), "simulated_s": self.simulated_s}
        self._tell("state", state)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tokentick", "agree"),
            *agree_arguments(self.setting, out),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is the lab's to pass on
            preexec_fn=partial(end_with_parent, os.getpid()) if sys.platform == "linux" else None,
        )
        answer = asyncio.create_task(process.communicate())
        try:
            in_time = await self._follow(out, answer)
        finally:
            await _end(process)
        if self._stop.is_set():
            self._tell("stopped", {})
        elif not in_time:
            self._tell(
                "failed", {"message": f"it took longer than {MOST_S + OVERTIME_S:g} s, and was stopped"}
            )
        else:
            self._conclude(process.returncode, *await answer)

    async def _follow(self, out: Path, answer: asyncio.Task[Any]) -> bool:
        """Until it has ended, is to be stopped, or takes too long (False)."""
        follower = Follower(self.setting, out / self.setting.policy, self._tell)
        stop = asyncio.create_task(self._stop.wait())
        deadline = time.monotonic() + MOST_S + OVERTIME_S
        try:
            while not answer.done() and not stop.done() and time.monotonic() < deadline:
                await asyncio.wait((answer, stop), timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
                follower.look()
        finally:
            stop.cancel()
        return time.monotonic() < deadline

    def _conclude(self, code: int | None, stdout: bytes, stderr: bytes) -> None:
        if code not in _DONE or not stdout:
            lines = stderr.decode(errors="replace").strip().splitlines()
            why = lines[-1].removeprefix("tokentick: ") if lines else f"it ended with code {code}"
            self._tell("failed", {"message": why})
            return
        policy = self.setting.policy
        found = msgspec.json.decode(stdout)["policies"][policy]
        text = agreement_text(policy, msgspec.convert(found, Agreement))
        told = {"policy": policy, "verdict": found["verdict"], "agreement": found, "text": text}
        self._tell("agreement", told)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Interrupted twice it cuts what is in flight; what it has started ends with it, however it ends."""
    for number, limit_s in ENDING:
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await process.wait()


class LiveRuns:
    """At most one run at a time; the last one can still be read."""

    def __init__(self) -> None:
        self.last: LiveRun | None = None

    def start(self, setting: Setting, simulated_s: float) -> LiveRun:
        """BusyError while there is one."""
        if self.last and not self.last.over:
            raise BusyError("a live run is going on already: stop it, or wait for its end")
        self.last = LiveRun(setting, simulated_s)
        return self.last

    def find(self, id: str) -> LiveRun | None:
        return self.last if self.last and self.last.id == id else None

    async def close(self) -> None:
        if self.last:
            await self.last.stop()


class Follower:
    """Turns what a server and a load generator write into events."""

    def __init__(self, setting: Setting, out: Path, tell: Callable[[str, dict[str, Any]], None]) -> None:
        self._tick_ns = setting.machine().tick_ns
        self._bounds = setting.window().slo.bounds_ns()
        self._tell = tell
        self._begun = out / "measured" / "run.json"
        self._over = out / "simulated"
        self._ticks = Tail(out / "served" / "ticks.jsonl")
        self._requests = Tail(out / "measured" / "requests.jsonl")
        # The server numbers requests as they come: in the ledger's order, unless two overtake each other.
        names = {f"S{number}": row.id for number, row in enumerate(toy(setting).rows, 1)}
        self._floor = Floor(setting.policy, names)
        self._state = "starting"

    def look(self) -> None:
        """Tell what is new. Ticks of the warm-up are gone by the time that the run has a directory."""
        if self._begun.exists():
            self._enter("running")
            for line in self._ticks.lines():
                row = tick_decoder.decode(line)
                state = self._floor.after(row)
                self._tell("tick", {**state.to_json(self._tick_ns), "late_ms": (row.late_ns or 0) / 1e6})
            for line in self._requests.lines():
                self._tell("request", self._request(row_decoder.decode(line)))
        if self._over.exists():
            self._enter("comparing")

    def _enter(self, state: str) -> None:
        order = ("starting", "running", "comparing")
        if order.index(state) > order.index(self._state):
            self._state = state
            self._tell("state", {"state": state})

    def _request(self, row: RequestRow) -> dict[str, Any]:
        """As the client measured it, with the time of each token at its socket."""
        times = {"ttft_ms": ttft_ns(row), "tpot_ms": tpot_ns(row), "e2e_ms": e2e_ns(row)}
        return {
            "id": row.id,
            "outcome": row.outcome,
            "tokens": row.tokens,
            **{name: None if ns is None else float(ns / 1_000_000) for name, ns in times.items()},
            "met_slo": meets(row, self._bounds),
            "token_ms": [ns / 1e6 for ns in row.token_ns or ()],
        }


def simulated_s(setting: Setting) -> float:
    """How long the run takes by the simulation. SettingError if that is too long."""
    run_s = makespan_ns(list(simulation(setting, setting.policy, toy(setting)).rows())) / 1e9
    hardware = setting.machine()
    warm_up_s = WARM_UPS * (setting.wait + _WARM_UP_TICKS * hardware.tick_s)
    if run_s + warm_up_s > MOST_S:
        message = (
            f"on the real clock this takes {run_s:.0f} s, and {warm_up_s:.0f} s to warm up; "
            f"a live run may take {MOST_S:.0f} s"
        )
        figures = {"run_s": run_s, "warm_up_s": warm_up_s, "most_s": MOST_S}
        raise SettingError(None, message, "too_long", **figures)
    return run_s


def agree_arguments(setting: Setting, out: Path) -> Iterator[str]:
    bounds = {"ttft": setting.ttft, "tpot": setting.tpot, "e2e": setting.slo}
    slo = " ".join(f"{name}:{bound:.10g}" for name, bound in bounds.items() if bound is not None)
    yield from (
        "toy",
        f"--request-rate={setting.rate}",
        f"--policy={setting.policy}",
        f"--max-batch={setting.batch}",
        f"--max-wait={setting.wait}",
        f"--prefill-chunk={setting.chunk}",
        f"--hardware={setting.hardware}",
        f"--tick={setting.machine().tick_s}",
        f"--goodput={slo}",
        f"--tail={PRESETS[DEFAULT_PRESET].tail_s}",
        f"--out={out}",
        "--json",
    )
