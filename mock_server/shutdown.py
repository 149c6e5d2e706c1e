"""When a server ends: asked to by a signal, or because it cannot go on."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web

from mock_server.openai import ApiError
from mock_server.refusals import Handler


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

    @web.middleware
    async def refuse_newcomers(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Connections that are kept may still bring requests when there is no time left for them."""
        if not self.asked.is_set():
            return await handler(request)
        error = ApiError("The server is shutting down", status=503, type="server_error", code="shutting_down")
        response = web.Response(status=503, body=error.body, content_type="application/json")
        response.force_close()
        return response

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A bug in a tick must not leave a server behind that answers and never ticks again."""
        loop.default_exception_handler(context)
        if "handle" in context:
            self.fail(context.get("exception") or RuntimeError(context["message"]))

    async def drain(self, idle: Callable[[], bool], grace_s: float) -> None:
        """Let what is in flight finish, for `grace_s` at most."""
        deadline = time.monotonic() + grace_s
        while not idle() and not self.at_once.is_set() and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
