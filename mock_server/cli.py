"""The commands of the mock server: `serve` on the real clock, `simulate` on a virtual one."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ledgers.errors import InputError
from ledgers.html_file import check_html, html_option
from ledgers.ledger import values
from ledgers.machine import loop_factory
from ledgers.options import (
    burstiness,
    ledger_from,
    ledger_options,
    request_rate,
    scheduler_from,
    scheduler_options,
    window_from,
    window_options,
)
from ledgers.plain import plain_option
from ledgers.required import require_option, requirements_from
from ledgers.rows import encode
from ledgers.rundir import (
    Finished,
    LedgerInfo,
    RunConfig,
    RunInfo,
    RunWriter,
    command_line,
    default_path,
    settings_config,
)
from ledgers.settings import SchedulerSettings
from ledgers.shaping_options import shaping_options
from ledgers.telling import teller
from ledgers.units import NS_PER_MS
from mock_server.options import fault_options, recording_options, serving_options
from mock_server.policies import POLICIES
from mock_server.simulation import write_simulation

if TYPE_CHECKING:
    from mock_server.serve_options import ServeOptions


@click.command(
    short_help="The mock server.",
    epilog="Example: tokentick serve --policy chunked --hardware medium --port 8000",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one."
)
@click.option("--model", default="tokentick-mock", show_default=True, help="Name that /v1/models gives.")
@scheduler_options(list(POLICIES))
@window_options
@serving_options
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Stream the served ledger into this run directory; POST /mock/reset starts it over.",
)
@fault_options
@recording_options
@click.option("--json", "as_json", is_flag=True, help="Announce the address as one JSON line.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def serve(**options: Any) -> None:
    """Serve OpenAI's API from a tick scheduler on the real clock. Ctrl-C stops it."""
    from mock_server.serve import listen  # a simulation needs no HTTP
    from mock_server.serve import serve as serve_until_stopped

    settings = scheduler_from(options)
    if settings.hardware.tick_ns < NS_PER_MS:
        raise InputError(f"ticks of {settings.hardware.tick_s * 1000:g} ms: a server's last 1 ms at least")
    serving = _serve_options(options)
    config = settings_config(RunConfig(model=options["model"]), settings, window_from(options))
    listening = listen(options["host"], options["port"])
    out: Path | None = options["out"]
    writer = None
    if out:
        info = RunInfo(kind="served", command=command_line(), config=config, ledger=LedgerInfo(name="served"))
        info.clock.stamp_source = "write"
        writer = RunWriter(out, info)
        if serving.record_ticks:
            writer.open_files("ticks.jsonl")

    def announce(url: str) -> None:
        if options["as_json"]:
            click.echo(encode({"url": url, "pid": os.getpid()}))
        elif not options["quiet"]:
            click.echo(f"tokentick mock server: {url}/v1\npolicy {settings.policy}, {_describe(settings)}")

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve_until_stopped(listening, settings, serving, writer, announce))


def _serve_options(options: dict[str, Any]) -> ServeOptions:
    from mock_server.fault_choice import fault_settings
    from mock_server.keys import read_keys
    from mock_server.scripts import load_scripts
    from mock_server.serve_options import ServeOptions
    from mock_server.sse import Style

    key_file: Path | None = options["api_key_file"]
    scripts = load_scripts(options["script"])
    return ServeOptions(
        model=options["model"],
        default_output_tokens=options["default_max_tokens"],
        grace_s=float(options["grace"]),
        request_timeout_s=float(options["request_timeout"]),
        keep_alive_s=float(options["keep_alive"]),
        max_connections=options["max_connections"],
        strict_ms=None if options["strict"] is None else float(options["strict"]),
        record_tokens=options["record_tokens"],
        record_events=options["record_events"],
        record_ticks=options["ticks"] == "all",
        style=Style(
            reasoning_tokens=options["reasoning_tokens"],
            tokens_per_chunk=options["tokens_per_chunk"],
            early_role=options["role_chunk"] == "early",
        ),
        keys=read_keys(key_file) if key_file else None,
        faults=fault_settings(options["fault"], options["fault_seed"], options["fault_plan"], scripts),
        scripts=scripts,
    )


def _describe(settings: SchedulerSettings) -> str:
    hardware = settings.hardware
    return f"{hardware.decode_slots} slots, ticks of {hardware.tick_s * 1000:g} ms"


@click.command(
    short_help="The same on a virtual clock.",
    epilog="Example: tokentick simulate toy --preset busy --policy chunked",
)
@ledger_options
@shaping_options
@scheduler_options(list(POLICIES))
@window_options
@click.option("--out", type=click.Path(path_type=Path), help="Run directory to make.  [default: under runs/]")
@recording_options
@require_option
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@plain_option()
@html_option("the run")
def simulate(**options: Any) -> Finished:
    """Run LEDGER (toy, or a trace file) through the scheduler on a virtual clock."""
    check_html(options["html"], made=options["out"])
    ledger = ledger_from(options)
    settings = scheduler_from(options)
    window = window_from(options)
    required = requirements_from(options["require"], window.slo, values(ledger.rows, "class_"))
    rate = request_rate(options)
    config = RunConfig(
        request_rate=None if rate is None or rate == "inf" else float(rate),
        speed=float(options["speed"]),
        arrival=options["arrival"],
        burstiness=burstiness(options),
        stages=options["stages"].words if options["stages"] else None,
        seed=options["seed"],
    )
    info = RunInfo(
        kind="simulated",
        command=command_line(),
        config=settings_config(config, settings, window),
        ledger=LedgerInfo(name=ledger.name, sha256=ledger.sha256(), requests=len(ledger.rows)),
        notes=ledger.notes,
    )
    writer = RunWriter(options["out"] or default_path("simulated", ledger.name), info)
    write_simulation(
        writer,
        ledger,
        settings,
        ticks=options["ticks"] == "all",
        record_tokens=options["record_tokens"],
        record_events=options["record_events"],
        tell=teller(silent=options["quiet"] or options["as_json"], plain=options["plain"]),
    )
    return Finished(
        writer.path,
        as_json=options["as_json"],
        quiet=options["quiet"],
        required=required,
        plain=options["plain"],
        html=options["html"],
    )
