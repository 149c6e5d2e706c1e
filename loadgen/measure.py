"""A measured run from end to end: preflight, warm-up, reset, t0, the loop, the run directory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from ledgers.errors import InputError, TargetError
from ledgers.formats.native import write
from ledgers.ledger import Ledger
from ledgers.machine import make_room_for_connections
from ledgers.metrics import NEVER, window_end_ns
from ledgers.rows import RequestRow
from ledgers.rundir import Clock, LedgerInfo, RunConfig, RunInfo, RunWriter
from ledgers.units import NS_PER_MS
from loadgen.alone import send_alone
from loadgen.dialects.dialect import Dialect
from loadgen.pacing import Schedule
from loadgen.patience import Limit, Patience
from loadgen.preflight import Found, preflight, unasked
from loadgen.prompts import RequestEncoder
from loadgen.recorder import Recorder
from loadgen.replay import Replay, Rules
from loadgen.run_log import RunLog
from loadgen.server_facts import Preflight, reset_mock
from loadgen.target import Target, find_address
from loadgen.tokenizer import TokenCounter
from loadgen.transport import Transport
from loadgen.wording import Wording

LEDGER_FILE = "ledger.jsonl"
_PROBE_S = 30.0  # the longest that a probe of the preflight may take for its next token
_LEAST_CONNECT_AHEAD_NS = 50 * NS_PER_MS


class Plan(msgspec.Struct, kw_only=True):
    """Everything a measured run needs to know. `headers` carry the secrets; `config` must not."""

    ledger: Ledger
    out: Path
    command: list[str]
    config: RunConfig
    target: Target
    dialect: Dialect
    endpoint: str
    headers: Mapping[str, str]
    scrub: Callable[[str], str]
    id_prefix: str
    prompt_seed: int = 0
    model: str | None = None
    extra_body: Mapping[str, Any] = {}
    fields: frozenset[str] = frozenset()
    wording: Wording = Wording()
    insecure: bool = False
    ca_file: Path | None = None
    key_source: str | None = None
    preflight: bool = True
    warm_ups: int = 0
    reset_mock: bool = False
    connect_timeout_s: float = 30.0
    rules: Rules = Rules()
    tokenizer: TokenCounter | None = None
    record_tokens: bool = False
    record_text: bool = False
    show: Callable[[str], None] = lambda line: None


class Result(msgspec.Struct):
    """How the run went, beyond its rows."""

    interrupted: bool
    completed: int
    unanswered: int


async def measure(plan: Plan) -> Result:
    """Run it. The directory is whole when this returns; TargetError comes before anything is written."""
    make_room_for_connections()
    address = await find_address(plan.target, plan.connect_timeout_s, probe=plan.preflight)
    transport = Transport(
        plan.target,
        address,
        tls=plan.target.tls(insecure=plan.insecure, ca_file=plan.ca_file),
        connect_timeout_s=plan.connect_timeout_s,
    )
    try:
        found = await _found(plan, transport)
        encoder = found.applied_to(_encoder(plan))
        plan.config.model = plan.scrub(found.model)
        plan.config.extra |= _how_it_asks(found, plan.prompt_seed)
        await _warm_up(plan, transport, encoder)
        if plan.reset_mock:
            await reset_mock(_preflight_of(plan))
        return await _replay(plan, transport, encoder, found)
    finally:
        transport.close()


def _how_it_asks(found: Found, seed: int) -> dict[str, Any]:
    wording = found.wording
    return {
        "sent_fields": sorted(found.fields),
        "switched_off": found.switched_off,
        "streams": found.streams,
        "counts_tokens": found.counts_tokens,
        "prompts": {
            "seed": seed,
            "counted_by": found.wording_from,
            "overhead_tokens": wording.overhead,
            "words": len(wording.words),
            "tokens_per_word": float(wording.tokens_per_word),
        },
    }


async def _found(plan: Plan, transport: Transport) -> Found:
    encoder = _encoder(plan)
    if not plan.preflight:
        return unasked(encoder, plan.target.url, plan.tokenizer)
    first_token_s = plan.rules.patience.first_token_s
    return await preflight(
        _preflight_of(plan),
        transport,
        encoder,
        plan.ledger.rows,
        id_prefix=plan.id_prefix,
        timeout_s=min(_PROBE_S, plan.connect_timeout_s, first_token_s or _PROBE_S),
        tokenizer=plan.tokenizer,
    )


def _preflight_of(plan: Plan) -> Preflight:
    return Preflight(
        plan.target,
        plan.headers,
        plan.insecure,
        plan.connect_timeout_s,
        plan.scrub,
        plan.ca_file,
        plan.key_source,
    )


def _encoder(plan: Plan) -> RequestEncoder:
    return RequestEncoder(
        dialect=plan.dialect,
        target=plan.target,
        path=plan.target.path(plan.endpoint),
        headers=plan.headers,
        model=plan.model or "",
        seed=plan.prompt_seed,
        fields=plan.fields,
        wording=plan.wording,
        extra_body=plan.extra_body,
    )


async def _warm_up(plan: Plan, transport: Transport, encoder: RequestEncoder) -> None:
    """The smallest request of the ledger, several times in turn, not recorded. TargetError when one fails."""
    smallest = min(plan.ledger.rows, key=lambda row: row.prompt_tokens + row.output_tokens)
    for number in range(plan.warm_ups):
        row = msgspec.structs.replace(smallest, request_id=f"{plan.id_prefix}-warmup-{number}")
        recorder = Recorder(row, plan.dialect, choices=encoder.choices)
        patience, started_ns = plan.rules.patience, time.monotonic_ns()
        await send_alone(
            transport,
            recorder,
            encoder.encode(row, -1 - number),  # a prompt of its own
            partial(_limit, patience, started_ns, recorder),
        )
        ended = recorder.row(0, scrub=plan.scrub)
        if ended.outcome != "completed":
            why = " ".join((ended.error or str(ended.outcome)).split())
            raise TargetError(f"{plan.target.url}: warm-up request {number + 1}: {why}")


def _limit(patience: Patience, started_ns: int, recorder: Recorder) -> Limit | None:
    return patience.limit(started_ns, recorder.last_token_ns, cancels=False)


async def _replay(plan: Plan, transport: Transport, encoder: RequestEncoder, found: Found) -> Result:
    rows = [_planned(plan, row) for row in plan.ledger.rows]
    for note in (*plan.ledger.notes, *found.notes):
        plan.show(f"note: {note}")
    info = _info(plan, transport, found)
    writer = RunWriter(plan.out, info)
    if plan.ledger.made:
        _save_ledger(plan.out / LEDGER_FILE, plan.ledger)
    transport.resent = 0  # of the run, not of what came before
    t_obs_ns = window_end_ns(rows[-1].arrival_ns or 0, plan.config.tail_s)
    log = RunLog(
        writer,
        t_obs_ns=NEVER if plan.rules.closed else t_obs_ns,
        record_tokens=plan.record_tokens,
        record_text=plan.record_text,
        scrub=plan.scrub,
        count_text=None if plan.tokenizer is None else plan.tokenizer.count,
    )
    replay = Replay(
        rows,
        _schedule(rows, transport),
        encoder,
        log,
        plan.rules,
        record_output=plan.record_text or plan.tokenizer is not None,
        show=plan.show,
    )
    transport.on_finished = replay.finished

    # Replacing run.json takes a descriptor, and by then connections may have taken all others.
    spare = os.open(os.devnull, os.O_RDONLY)

    def started() -> None:
        os.close(spare)
        info.clock.t0_monotonic_ns, info.clock.t0_unix_ns = replay.t0_ns, replay.t0_unix_ns
        writer.save_info()

    complete = False
    try:
        await replay.run(transport, started)
        complete = True
    finally:
        info.target = {**found.facts, **_connection_facts(transport)}
        info.notes += _notes(transport)
        if replay.left_out:
            info.notes.append(f"not begun when --duration was over: {replay.left_out} requests of the ledger")
            info.ledger.requests = len(rows) - replay.left_out
        writer.close(complete=complete, interrupted=replay.interrupted)
    return Result(replay.interrupted, log.outcomes["completed"], log.unanswered)


def _save_ledger(path: Path, ledger: Ledger) -> None:
    """So that what was drawn can be replayed as it was. InputError if it cannot be written."""
    try:
        write(path, ledger.rows)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def _planned(plan: Plan, row: RequestRow) -> RequestRow:
    """A row of the ledger with the id that is sent; a closed loop has no use for its time."""
    return msgspec.structs.replace(
        row,
        request_id=f"{plan.id_prefix}-{header_safe(row.id)}",
        arrival_ns=None if plan.rules.closed else row.arrival_ns,
    )


def _schedule(rows: list[RequestRow], transport: Transport) -> Schedule:
    # A handshake takes up to three round trips (TCP, TLS), and connecting once has told how long one is.
    connect_ns = transport.address.connect_ns or 0
    return Schedule(
        [row.arrival_ns or 0 for row in rows],
        connect_ahead_ns=max(_LEAST_CONNECT_AHEAD_NS, 4 * connect_ns),
    )


def _info(plan: Plan, transport: Transport, found: Found) -> RunInfo:
    ledger = plan.ledger
    info = RunInfo(
        kind="measured",
        command=[plan.scrub(word) for word in plan.command],
        config=plan.config,
        ledger=LedgerInfo(name=ledger.name, sha256=ledger.sha256(), requests=len(ledger.rows)),
        clock=Clock(stamp_source=transport.clock.source),
        target=dict(found.facts),
        notes=[*ledger.notes, *found.notes],
    )
    info.config.extra["event_loop"] = type(transport.loop).__module__.partition(".")[0]
    return info


def _connection_facts(transport: Transport) -> dict[str, Any]:
    return {
        "address": ":".join(map(str, transport.address.sockaddr[:2])),
        "connections_opened": transport.connections_opened,
        "resent_on_dead_connection": transport.resent,
    }


def _notes(transport: Transport) -> list[str]:
    clock = transport.clock
    notes = []
    if transport.resent:
        notes.append(f"requests sent twice, because a kept connection turned out dead: {transport.resent}")
    if clock.source == "kernel" and clock.unstamped:
        notes.append(f"{clock.unstamped} of {clock.unstamped + clock.stamped} reads had no kernel stamp")
    if clock.largest_step_ns > NS_PER_MS:
        notes.append(f"the wall clock was set by {clock.largest_step_ns / NS_PER_MS:.1f} ms during the run")
    return notes


def header_safe(text: str) -> str:
    """An id as it can stand in a header: other characters than A-Z a-z 0-9 _ . - ~ are percent-encoded."""
    return quote(text, safe="", errors="surrogatepass")
