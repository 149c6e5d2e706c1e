"""The command `tokentick lab`: a page on this machine only."""

from __future__ import annotations

import asyncio
import signal
import socket

import click
from aiohttp import web

from ledgers.errors import InputError
from reports.lab.app import Lab
from reports.lab.live import LiveRuns
from reports.lab.visitors import Visitors

HOST = "127.0.0.1"
DEFAULT_PORT = 8321
SHUTDOWN_S = 1.0


@click.command(
    short_help="The experiment as a page in the browser.", epilog="Example: tokentick lab --port 8321"
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="0 takes a free one.",
)
def lab(port: int) -> None:
    """Show the toy ledger under four policies in the browser, simulated and live. Ctrl-C ends it.

    The page is served to this machine only. A live run starts a mock server and a load generator as processes
    of their own, which end with it.
    """
    listening = listen(port)
    asyncio.run(serve(listening))


def listen(port: int) -> socket.socket:
    """InputError if the port cannot be had."""
    try:
        return socket.create_server((HOST, port), backlog=64)
    except OSError as error:
        raise InputError(
            f"--port {port}: {error.strerror} (another one: --port N, or 0 for a free one)"
        ) from None


async def serve(listening: socket.socket) -> None:
    """Until SIGTERM or Ctrl-C."""
    port: int = listening.getsockname()[1]
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ending.set)
    page = Lab(port, LiveRuns())
    runner = web.AppRunner(page.application(), shutdown_timeout=SHUTDOWN_S, handler_cancellation=True)
    await runner.setup()
    assert runner.server is not None
    server = await loop.create_server(Visitors(runner.server, access_log=None), sock=listening)
    click.echo(f"lab: http://{HOST}:{port}/ (Ctrl-C ends)")
    try:
        await ending.wait()
    finally:
        server.close()
        await page.close()
        await runner.cleanup()
