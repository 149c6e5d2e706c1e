"""The figures as Markdown, and their place in the README."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from textwrap import fill
from typing import Any

import msgspec

from benchmarks.results import Result
from ledgers.calibration_file import cpu_model
from ledgers.distributions import Distribution
from ledgers.machine import host_facts
from ledgers.rundir import tool_version

BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
DASH = "-"
WIDTH = 110


class Report(msgspec.Struct, kw_only=True):
    """What was measured, when, on what and by which command."""

    date: str
    command: str
    repeats: int
    version: str
    cpu: str
    host: dict[str, Any]
    results: list[Result] = []


def conditions(command: str, repeats: int) -> dict[str, Any]:
    """All of a report that is known before anything is measured."""
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "command": command,
        "repeats": repeats,
        "version": tool_version(),
        "cpu": cpu_model(),
        "host": host_facts(),
    }


def markdown(report: Report) -> str:
    """The conditions and a table for each scenario that was measured."""
    parts = [fill(_conditions_text(report), WIDTH)]
    for title, rows in (
        (ACCURACY, _accuracy(report.results)),
        (LAG, _pivot(report.results, ["send-lag"], lambda r: spread(r.send_lag_ms, "p50", "p99"))),
        (COST, _pivot(report.results, ["cost"], _cost)),
        (READS, _pivot(report.results, ["coalesced", "no-gap"], _cost)),
        (START, _start(report.results)),
        (WORKERS, _workers(report.results)),
    ):
        if rows:
            parts.append(f"{fill(title, WIDTH)}\n\n{table(rows)}")
    if any(result.client_limited for result in report.results):
        parts.append(LIMITED)
    return "\n\n".join(parts)


ACCURACY = (
    "**Stamps**: error of the first and of the last token of each request, and of every gap (either way), in "
    "ms; `gap p50` is what the client measured, where the truth is 20. Streams are staggered, or begin at "
    "once and run in lock step. How long a request waited to be read by the server is in the errors."
)
LAG = "**Send lag**: how late a request left, p50 / p99 in ms, at 50 requests per second."
COST = (
    "**CPU-seconds per million tokens** over streams in flight, without the start-up. A token of each stream "
    "every 20 ms, rarer above 500 streams, so that at most 25,000 come in a second."
)
READS = "**The same over tokens per read**, 300 streams; and as fast as they come."
START = "**Start-up** (a run of one request) and **peak memory** at 1,000 streams."
WORKERS = "**One worker or two**: first token, p50 / p99 / max in ms, at 1,000 staggered streams."
LIMITED = "‡ tokentick said of this run that it was itself the bottleneck."


def _conditions_text(report: Report) -> str:
    host = report.host
    kernel = ".".join(host["system"].split(".")[:2])
    return (
        f"Measured on {report.date} on {report.cpu} ({host['cpus']} cores, {kernel}, Python "
        f"{host['python']}), client and server on it together, by `{report.command}`; runs of each "
        f"client, in turns: {report.repeats}. An error is what the client says minus what the server did, "
        "a C program that logs its writes. Every request counts. CPU is that of all processes of a client."
    )


def _accuracy(results: list[Result]) -> list[list[str]]:
    rows = [
        [
            f"{result.label} {'in lock step' if result.scenario == 'lock-step' else result.scenario}",
            _name(result),
            spread(result.first_ms, "p50", "p99", "max"),
            spread(result.last_ms, "p50", "p99", "max"),
            spread(result.gap_ms, "p50"),
            spread(result.gap_error_ms, "p50", "p99"),
        ]
        for result in results
        if result.scenario in ("staggered", "lock-step")
    ]
    head = [
        "streams",
        "client",
        "first token p50 / p99 / max",
        "last token p50 / p99 / max",
        "gap p50",
        "gap error p50 / p99",
    ]
    return [head, *rows] if rows else []


def _pivot(results: list[Result], scenarios: Sequence[str], cell: Callable[[Result], str]) -> list[list[str]]:
    """A row for each client, a column for each setting."""
    chosen = [result for result in results if result.scenario in scenarios]
    labels = list(dict.fromkeys(result.label for result in chosen))
    clients = list(dict.fromkeys(result.client for result in chosen))
    cells = {(result.client, result.label): cell(result) for result in chosen}
    rows = [[client, *(cells.get((client, label), DASH) for label in labels)] for client in clients]
    return [["client", *labels], *rows] if rows else []


def _cost(result: Result) -> str:
    mark = " ‡" if result.client_limited else ""
    return DASH if result.cpu_s_per_million is None else f"{result.cpu_s_per_million:.1f}{mark}"


def _start(results: list[Result]) -> list[list[str]]:
    peaks = {result.client: result.peak_rss_mb for result in results if result.peak_rss_mb is not None}
    rows = [
        [
            result.client,
            f"{result.cpu_s:.2f}",
            f"{peaks[result.client]:.0f}" if result.client in peaks else DASH,
        ]
        for result in results
        if result.scenario == "start-up"
    ]
    return [["client", "CPU-seconds", "MB"], *rows] if rows else []


def _workers(results: list[Result]) -> list[list[str]]:
    rows = [
        [_name(result), spread(result.first_ms, "p50", "p99", "max"), f"{result.cpu_s:.1f}"]
        for result in results
        if result.scenario == "workers"
    ]
    return [["client", "first token", "CPU-seconds of a run"], *rows] if rows else []


def _name(result: Result) -> str:
    return f"{result.client} ‡" if result.client_limited else result.client


def spread(figures: Distribution | None, *names: str) -> str:
    """Some of the figures, with the digits that these clocks are good for."""
    if figures is None:
        return DASH
    return " / ".join(f"{getattr(figures, name):.2f}" for name in names)


def table(rows: list[list[str]]) -> str:
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def replace_block(text: str, block: str) -> str:
    """The text with what stands between the two marks replaced. ValueError unless both are there, once."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"the README needs {BEGIN} and {END}, once and in this order")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{block}\n{END}{after}"
