"""How evenly the mock server streams and what it costs, beside a C server, as a C client sees both.

    python -m benchmarks.servers              about two minutes
    python -m benchmarks.servers --quick

The servers take turns. A gap error is the distance of a measured gap between two tokens from the gap asked
for, so it has the client's and the kernel's part in it; the C server's is the floor. Linux, gcc.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from textwrap import fill

import click

from benchmarks.processes import build, run_to_end
from benchmarks.table import WIDTH, conditions, spread, table
from ledgers.distributions import distribution
from ledgers.units import NS_PER_MS, NS_PER_S

HERE = Path(__file__).parent
MOCK, ALIGNED, FREE = "tokentick", "C, in lock step", "C, each by itself"
PROMPT_MS = 40


@dataclass(frozen=True)
class Load:
    """So many streams at a time, with a token of each per tick, for about so long."""

    label: str
    streams: int
    tick_ms: float
    seconds: float
    servers: tuple[str, ...]
    tokens: int = 128

    @property
    def client_flags(self) -> list[str]:
        """Streams that follow one another evenly where the ticks leave room for it; else a closed loop."""
        stream_s = (PROMPT_MS + self.tokens * self.tick_ms) / 1000
        count = max(self.streams, round(self.streams * self.seconds / stream_s))
        if self.tick_ms < PROMPT_MS / 4:
            return [f"-n{count}", f"-c{self.streams}", f"-t{self.tokens}"]
        return [f"-n{count}", "-c1", f"-r{self.streams / stream_s}", f"-t{self.tokens}"]


@dataclass
class Seen:
    """What the client saw of the runs of one server."""

    gap_errors_ns: list[int] = field(default_factory=list)
    tpots_ms: list[float] = field(default_factory=list)
    tokens: int = 0
    wall_s: float = 0
    cpu_s: float = 0
    late_max_ms: float | None = None

    def add(self, rows: Path, gap_ns: int) -> None:
        with rows.open(newline="") as file:
            for fields in csv.DictReader(file):
                times = [int(time) for time in fields["token_ns"].split()]
                self.tokens += len(times)
                self.gap_errors_ns += [abs(later - at - gap_ns) for at, later in pairwise(times)]
                self.tpots_ms.append((times[-1] - times[0]) / (len(times) - 1) / NS_PER_MS)

    def cells(self) -> list[str]:
        late = "-" if self.late_max_ms is None else f"{self.late_max_ms:.1f}"
        return [
            spread(distribution(self.gap_errors_ns), "p50", "p99"),
            f"{sum(self.tpots_ms) / len(self.tpots_ms):.3f}",
            f"{self.tokens / self.wall_s:,.0f}",
            f"{self.cpu_s / self.tokens * 1e6:.1f}",
            late,
        ]


HEAD = ["load", "server", "gap error p50 / p99", "TPOT", "tokens/s", "CPU-s per M tokens", "latest tick"]


def loads(quick: bool) -> list[Load]:
    seconds = 3 if quick else 10
    return [
        Load("1,000 streams, 20 ms", 1000, 20, seconds, (MOCK, ALIGNED, FREE)),
        Load("4,000 streams, 200 ms", 4000, 200, seconds, (MOCK, ALIGNED), tokens=32),
        Load("200 streams, 1 ms", 200, 1, seconds, (MOCK,), tokens=512),
    ]


@contextmanager
def server(name: str, load: Load, truth: Path, work: Path, seen: Seen) -> Iterator[int]:
    """The server on a port; its CPU time and lateness are taken when the block ends."""
    port = 20_000 + os.getpid() % 10_000
    if name == MOCK:
        hardware = work / "hardware.toml"
        hardware.write_text(
            f"tick_s = {load.tick_ms / 1000}\nprefill_tokens_per_tick = 1000000\n"
            f"decode_slots = {load.streams * 2}\nkv_budget_tokens = 1000000000\n"
        )
        flags = [f"--hardware={hardware}", "--max-batch=4000", "--max-wait=0", f"--port={port}", "--quiet"]
        command = [sys.executable, str(HERE.parent / "tokentick.py"), "serve", *flags]
    else:
        flags = [f"--port={port}", f"--ttft={PROMPT_MS}", f"--itl={load.tick_ms}"]
        command = [str(truth), *flags, *([f"--align={load.tick_ms}"] if name == ALIGNED else [])]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        time.sleep(1.5)
        yield port
        if name == MOCK:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/mock/state") as state:
                seen.late_max_ms = max(seen.late_max_ms or 0, json.load(state)["late_max_ns"] / NS_PER_MS)
    finally:
        process.terminate()
        _, _, used = os.wait4(process.pid, 0)
        process.returncode = 0
        seen.cpu_s += used.ru_utime + used.ru_stime


def run(name: str, load: Load, truth: Path, client: Path, seen: Seen) -> None:
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        with server(name, load, truth, work, seen) as port:
            rows = work / "rows.csv"
            begin_ns = time.monotonic_ns()
            usage = run_to_end([str(client), f"-P{port}", f"-o{rows}", "-g", *load.client_flags])
            seen.wall_s += (time.monotonic_ns() - begin_ns) / NS_PER_S
        if usage.exit_code:
            raise SystemExit(f"{name}: {usage.last_words}")
        seen.add(rows, round(load.tick_ms * NS_PER_MS))


@click.command()
@click.option("--quick", is_flag=True, help="A short pass, one run of each.")
@click.option("--repeats", type=click.IntRange(1), help="Runs of each server.  [default: 3; quick: 1]")
def main(quick: bool, repeats: int | None) -> None:
    """Measure the mock server, and print the table in Markdown."""
    turns = repeats or (1 if quick else 3)
    rows = [HEAD]
    with tempfile.TemporaryDirectory() as name:
        truth = build(HERE / "truth.c", Path(name) / "truth")
        client = build(HERE / "client.c", Path(name) / "client")
        for load in loads(quick):
            seen = {name: Seen() for name in load.servers}
            for _ in range(turns):
                for server_name in load.servers:
                    run(server_name, load, truth, client, seen[server_name])
            rows += [[load.label, server_name, *seen[server_name].cells()] for server_name in load.servers]
    flags = " --quick" * quick + (f" --repeats {repeats}" if repeats else "")
    facts = conditions(f"python -m benchmarks.servers{flags}", turns)
    text = (
        f"Measured on {facts['date']} on {facts['cpu']} ({facts['host']['cpus']} cores), server and client "
        f"on it, by `{facts['command']}`; runs of each server, in turns: {turns}. Times in ms."
    )
    print(f"{fill(text, WIDTH)}\n\n{table(rows)}")


if __name__ == "__main__":
    main()
