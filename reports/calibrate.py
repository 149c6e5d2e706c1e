"""Runs a calibration: for each rung a mock server that knows the truth, and a load generator that is tried.

Both are processes of their own on this machine, so all their stamps are of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ledgers.calibration import PATTERNS, Calibration, Pattern, Rung
from ledgers.calibration_file import this_machine
from ledgers.errors import InputError, TargetError
from ledgers.formats.native import write
from ledgers.rows import RequestRow
from ledgers.rundir import Run, make_empty, tool_version, utc_now
from ledgers.settings import Hardware, SchedulerSettings
from ledgers.telling import Teller
from ledgers.units import seconds as exact_seconds
from reports.calibration import Driven, judged, planned, settings, truths
from reports.processes import load_generator, mock_server
from reports.show import read_summary


def calibrate(ladder: Sequence[int], seconds: float, out: Path, tell: Teller) -> Calibration:
    """Climb the ladder in each pattern, as far as the mock carries it; the run directories go to `out`.

    InputError if `out` cannot be used, TargetError if a process does not do its part.
    """
    rungs: list[Rung] = []
    event_loop = ""
    for place, pattern in enumerate(PATTERNS):
        for number, streams in enumerate(ladder, 1 + place * len(ladder)):
            text = f"{pattern}: {streams:,} {'stream' if streams == 1 else 'streams'} ..."
            tell.begun(text, number, len(PATTERNS) * len(ladder))
            work = make_empty(out / f"{pattern.replace(' ', '-')}-{streams}")
            rung, event_loop = _drive(pattern, streams, seconds, work)
            rungs.append(rung)
            if not rung.tells:
                break
    return Calibration(
        calibrated_at=utc_now(), version=tool_version(), machine=this_machine(event_loop), rungs=rungs
    )


def _drive(pattern: Pattern, streams: int, seconds: float, work: Path) -> tuple[Rung, str]:
    """One rung, and the event loop that the client had."""
    rows = planned(streams, seconds)
    scheduler = settings(pattern, streams)
    plan, machine = _write_plan(rows, scheduler.hardware, work)
    with mock_server(_serve_arguments(scheduler, machine, work)) as url:
        load_generator(_run_arguments(plan, url, work))
    served, measured = Run(work / "served"), Run(work / "measured")
    zeros = [run.info.clock.t0_monotonic_ns for run in (measured, served)]
    if None in zeros:
        raise TargetError(f"{work}: no request reached the mock server")
    extra = measured.info.config.extra
    sent = list(measured.rows())
    driven = Driven(
        requests=len(rows),
        rows=sent,
        truths=truths(served.rows(), sent, (zeros[0] or 0) - (zeros[1] or 0)),
        ticks_late_ns=[tick.late_ns or 0 for tick in served.ticks() if tick.emitted],
        client=read_summary(measured.path)["client"],
        workers=extra["workers"],
    )
    return judged(pattern, streams, driven), extra["event_loop"]


def _write_plan(rows: Sequence[RequestRow], hardware: Hardware, work: Path) -> tuple[Path, Path]:
    """The ledger, and the hardware of the mock."""
    plan, machine = work / "ledger.jsonl", work / "hardware.toml"
    fields = msgspec.structs.asdict(hardware)
    try:
        write(plan, rows)
        machine.write_text("".join(f"{name} = {value!r}\n" for name, value in fields.items()))
    except OSError as error:
        raise InputError(f"{error.filename or work}: {error.strerror}") from None
    return plan, machine


def _serve_arguments(scheduler: SchedulerSettings, machine: Path, work: Path) -> list[str]:
    return [
        f"--policy={scheduler.policy}",
        f"--max-batch={scheduler.max_batch}",
        f"--max-wait={exact_seconds(scheduler.max_wait_ns)}",
        f"--hardware={machine}",
        f"--out={work / 'served'}",
        "--record-tokens",
    ]


def _run_arguments(plan: Path, url: str, work: Path) -> list[str]:
    """As a user would run it, workers and all, but for what the preflight asks, which is known."""
    return [
        str(plan),
        f"--base-url={url}",
        f"--out={work / 'measured'}",
        "--seed=0",
        "--no-preflight",
        "--record-tokens",
    ]
