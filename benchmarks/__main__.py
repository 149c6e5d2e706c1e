"""How exact the load generator is and what it costs, against a server that knows the truth.

    python -m benchmarks              all of it
    python -m benchmarks --quick      a short pass

A C server logs when it wrote each first and last token. tokentick, a minimal C client and a client as most
tools write it take turns to measure it, each as a process of its own. All clocks are the monotonic one of
this machine, so a difference is the client's error and the kernel's way between them. Linux, gcc.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from benchmarks.clients import Client, aiohttp_client, c_client, run_client, tokentick
from benchmarks.processes import build
from benchmarks.results import Result, Tally
from benchmarks.scenarios import FULL, QUICK, SCENARIOS, WORKERS, Length, Setting
from benchmarks.table import Report, conditions, markdown, replace_block
from ledgers.rundir import write_json

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
OUR_SERVER, OUR_CLIENT = HERE / "truth.c", HERE / "client.c"
STARTS_PER_RUN = 3  # each cost per token leans on them
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--quick", is_flag=True, help="A short pass, one run of each.")
@click.option("--only", multiple=True, type=click.Choice(list(SCENARIOS)), help="This scenario; repeatable.")
@click.option("--repeats", type=click.IntRange(1), help="Runs of each client.  [default: 3; quick: 1]")
@click.option("--json", "json_file", type=_FILE, help="Write all figures here, as they come.")
@click.option("--readme", is_flag=True, help="Put the tables into README.md.")
@click.option("--truth", type=_FILE, default=OUR_SERVER, help="Source of another server.")
@click.option("--floor", type=_FILE, default=OUR_CLIENT, help="Source of another C client.")
def main(
    quick: bool,
    only: tuple[str, ...],
    repeats: int | None,
    json_file: Path | None,
    readme: bool,
    truth: Path,
    floor: Path,
) -> None:
    """Measure the load generator, and print the tables in Markdown."""
    if readme:
        if only or (truth, floor) != (OUR_SERVER, OUR_CLIENT):
            raise click.UsageError("--readme: shows all scenarios, measured with what is in this directory")
        replace_block(README.read_text(), "")  # fails now, if it must
    repeats = repeats or (1 if quick else 3)
    report = Report(**conditions(command_line(quick, only), repeats))
    with tempfile.TemporaryDirectory() as name:
        server = [str(build(truth, Path(name) / "truth"))]
        reference = c_client(build(floor, Path(name) / "client"), dates_tokens=floor == OUR_CLIENT)
        for result in measure(only, QUICK if quick else FULL, repeats, clients_with(reference), server):
            report.results.append(result)
            if json_file:
                write_json(json_file, report)
    print(markdown(report))
    if readme:
        README.write_text(replace_block(README.read_text(), markdown(report)))


def command_line(quick: bool, only: tuple[str, ...]) -> str:
    """What to type for the same figures."""
    flags = ["--quick"] * quick + [f"--only {name}" for name in only]
    return " ".join(["python -m benchmarks", *flags])


def clients_with(reference: Client) -> dict[str, Client]:
    fixed = [tokentick(name, f"--workers={count}") for count, name in WORKERS.items()]
    return {client.name: client for client in (tokentick(), reference, aiohttp_client(), *fixed)}


def measure(
    only: tuple[str, ...], length: Length, repeats: int, clients: dict[str, Client], server: list[str]
) -> Iterator[Result]:
    """The results of each setting. The start comes first, always: cost per token is what comes on top."""
    starts: dict[str, float] = {}
    for name, settings in SCENARIOS.items():
        if only and name not in (*only, "start-up"):
            continue
        turns = repeats * STARTS_PER_RUN if name == "start-up" else repeats
        for setting in settings(length):
            for result in take_turns(setting, turns, clients, server, starts):
                if name == "start-up":
                    starts[result.client] = result.cpu_s
                yield result


def take_turns(
    setting: Setting, turns: int, clients: dict[str, Client], server: list[str], starts: dict[str, float]
) -> list[Result]:
    """Each client once, then each again: what disturbs the machine for a while disturbs all of them."""
    tallies = {name: Tally() for name in setting.clients}
    for turn in range(turns):
        for name, tally in tallies.items():
            say(f"{setting.scenario}, {setting.label}: {name}, run {turn + 1} of {turns}")
            with tempfile.TemporaryDirectory() as work:
                measured = run_client(
                    clients[name], setting.workload, server, Path(work), watch_memory=setting.watch_memory
                )
            tally.add(name, measured, setting.workload.requests)
    return [tally.result(setting, name, starts.get(name)) for name, tally in tallies.items()]


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
