"""The server process: from a bound port to a complete run directory."""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections.abc import Callable
from functools import partial

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError

from ledgers.errors import InputError, StalledError
from ledgers.machine import few_collections, make_room_for_connections
from ledgers.rows import RequestRow, TickRow
from ledgers.rundir import RunWriter
from ledgers.settings import SchedulerSettings
from ledgers.units import NS_PER_MS
from mock_server.api import Server
from mock_server.connections import Connections
from mock_server.control import Control
from mock_server.engine import Engine
from mock_server.fault_choice import FaultChoice
from mock_server.generate import Generator
from mock_server.metrics import Metrics
from mock_server.policies import make_scheduler
from mock_server.refusals import expectations_known
from mock_server.serve_options import ServeOptions
from mock_server.served import ServedLedger
from mock_server.shutdown import Shutdown
from mock_server.sinks import hand_over
from mock_server.ticker import Ticker

BACKLOG = 4_096
SWITCH_S = 0.0005  # a tick waits so long for a thread that works, in place of Python's 5 ms


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. InputError if the address cannot be had."""
    if not host:
        raise InputError("--host: empty (127.0.0.1 for this machine only, 0.0.0.0 for every address)")
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        reason = reason.partition(" (while attempting to bind")[0]  # which would say the address again
        raise InputError(f"cannot listen on {host}:{port}: {reason}") from None


async def serve(
    listening: socket.socket,
    settings: SchedulerSettings,
    options: ServeOptions,
    writer: RunWriter | None,
    announce: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or SIGINT; a second one ends at once. `announce` gets the URL once it answers.

    Raises InputError when the run directory cannot be written, StalledError by `strict_ms`.
    """
    sys.setswitchinterval(SWITCH_S)
    shutdown = Shutdown()
    ledger = ServedLedger(writer, shutdown.fail)
    metrics = Metrics(make_scheduler(settings).max_model_len)

    def add_row(row: RequestRow) -> None:
        ledger.add(row)
        metrics.add_row(row)

    def on_tick(row: TickRow) -> None:
        late_ms = (row.late_ns or 0) / NS_PER_MS
        if options.strict_ms is not None and late_ms > options.strict_ms:
            late = f"tick {row.tick} ran {late_ms:.1f} ms late (--strict {options.strict_ms:g} ms)"
            shutdown.fail(StalledError(late))
        if options.record_ticks:
            ledger.add_tick(row)

    engine = Engine(
        lambda: make_scheduler(settings),
        time.monotonic_ns,
        hand_over,
        on_row=add_row,
        on_tick=on_tick,
        on_anchor=lambda anchor_ns: ledger.anchored(anchor_ns, time.monotonic_ns()),
        meter=metrics,
        record_tokens=options.record_tokens,
        record_events=options.record_events,
    )
    ticker = Ticker(engine, shutdown.fail)
    choice = FaultChoice(options.faults, options.scripts)
    control = Control(choice, options.scripts, partial(ledger.note, "faults"))
    generator = Generator(engine, ticker, control, options)
    server = Server(engine, ledger, generator, metrics, control, options)
    application = server.application()
    application.middlewares.insert(0, shutdown.refuse_newcomers)
    runner = web.AppRunner(
        application,
        handler_cancellation=True,  # a client that leaves gives up its place, queued or not
        shutdown_timeout=0.5,
    )
    await runner.setup()
    make_room_for_connections()  # before they are counted against what the system grants
    assert runner.server is not None
    runner.server.request_handler = expectations_known(runner.server.request_handler)
    connections = Connections(
        listening,
        runner.server,
        most=options.max_connections,
        request_timeout_s=options.request_timeout_s,
        before_each=ticker.check,
        counts=server.connections,
        access_log=None,
        keepalive_timeout=options.keep_alive_s,
        lingering_time=1.0,
    )
    logging.getLogger("aiohttp.server").addFilter(lambda record: not _clients_fault(record))
    shutdown.listen()
    announce(_url(listening))
    try:
        with few_collections():
            await shutdown.asked.wait()
            connections.close()
            await shutdown.drain(lambda: engine.idle and not generator.open_count, options.grace_s)
    finally:
        ticker.stop()
        engine.abandon()
        await runner.cleanup()
        engine.abandon()  # what came meanwhile on connections that were kept
        await ledger.close()
    if shutdown.failure:
        raise shutdown.failure


def _clients_fault(record: logging.LogRecord) -> bool:
    """A client that leaves, or does not speak HTTP, is no error of this server."""
    error = record.exc_info[1] if record.exc_info else None
    return isinstance(error, ConnectionError | HttpProcessingError | RequestPayloadError)


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
