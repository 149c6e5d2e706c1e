"""The clients that take turns: how each is started, and how its rows are read."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.processes import Usage, read_truths, run_to_end, truth_server
from benchmarks.workload import PROMPT_TOKENS, Workload
from ledgers.rows import RequestRow, decode_row
from ledgers.rundir import Run
from reports.stamp_errors import Truth

_HERE = Path(__file__).parent
_CLIENT_LIMITED = 4  # the exit code of a run that was its own bottleneck


@dataclass(frozen=True)
class Client:
    """A client as a process of its own. It leaves what it measured in the directory it is given."""

    name: str
    command: Callable[[Workload, int, Path], list[str]]
    rows: Callable[[Path], list[RequestRow]]
    says_if_limited: bool = False


class Measured(NamedTuple):
    """One run of one client, and what the server knows of it."""

    rows: list[RequestRow]
    truths: dict[str, Truth]
    usage: Usage


def run_client(
    client: Client, workload: Workload, server: Sequence[str], work: Path, *, watch_memory: bool = False
) -> Measured:
    """One run in an empty directory against a server of its own. SystemExit if the client fails."""
    log = work / "truth.csv"
    with truth_server(server, workload, log) as port:
        usage = run_to_end(client.command(workload, port, work), watch_memory=watch_memory)
    if usage.exit_code and not (client.says_if_limited and usage.exit_code == _CLIENT_LIMITED):
        raise SystemExit(f"{client.name}: ended with code {usage.exit_code}: {usage.last_words}")
    return Measured(client.rows(work), read_truths(log), usage)


def tokentick(name: str = "tokentick", *flags: str) -> Client:
    """Ours, as a user runs it: preflight, rows and summary included."""

    def command(workload: Workload, port: int, work: Path) -> list[str]:
        plan = workload.write_plan(work / "plan.csv")
        words = [f"--base-url=http://127.0.0.1:{port}", f"--out={work / 'run'}", "--quiet", *flags]
        recording = ["--record-tokens"] if workload.record_tokens else []
        return [sys.executable, str(_HERE.parent / "tokentick.py"), "run", str(plan), *words, *recording]

    return Client(name, command, lambda work: list(Run(work / "run").rows()), says_if_limited=True)


def aiohttp_client() -> Client:
    """What most tools are made of."""

    def command(workload: Workload, port: int, work: Path) -> list[str]:
        plan = workload.write_plan(work / "plan.csv")
        words = [f"--base-url=http://127.0.0.1:{port}", f"--out={work / 'rows.jsonl'}"]
        recording = ["--record-tokens"] if workload.record_tokens else []
        return [sys.executable, str(_HERE / "aiohttp_client.py"), str(plan), *words, *recording]

    def rows(work: Path) -> list[RequestRow]:
        return [decode_row(line) for line in (work / "rows.jsonl").read_bytes().splitlines()]

    return Client("aiohttp", command, rows)


def c_client(program: Path, *, dates_tokens: bool) -> Client:
    """The reference in C; another one than ours may not date each token, or count other events too."""

    def command(workload: Workload, port: int, work: Path) -> list[str]:
        words = ["-P", port, "-n", workload.requests, "-t", workload.tokens, "-o", work / "rows.csv"]
        if workload.rate is not None:
            words += ["-r", workload.rate, "-c", 1]
        else:
            arrivals = work / "arrivals.txt"
            arrivals.write_text("".join(f"{at}\n" for at in workload.arrivals_ns))
            words += ["-a", arrivals, "-c", workload.most_at_once]
        if workload.record_tokens and dates_tokens:
            words.append("-g")
        return [str(program), *map(str, words)]

    def rows(work: Path) -> list[RequestRow]:
        with (work / "rows.csv").open(newline="") as file:
            return [_row_of_c(fields, dates_tokens) for fields in csv.DictReader(file)]

    return Client("C, epoll", command, rows)


def _row_of_c(fields: dict[str, str], counts_tokens: bool) -> RequestRow:
    times = fields.get("token_ns")
    return RequestRow(
        id=fields["id"],
        request_id=fields["id"],
        prompt_tokens=PROMPT_TOKENS,
        output_tokens=int(fields["n"]),
        arrival_ns=int(fields["due_ns"]),
        sent_ns=int(fields["send_ns"]),
        first_token_ns=int(fields["first_ns"]),
        last_token_ns=int(fields["last_ns"]),
        tokens=int(fields["n"]) if counts_tokens else None,
        outcome="completed",
        token_ns=[int(time) for time in times.split()] if times else None,
    )
