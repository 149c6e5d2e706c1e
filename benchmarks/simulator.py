"""What a simulation costs: the scheduler that leaps beside the plain one, and the whole command.

    python -m benchmarks.simulator                                   an hour of chat, made from a seed
    python -m benchmarks.simulator TRACE                             a trace file
    python -m benchmarks.simulator --requests 1000000 --ticks none --no-plain --policy continuous

CPU seconds of one core (user and system, the least of the runs), so that others on the machine matter little.
Exit code 1 if the two forms differ in anything. Linux, for the peak of the memory.
"""

from __future__ import annotations

import sys
import tempfile
import time
from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from random import Random

import click

from benchmarks.processes import Usage, run_to_end
from benchmarks.table import DASH, table
from ledgers.ledger import Ledger
from ledgers.load import load_ledger
from ledgers.rows import RequestRow, TickRow, encode
from ledgers.settings import Hardware, SchedulerSettings
from ledgers.tick_runs import TickLines
from mock_server.leaps import LEAPERS
from mock_server.leaps.driver import leap
from mock_server.policies import make_scheduler
from mock_server.simulate import simulate

HARDWARE = Hardware(0.02, 8_192, 256, 1_000_000, 0.25)
RATE = 5.53  # requests per second
SHARES = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
PROMPT = (3, 29, 207, 396, 1020, 1189, 2735, 4142, 8000)  # tokens up to which these shares of them reach
OUTPUT = (7, 16, 54, 85, 129, 395, 424, 601, 1000)


Lines = Callable[[bytes], None]
Form = Callable[[SchedulerSettings, Ledger, Lines | None], Iterator[RequestRow]]


def write_trace(path: Path, requests: int, seed: int) -> Path:
    """Poisson arrivals, with lengths distributed as those of a public trace of conversations."""
    random, time_s = Random(seed), 0.0
    with path.open("w") as file:
        file.write("arrival_s,prompt_tokens,output_tokens\n")
        for _ in range(requests):
            file.write(f"{time_s:.6f},{draw(random, PROMPT)},{draw(random, OUTPUT)}\n")
            time_s += random.expovariate(RATE)
    return path


def draw(random: Random, lengths: tuple[int, ...]) -> int:
    """A length, evenly between the two shares that a draw falls between."""
    share = random.random()
    after = bisect(SHARES, share)
    part = (share - SHARES[after - 1]) / (SHARES[after] - SHARES[after - 1])
    return round(lengths[after - 1] + part * (lengths[after] - lengths[after - 1]))


def leaping(settings: SchedulerSettings, ledger: Ledger, on_lines: Lines | None) -> Iterator[RequestRow]:
    file = TickLines(on_lines or (lambda lines: None))
    leaper = LEAPERS[settings.policy](settings)
    for row, _ in leap(settings, leaper, ledger.rows, on_ticks=file.add if on_lines else None):
        yield row
    file.flush()


def plain(settings: SchedulerSettings, ledger: Ledger, on_lines: Lines | None) -> Iterator[RequestRow]:
    def on_tick(tick: TickRow) -> None:
        assert on_lines
        on_lines(encode(tick) + b"\n")

    for row in simulate(make_scheduler(settings), ledger.rows, on_tick=on_tick if on_lines else None):
        row.token_ns = None
        yield row


def cpu_s(form: Form, settings: SchedulerSettings, ledger: Ledger, ticks: bool) -> float:
    begin = time.process_time()
    deque(form(settings, ledger, (lambda lines: None) if ticks else None), maxlen=0)
    return time.process_time() - begin


def digest(form: Form, settings: SchedulerSettings, ledger: Ledger) -> str:
    """Of all rows and tick rows."""
    rows, ticks = sha256(), sha256()
    for row in form(settings, ledger, ticks.update):
        rows.update(encode(row))
    return rows.hexdigest() + ticks.hexdigest()


def command(trace: Path, policy: str, ticks: str, work: Path) -> Usage:
    """`tokentick simulate` with all files, from its start to its end."""
    hardware = work / "hardware.toml"
    hardware.write_text(
        "".join(f"{field} = {getattr(HARDWARE, field)}\n" for field in HARDWARE.__struct_fields__)
    )
    out = Path(tempfile.mkdtemp(dir=work))
    flags = [f"--hardware={hardware}", f"--policy={policy}", f"--ticks={ticks}", f"--out={out}", "--quiet"]
    used = run_to_end([sys.executable, "-m", "tokentick", "simulate", str(trace), *flags], watch_memory=True)
    if used.exit_code:
        raise SystemExit(f"tokentick simulate: {used.last_words}")
    for file in out.iterdir():
        file.unlink()
    return used


@click.command()
@click.argument("trace", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--requests", type=click.IntRange(1), default=19_366, show_default=True, help="How many to make."
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--policy", "policies", multiple=True, type=click.Choice(list(LEAPERS)), help="[default: all]")
@click.option("--ticks", type=click.Choice(["all", "none"]), default="all", show_default=True)
@click.option("--plain/--no-plain", "with_plain", default=True, help="Take the plain form's time as well.")
@click.option("--runs", type=click.IntRange(1), default=3, show_default=True)
def main(
    trace: Path | None,
    requests: int,
    seed: int,
    policies: tuple[str, ...],
    ticks: str,
    with_plain: bool,
    runs: int,
) -> None:
    """Measure the simulator, and print a table in Markdown."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        source = trace or write_trace(work / "trace.csv", requests, seed)
        ledger = load_ledger(str(source))
        rows = measure(source, ledger, policies or tuple(LEAPERS), ticks, with_plain, runs, work)
        head = ["policy", "scheduling, leaping (s)", "plain (s)", "whole command (s)", "peak memory (MB)"]
        print(f"{len(ledger.rows):,} requests, ticks: {ticks}\n")
        print(table([head, *rows]))


def measure(
    source: Path,
    ledger: Ledger,
    policies: tuple[str, ...],
    ticks: str,
    with_plain: bool,
    runs: int,
    work: Path,
) -> Iterator[list[str]]:
    for policy in policies:
        settings = SchedulerSettings(policy, hardware=HARDWARE)
        fast = min(cpu_s(leaping, settings, ledger, ticks == "all") for _ in range(runs))
        slow = cpu_s(plain, settings, ledger, ticks == "all") if with_plain else None
        if with_plain and digest(leaping, settings, ledger) != digest(plain, settings, ledger):
            raise SystemExit(f"{policy}: the two forms differ")
        used = [command(source, policy, ticks, work) for _ in range(runs)]
        peak = max(usage.peak_rss_mb or 0 for usage in used)
        yield [
            policy,
            f"{fast:.2f}",
            f"{slow:.2f}" if slow else DASH,
            f"{min(usage.cpu_s for usage in used):.2f}",
            f"{peak:.0f}",
        ]


if __name__ == "__main__":
    main()
