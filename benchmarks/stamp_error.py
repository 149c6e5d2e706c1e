"""How far the client's stamps are from the truth, and what they cost.

A C server that logs when it wrote each first and last token is the truth; `tokentick run` measures it as a
process of its own, in an open loop that keeps a given number of streams in flight. Both use the monotonic
clock of one machine, so a difference is the client's error and the kernel's way between them. With the source
of a minimal C client given too, that one takes turns with ours: what it shows is the floor of this machine.

    python benchmarks/stamp_error.py --truth PATH/truthd.c [--floor PATH/floor.c]

The server takes `--port --ttft MS --itl MS --tokens N --log CSV` and logs for each request, among others,
`recv_ns, first_ns, last_ns, sent, x_request_id`. The client takes `-P PORT -c STREAMS -n REQUESTS -t TOKENS
-r RATE -o CSV`, sends `X-Request-ID: f-<i>` and writes `id, due_ns, send_ns, first_ns, last_ns, n`.
"""

from __future__ import annotations

import csv
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click

from ledgers.distributions import nearest_rank
from ledgers.rundir import Run

FRONT_DOOR = Path(__file__).parent.parent / "tokentick.py"
TTFT_MS, GAP_MS = 100, 20
_SOURCE = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass
class Figures:
    """Errors in ns, of all runs of one client at one number of streams."""

    ttft: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    tokens: int = 0
    cpu_s: float = 0.0

    def add(self, name: str, sent: int, first: int, last: int, truths: dict[str, dict[str, str]]) -> None:
        """SystemExit if the server does not know the request: a figure without it would flatter."""
        truth = truths.get(name)
        if truth is None:
            raise SystemExit(f"request {name}: not in the server's log as ok")
        received = int(truth["recv_ns"])
        self.ttft.append((first - sent) - (int(truth["first_ns"]) - received))
        self.last.append((last - sent) - (int(truth["last_ns"]) - received))
        self.tokens += int(truth["sent"])


def build(source: Path, out: Path) -> Path:
    subprocess.run(["gcc", "-O2", "-o", str(out), str(source)], check=True)
    return out


@contextmanager
def truth_server(program: Path, log: Path) -> Iterator[int]:
    """The server on a free port; its log is complete when the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    words = ["--port", port, "--ttft", TTFT_MS, "--itl", GAP_MS, "--log", log]
    server = subprocess.Popen([program, *map(str, words)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with socket.socket() as attempt:
                if attempt.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield port
    finally:
        server.terminate()
        server.wait()


def read_truth(log: Path) -> dict[str, dict[str, str]]:
    with log.open(newline="") as file:
        return {row["x_request_id"]: row for row in csv.DictReader(file) if row["status"] == "ok"}


def run_ours(program: Path, work: Path, count: int, rate: float, tokens: int, figures: Figures) -> None:
    plan, out, log = work / "plan.csv", work / "run", work / "truth.csv"
    rows = "".join(f"{i / rate:.6f},16,{tokens}\n" for i in range(count))
    plan.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    with truth_server(program, log) as port:
        words = ["run", plan, "--base-url", f"http://127.0.0.1:{port}", "--out", out, "--quiet"]
        code = subprocess.call([sys.executable, FRONT_DOOR, *map(str, words)], stdout=subprocess.DEVNULL)
    if code:
        raise SystemExit(f"tokentick run ended with exit code {code}")
    add_ours(Run(out), count, read_truth(log), figures)


def add_ours(run: Run, count: int, truths: dict[str, dict[str, str]], figures: Figures) -> None:
    """Add `count` requests of a run. SystemExit with one line unless each completed and is in `truths`."""
    rows = list(run.rows())
    if len(rows) != count:
        raise SystemExit(f"{len(rows)} rows for {count} requests")
    for row in rows:
        if row.outcome != "completed" or None in (row.sent_ns, row.first_token_ns, row.last_token_ns):
            raise SystemExit(f"request {row.id}: {row.outcome}, {row.error or 'without a token'}")
        sent, first, last = row.sent_ns or 0, row.first_token_ns or 0, row.last_token_ns or 0
        figures.add(row.request_id or "", sent, first, last, truths)
    before_ns = 0
    for sample in run.health():
        figures.cpu_s += (sample["cpu_share"] or 0) * (sample["t_ns"] - before_ns) / 1e9
        before_ns = sample["t_ns"]


def run_floor(
    program: Path, client: Path, work: Path, count: int, rate: float, tokens: int, figures: Figures
) -> None:
    log, rows = work / "truth.csv", work / "floor.csv"
    with truth_server(program, log) as port:
        words = ["-P", port, "-n", count, "-t", tokens, "-r", rate, "-c", 1, "-o", rows]
        result = subprocess.run([client, *map(str, words)], capture_output=True, check=True)
    figures.cpu_s += json.loads(result.stdout)["cpu"]
    truths = read_truth(log)
    with rows.open(newline="") as file:
        measured = list(csv.DictReader(file))
    if len(measured) != count:
        raise SystemExit(f"C client: {len(measured)} rows for {count} requests")
    for row in measured:
        figures.add(row["id"], int(row["send_ns"]), int(row["first_ns"]), int(row["last_ns"]), truths)


def show(name: str, streams: int, figures: Figures) -> None:
    for what, errors in (("TTFT", sorted(figures.ttft)), ("last token", sorted(figures.last))):
        columns = [nearest_rank(errors, percent) / 1e6 for percent in (50, 99, 100)]
        text = "".join(f"{value:>10.3f}" for value in columns)
        print(f"{name:<10}{streams:>8}  {what:<11}{text}{len(errors):>8}", flush=True)
    cost = figures.cpu_s / figures.tokens * 1e6
    print(f"{name:<10}{streams:>8}  CPU s per million tokens {cost:.2f}", flush=True)


@click.command()
@click.option("--truth", type=_SOURCE, required=True, help="Source of the server.")
@click.option("--floor", type=_SOURCE, help="Source of a minimal C client.")
@click.option("--streams", multiple=True, type=int, default=(100, 300), help="Streams in flight; repeatable.")
@click.option("--tokens", default=128, show_default=True, help="Tokens per stream.")
@click.option("--seconds", default=10.0, show_default=True, help="Length of each run.")
@click.option("--repeats", default=3, show_default=True, help="Runs of each client, in turns.")
def main(
    truth: Path, floor: Path | None, streams: tuple[int, ...], tokens: int, seconds: float, repeats: int
) -> None:
    """Errors in ms: what the client says minus what the server wrote."""
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        server = build(truth, top / "truthd")
        client = build(floor, top / "floor") if floor else None
        print(f"{'client':<10}{'streams':>8}  {'error (ms)':<11}{'p50':>10}{'p99':>10}{'max':>10}{'n':>8}")
        for number in streams:
            rate = number / (TTFT_MS / 1000 + (tokens - 1) * GAP_MS / 1000)
            count = max(1, round(rate * seconds))
            ours, least = Figures(), Figures()
            for turn in range(repeats):
                work = top / f"{number}-{turn}"
                work.mkdir()
                run_ours(server, work, count, rate, tokens, ours)
                if client:
                    run_floor(server, client, work, count, rate, tokens, least)
            show("tokentick", number, ours)
            if client:
                show("C client", number, least)


if __name__ == "__main__":
    main()
