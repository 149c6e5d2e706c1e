"""The server process: from a bound port to a complete run directory."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
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
from mock_server.fault_choice import FaultChoice, FaultSettings
from mock_server.generate import Generator
from mock_server.keys import ApiKeys
from mock_server.metrics import Metrics
from mock_server.policies import make_scheduler
from mock_server.scripts import Script
from mock_server.served import ServedLedger
from mock_server.sinks import hand_over
from mock_server.sse import Style
from mock_server.ticker import Ticker

BACKLOG = 4_096
KEEPALIVE_S = 600.0


class ServeOptions(msgspec.Struct, frozen=True):
    """How to serve, besides the scheduler's settings.

    `strict_ms`: a tick that runs later than that ends the server.
    """

    model: str = "tokentick-mock"
    default_output_tokens: int = 16
    grace_s: float = 5.0
    request_timeout_s: float = 30.0
    max_connections: int = 16_384
    strict_ms: float | None = None
    record_tokens: bool = False
    record_events: bool = False
    record_ticks: bool = True
    style: Style = Style()
    keys: ApiKeys | None = None
    faults: FaultSettings = FaultSettings()
    scripts: dict[str, Script] = {}


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
        meter=metrics,
        record_tokens=options.record_tokens,
        record_events=options.record_events,
    )
    ticker = Ticker(engine)
    choice = FaultChoice(options.faults, options.scripts)
    control = Control(choice, options.scripts, partial(ledger.note, "faults"))
    generator = Generator(
        engine,
        ledger,
        ticker,
        control,
        style=options.style,
        default_output_tokens=options.default_output_tokens,
        request_timeout_s=options.request_timeout_s,
    )
    server = Server(
        engine,
        ledger,
        generator,
        metrics,
        control,
        model=options.model,
        keys=options.keys,
        request_timeout_s=options.request_timeout_s,
    )
    runner = web.AppRunner(
        server.application(),
        handler_cancellation=True,  # a client that leaves gives up its place, queued or not
        shutdown_timeout=0.5,
    )
    await runner.setup()
    assert runner.server is not None
    connections = Connections(
        listening,
        runner.server,
        most=options.max_connections,
        request_timeout_s=options.request_timeout_s,
        before_each=ticker.check,
        access_log=None,
        keepalive_timeout=KEEPALIVE_S,
        lingering_time=1.0,
    )
    make_room_for_connections()
    logging.getLogger("aiohttp.server").addFilter(lambda record: not _clients_fault(record))
    shutdown.listen()
    announce(_url(listening))
    try:
        with few_collections():
            await shutdown.asked.wait()
            connections.close()
            await _drain(engine, shutdown, options.grace_s)
    finally:
        ticker.stop()
        engine.abandon()
        await runner.cleanup()
        await ledger.close()
    if shutdown.failure:
        raise shutdown.failure


class Shutdown:
    """Why and how fast to end: `asked` once, `at_once` the second time."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.at_once = asyncio.Event()
        self.failure: BaseException | None = None

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.ask)
        loop.set_exception_handler(self._unhandled)

    def ask(self) -> None:
        if self.asked.is_set():
            self.at_once.set()
        self.asked.set()

    def fail(self, failure: BaseException) -> None:
        """Something cannot go on (a full disk): end at once, and say why."""
        self.failure = self.failure or failure
        self.asked.set()
        self.at_once.set()

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A bug in a tick must not leave a server behind that answers and never ticks again."""
        loop.default_exception_handler(context)
        if "handle" in context:
            self.fail(context.get("exception") or RuntimeError(context["message"]))


def _clients_fault(record: logging.LogRecord) -> bool:
    """A client that leaves, or does not speak HTTP, is no error of this server."""
    error = record.exc_info[1] if record.exc_info else None
    return isinstance(error, ConnectionError | HttpProcessingError | RequestPayloadError)


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _drain(engine: Engine, shutdown: Shutdown, grace_s: float) -> None:
    """Let what is in flight finish, for `grace_s` at most."""
    deadline = time.monotonic() + grace_s
    while not engine.idle and not shutdown.at_once.is_set() and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
