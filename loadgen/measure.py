"""A measured run from end to end: preflight, warm-up, reset, t0, the loop, the run directory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ledgers import calibration_file
from ledgers.errors import InputError, TargetError
from ledgers.formats.native import write
from ledgers.ledger import Ledger
from ledgers.machine import make_room_for_connections
from ledgers.rows import CLIENT_LIMIT, without_plan
from ledgers.rundir import SERVER_METRICS_FILE, Clock, LedgerInfo, Run, RunInfo, RunWriter
from ledgers.units import NS_PER_MS
from ledgers.window import Window
from loadgen.alone import send_alone
from loadgen.interrupts import Interrupts
from loadgen.patience import Limit, Patience
from loadgen.plan import Plan
from loadgen.preflight import Found, preflight, unasked
from loadgen.prompts import RequestEncoder
from loadgen.recorder import Recorder, unsent
from loadgen.requests import Requests, Share
from loadgen.run_log import Log, RunLog, Values
from loadgen.scrape import Scraper
from loadgen.sending import done_by, replay_of
from loadgen.server_facts import Preflight, reset_mock
from loadgen.target import Address, find_address
from loadgen.transport import Transport
from loadgen.workers import Crew, Done, Lost

LEDGER_FILE = "ledger.jsonl"
_PROBE_S = 30.0  # the longest that a probe of the preflight may take for its next token
_START_LEAD_NS = 20 * NS_PER_MS


class Result(msgspec.Struct):
    """How the run went, beyond its rows, and what was noted before it began."""

    interrupted: bool
    completed: int
    unanswered: int
    notes: list[str]


async def measure(plan: Plan, crew: Crew | None = None) -> Result:
    """Run it, here or by a crew. The directory is whole when this returns.

    TargetError comes before anything is written.
    """
    make_room_for_connections()
    address = await find_address(plan.target, plan.connect_timeout_s, probe=plan.preflight)
    transport = plan.transport(address)
    scraper = None if plan.scrape is None else Scraper(plan.scrape, _preflight_of(plan))
    try:
        found = await _found(plan, transport)
        encoder = found.applied_to(plan.encoder())
        plan.config.model = plan.scrub(found.model)
        plan.config.extra |= _how_it_asks(found, plan.prompt_seed)
        await _warm_up(plan, transport, encoder)
        if plan.reset_mock:
            await reset_mock(_preflight_of(plan))
        if scraper is not None:
            await scraper.open()
        return await _replay(plan, transport, encoder, found, crew, scraper)
    finally:
        if scraper is not None:
            scraper.close()
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
    encoder = plan.encoder()
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


async def _warm_up(plan: Plan, transport: Transport, encoder: RequestEncoder) -> None:
    """The smallest request of the ledger, several times in turn, not recorded. TargetError when one fails."""
    if not plan.warm_ups:
        return
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


async def _replay(
    plan: Plan,
    transport: Transport,
    encoder: RequestEncoder,
    found: Found,
    crew: Crew | None,
    scraper: Scraper | None,
) -> Result:
    rows = plan.ledger.rows
    said = scraper.notes if scraper is not None else []
    notes = [*plan.ledger.notes, *found.notes, *said]
    for note in notes:
        plan.show(f"note: {note}")
    info = _info(plan, transport, found)
    info.notes += said
    writer = RunWriter(plan.out, info)
    if scraper is not None and not scraper.notes:
        writer.open_files(SERVER_METRICS_FILE)
    if plan.ledger.made:
        _save_ledger(plan.out / LEDGER_FILE, plan.ledger)
    log = RunLog(
        writer,
        window=None if plan.rules.closed else _window(plan),
        record_tokens=plan.record_tokens,
        count_text=None if plan.tokenizer is None else plan.tokenizer.count,
        scheduled=len(rows),
        show=plan.show if plan.show_progress else None,
    )
    start = _Start(info, writer, log, scraper)
    complete, done = False, Done()
    with Interrupts() as interrupts:
        try:
            if crew is None:
                done = await _send_here(plan, transport, encoder, log, start, interrupts)
            else:
                known = (found, transport.address)
                done, lost = await _send_by(crew, known, log, start, interrupts, plan.show)
                for worker in lost:
                    _note_lost(plan, worker, start, log)
            log.finish()
            if scraper is not None:
                await scraper.finish()
            complete = True
        finally:
            info.target = {**found.facts, **_connection_facts(transport.address, done)}
            info.notes += _notes(transport.clock.source, done)
            if done.left_out:
                info.notes.append(
                    f"not begun when --duration was over: {done.left_out} requests of the ledger"
                )
                info.ledger.requests = len(rows) - done.left_out
            writer.close(complete=complete, interrupted=interrupts.count > 0)
    return Result(interrupts.count > 0, log.outcomes["completed"], log.unanswered, notes)


def _window(plan: Plan) -> Window[Values]:
    rows = plan.ledger.rows
    return Window(rows[-1].arrival_ns or 0, plan.config.tail_s, grows=plan.before is not None)


class _Start:
    """Fixes t0, and writes it down before the first request leaves."""

    def __init__(self, info: RunInfo, writer: RunWriter, log: RunLog, scraper: Scraper | None) -> None:
        self.t0_ns = 0
        self._info, self._writer, self._log, self._scraper = info, writer, log, scraper
        # Replacing run.json takes a descriptor, and by then connections may have taken all others.
        self._spare = os.open(os.devnull, os.O_RDONLY)

    async def agree(self) -> int:
        os.close(self._spare)
        lead_ns = _START_LEAD_NS
        while True:
            self.t0_ns = time.monotonic_ns() + lead_ns
            t0_unix_ns = time.time_ns() + self.t0_ns - time.monotonic_ns()
            self._info.clock.t0_monotonic_ns, self._info.clock.t0_unix_ns = self.t0_ns, t0_unix_ns
            self._writer.save_info()
            if time.monotonic_ns() < self.t0_ns - _START_LEAD_NS // 2:
                self._log.start(t0_unix_ns)
                if self._scraper is not None:
                    self._scraper.start(self.t0_ns, partial(self._writer.add_lines, SERVER_METRICS_FILE))
                return self.t0_ns
            lead_ns *= 2  # a slow disk must not make the first requests late


async def _send_here(
    plan: Plan,
    transport: Transport,
    encoder: RequestEncoder,
    log: Log,
    start: _Start,
    interrupts: Interrupts,
) -> Done:
    replay = replay_of(plan, Share(), transport, encoder, log)
    interrupts.tell = replay.interrupt
    await replay.run(transport, start.agree)
    return done_by(replay, transport)


async def _send_by(
    crew: Crew,
    known: tuple[Found, Address],
    log: Log,
    start: _Start,
    interrupts: Interrupts,
    show: Callable[[str], None],
) -> tuple[Done, list[Lost]]:
    def tell() -> None:
        crew.interrupt()
        if interrupts.count == 1:
            show("interrupted: waiting for what is in flight; once more cuts it off")

    await crew.begin(known)
    crew.start(await start.agree())
    interrupts.tell = tell
    for _ in range(interrupts.count):  # while they made themselves ready
        crew.interrupt()
    return await crew.run(log)


def _note_lost(plan: Plan, lost: Lost, start: _Start, log: RunLog) -> None:
    """The requests of a worker that died, so far as it reported none of them, get their rows."""
    plan.show(f"{lost.why}: its requests are lost, the run went on")
    written = {row.id for row in Run(plan.out).rows()}
    requests = Requests(
        plan.ledger.rows, lost.share, plan.id_prefix, closed=plan.rules.closed, before=plan.before
    )
    why = CLIENT_LIMIT + lost.why
    waiting = set(requests.behind.values())
    for index, row in enumerate(requests):
        if row.id in written:
            continue
        if index in waiting:  # when it was let go, if it was, nobody knows any more
            log.add(without_plan(row, arrival_ns=None, outcome="unfinished", error=why))
        else:
            begun = start.t0_ns + (row.arrival_ns or 0) <= lost.died_ns
            log.add(without_plan(row, outcome="unfinished", error=why) if begun else unsent(row, why))


def _save_ledger(path: Path, ledger: Ledger) -> None:
    """So that what was drawn can be replayed as it was. InputError if it cannot be written."""
    try:
        write(path, ledger.rows)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def _info(plan: Plan, transport: Transport, found: Found) -> RunInfo:
    ledger = plan.ledger
    event_loop = type(transport.loop).__module__.partition(".")[0]
    calibration, notes = calibration_file.load(event_loop)
    info = RunInfo(
        kind="measured",
        command=[plan.scrub(word) for word in plan.command],
        config=plan.config,
        ledger=LedgerInfo(name=ledger.name, sha256=ledger.sha256(), requests=len(ledger.rows)),
        clock=Clock(stamp_source=transport.clock.source),
        target=dict(found.facts),
        calibration=calibration,
        notes=[*ledger.notes, *found.notes, *notes],
    )
    info.config.extra["workers"] = plan.workers
    info.config.extra["event_loop"] = event_loop
    if plan.scrape is not None:
        info.config.extra["scrape"] = {
            "url": plan.scrub(plan.scrape.url),
            "interval_s": plan.scrape.interval_s,
        }
    return info


def _connection_facts(address: Address, done: Done) -> dict[str, Any]:
    return {
        "address": ":".join(map(str, address.sockaddr[:2])),
        "connections_opened": done.connections_opened,
        "resent_on_dead_connection": done.resent,
    }


def _notes(source: str, done: Done) -> list[str]:
    notes = []
    if done.resent:
        notes.append(f"requests sent twice, because a kept connection turned out dead: {done.resent}")
    if source == "kernel" and done.unstamped:
        notes.append(f"reads without a kernel stamp, dated when they were done: {done.unstamped}")
    if done.largest_step_ns > NS_PER_MS:
        notes.append(f"the wall clock was set by {done.largest_step_ns / NS_PER_MS:.1f} ms during the run")
    return notes
