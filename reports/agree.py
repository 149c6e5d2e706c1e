"""Runs an agreement: a mock server and a load generator as processes, two simulations, one comparison.

The directory of a policy holds the planned ledger and four run directories: `served`, `measured`, `simulated`
(from the plan) and `resimulated` (from what the server received).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ledgers.errors import InputError, TargetError
from ledgers.formats.native import write
from ledgers.ledger import Ledger
from ledgers.metrics import NEVER
from ledgers.rows import RequestRow
from ledgers.rundir import (
    LedgerInfo,
    Run,
    RunConfig,
    RunInfo,
    RunWriter,
    command_line,
    file_stem,
    make_empty,
    settings_config,
    write_json,
)
from ledgers.settings import SchedulerSettings, WindowSettings
from ledgers.traffic import traffic_toml
from ledgers.units import NS_PER_MS, NS_PER_S, seconds
from mock_server.policies import make_scheduler
from mock_server.simulate import served_inputs
from mock_server.simulation import write_simulation
from reports.agreement import Agreement, Verdict, compare
from reports.processes import load_generator, mock_server
from reports.show import read_summary
from reports.sides import Inputs, Side, on_clock

WARM_UPS = 3
HARDWARE_FILE = "hardware.toml"
CLASSES_FILE = "classes.toml"


class Replay(msgspec.Struct, frozen=True):
    """One ledger under one policy, replayed and simulated into `out`."""

    ledger: Ledger
    settings: SchedulerSettings
    window: WindowSettings
    out: Path
    seed: int = 0
    stall_limit_ns: int = NS_PER_S // 4


def agree(replay: Replay) -> Agreement:
    """Serve, measure, simulate twice, compare; writes everything below `replay.out`.

    InputError if `out` cannot be used, TargetError if a process does not do its part.
    """
    planned_path = write_planned(replay)
    with mock_server(serve_arguments(replay)) as url:
        load_generator(_run_arguments(replay, planned_path, url))
    _simulate(replay, "simulated", replay.ledger, {})
    served = Run(replay.out / "served")
    requests, cancels = served_inputs(served.rows())
    if not requests:
        raise TargetError("no request reached the mock server, so there is nothing to compare")
    received = Ledger(name=f"{replay.ledger.name} as received", rows=requests)
    _simulate(replay, "resimulated", received, cancels)
    agreement = compare(_inputs(replay))
    write_json(replay.out / "agreement.json", agreement)
    return agreement


def overall(verdicts: list[Verdict]) -> Verdict:
    """The worst: one disagreement is a disagreement, one inconclusive run leaves the question open."""
    for verdict in ("disagree", "inconclusive"):
        if verdict in verdicts:
            return verdict
    return "agree"


def write_planned(replay: Replay) -> Path:
    """What the processes are given: the ledger with its final arrivals (native format), hardware, classes."""
    path = replay.out / f"{file_stem(Path(replay.ledger.name).stem)}.jsonl"
    make_empty(replay.out)
    try:
        write(path, replay.ledger.rows)
        fields = msgspec.structs.asdict(replay.settings.hardware)
        toml = "".join(f"{name} = {value!r}\n" for name, value in fields.items())
        (replay.out / HARDWARE_FILE).write_text(toml)
        if replay.settings.policy == "classes":
            (replay.out / CLASSES_FILE).write_text(traffic_toml(replay.settings.traffic), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{error.filename or path}: {error.strerror}") from None
    return path


def serve_arguments(replay: Replay) -> list[str]:
    settings = replay.settings
    limits = {"--max-queue": settings.max_queue, "--max-model-len": settings.max_model_len}
    return [
        f"--policy={settings.policy}",
        f"--max-batch={settings.max_batch}",
        f"--max-wait={seconds(settings.max_wait_ns)}",
        f"--prefill-chunk={settings.prefill_chunk}",
        f"--hardware={replay.out / HARDWARE_FILE}",
        *([f"--classes={replay.out / CLASSES_FILE}"] if settings.policy == "classes" else []),
        *(f"{flag}={limit}" for flag, limit in limits.items() if limit is not None),
        f"--out={replay.out / 'served'}",
        "--record-tokens",
        "--record-events",
        *window_arguments(replay.window),
    ]


def _run_arguments(replay: Replay, planned: Path, url: str) -> list[str]:
    return [
        str(planned),
        f"--base-url={url}",
        f"--seed={replay.seed}",
        f"--out={replay.out / 'measured'}",
        f"--num-warmups={WARM_UPS if any_fits(replay) else 0}",
        "--reset-mock",
        "--record-tokens",
        "--no-cut",
        *window_arguments(replay.window),
    ]


def any_fits(replay: Replay) -> bool:
    """Whether the mock will take any request at all; a warm-up that it refuses would end the run."""
    scheduler = make_scheduler(replay.settings)
    return any(row.prompt_tokens + row.output_tokens <= scheduler.max_model_len for row in replay.ledger.rows)


def window_arguments(window: WindowSettings) -> list[str]:
    slo = {"ttft": window.slo.ttft_ms, "tpot": window.slo.tpot_ms, "e2e": window.slo.e2e_ms}
    words = [f"{name}:{bound!r}" for name, bound in slo.items() if bound is not None]
    tail = "drain" if window.tail_ns == "drain" else seconds(window.tail_ns)
    trim = {"warmup": window.warmup_s, "cooldown": window.cooldown_s}
    cuts = [f"--{name}={value}" for name, value in trim.items() if value is not None]
    return [f"--tail={tail}", *cuts, *([f"--goodput={' '.join(words)}"] if words else [])]


def _simulate(replay: Replay, name: str, ledger: Ledger, cancels: dict[str, int]) -> None:
    info = RunInfo(
        kind="simulated",
        command=command_line(),
        config=settings_config(RunConfig(), replay.settings, replay.window),
        ledger=LedgerInfo(name=ledger.name, sha256=ledger.sha256(), requests=len(ledger.rows)),
    )
    writer = RunWriter(replay.out / name, info)
    write_simulation(writer, ledger, replay.settings, cancels=cancels, record_events=True)


def _inputs(replay: Replay) -> Inputs:
    """All ledgers under the planned ids, the measured one brought to the clock of the tick grid."""
    served, measured = Run(replay.out / "served"), Run(replay.out / "measured")
    for run in (served, measured):
        if not run.info.complete or run.info.interrupted:
            raise TargetError(f"{run.path}: this run did not come to its end, so nothing can be compared")
    anchor_ns, t0_ns = served.info.clock.t0_monotonic_ns, measured.info.clock.t0_monotonic_ns
    if anchor_ns is None or t0_ns is None:
        raise TargetError(f"{replay.out}: the two runs cannot be brought to one clock")
    rows = list(measured.rows())
    id_of = planned_ids(served, rows)
    client = read_summary(measured.path)["client"] or {}
    planned = side(Run(replay.out / "simulated"), {})
    return Inputs(
        order=_order(replay.ledger, planned),
        planned=planned,
        served=side(served, id_of),
        resimulated=side(Run(replay.out / "resimulated"), id_of),
        measured={row.id: on_clock(row, t0_ns - anchor_ns) for row in rows},
        settings=replay.settings,
        slo=replay.window.slo,
        tail_ns=None if replay.window.tail_ns == "drain" else replay.window.tail_ns,
        client_lag_max_ns=_client_lag_ns(client),
        client_limits=client.get("reasons", []),
        stall_limit_ns=replay.stall_limit_ns,
    )


def planned_ids(served: Run, measured: Sequence[RequestRow]) -> dict[str, str]:
    """By the server's id of a request the id that it has in the plan."""
    planned_id = {row.request_id: row.id for row in measured if row.request_id}
    return {row.id: planned_id.get(row.request_id or "", row.id) for row in served.rows()}


def _order(ledger: Ledger, planned: Side) -> list[str]:
    """As they arrive by the plan: where turns wait for answers, only the simulation knows."""
    arrivals = {id: row.arrival_ns for id, row in planned.rows.items() if row.arrival_ns is not None}
    return sorted((row.id for row in ledger.rows), key=lambda id: arrivals.get(id, NEVER))


def side(run: Run, id_of: dict[str, str]) -> Side:
    """The rows under their planned ids; one that came a second time keeps its own."""
    rows: dict[str, RequestRow] = {}
    for row in run.rows():
        planned_id = id_of.get(row.id, row.id)
        row.id = row.id if planned_id in rows else planned_id
        rows[row.id] = row
    return Side(rows, {tick.tick: tick for tick in run.ticks()})


def _client_lag_ns(client: dict[str, Any]) -> int:
    """The longest that the load generator was late, in sending or in its event loop."""
    lags = [lag["max"] for lag in (client.get("send_lag_ms"), client.get("loop_lag_max_ms")) if lag]
    return round(max(lags, default=0.0) * NS_PER_MS)
