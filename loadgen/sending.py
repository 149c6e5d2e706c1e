"""A process's part of a run: its share of the ledger, sent from here or from a worker."""

from __future__ import annotations

import asyncio

import msgspec

from ledgers.machine import loop_factory, make_room_for_connections
from ledgers.units import NS_PER_MS
from loadgen.pacing import Schedule
from loadgen.plan import Plan
from loadgen.prompts import RequestEncoder
from loadgen.replay import Replay
from loadgen.requests import Requests, Share
from loadgen.run_log import Log
from loadgen.target import Address
from loadgen.transport import Transport
from loadgen.workers import Done, Leader

_LEAST_CONNECT_AHEAD_NS = 50 * NS_PER_MS


def work(plan: Plan, share: Share, leader: Leader) -> None:
    """A worker's part of a run. It knows what the leader does, but for what the preflight will find."""

    async def replay_share() -> None:
        found, address = await leader.listen()
        make_room_for_connections()
        transport = plan.transport(address)
        try:
            replay = replay_of(plan, share, transport, found.applied_to(plan.encoder()), leader)
            obeying: list[asyncio.Task[None]] = []

            async def agree() -> int:
                t0_ns = await leader.agree()
                obeying.append(asyncio.create_task(leader.obey(replay.interrupt)))
                return t0_ns

            await replay.run(transport, agree)
            obeying[0].cancel()
            leader.done(done_by(replay, transport))
        finally:
            transport.close()

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(replay_share())


def replay_of(plan: Plan, share: Share, transport: Transport, encoder: RequestEncoder, log: Log) -> Replay:
    """What sends a share: it has its part of the connections, too."""
    rules = plan.rules
    requests = Requests(plan.ledger.rows, share, plan.id_prefix, closed=rules.closed, before=plan.before)
    transport.resent = transport.connections_opened = 0  # of the run, not of what came before
    replay = Replay(
        requests,
        _schedule(requests, transport.address),
        encoder,
        log,
        msgspec.structs.replace(rules, connections=share.of(rules.connections)),
        record_text=plan.record_text,
        count_text=plan.tokenizer is not None,
        scrub=plan.scrub,
        show=plan.show if share.step == 1 else lambda line: None,
    )
    transport.on_finished = replay.finished
    return replay


def done_by(replay: Replay, transport: Transport) -> Done:
    """What there is to say when it is through."""
    clock = transport.clock
    return Done(
        replay.left_out,
        transport.connections_opened,
        transport.resent,
        clock.unstamped,
        clock.largest_step_ns,
    )


def _schedule(requests: Requests, address: Address) -> Schedule:
    # A handshake takes up to three round trips (TCP, TLS), and connecting once has told how long one is.
    connect_ns = address.connect_ns or 0
    return Schedule(requests.arrivals_ns(), connect_ahead_ns=max(_LEAST_CONNECT_AHEAD_NS, 4 * connect_ns))
