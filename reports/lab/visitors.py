"""The connections of the lab: so many at a time, and a first request that comes within its time.

What comes after the first request is aiohttp's to bound.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

MOST_VISITORS = 64
HEAD_LIMIT_S = 10.0
KEEP_ALIVE_S = 30.0


class Visitors:
    """Makes the protocol of each connection."""

    def __init__(self, server: web.Server, **settings: Any) -> None:
        self._server = server
        self._settings = settings
        self.count = 0

    def __call__(self) -> Visitor:
        loop = asyncio.get_running_loop()
        return Visitor(self, self._server, loop=loop, keepalive_timeout=KEEP_ALIVE_S, **self._settings)


class Visitor(RequestHandler):
    """aiohttp's protocol of one connection."""

    __slots__ = ("_slow", "_visitors")

    def __init__(self, visitors: Visitors, server: web.Server, **settings: Any) -> None:
        super().__init__(server, **settings)
        self._visitors = visitors
        self._slow: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._visitors.count += 1
        self._slow = self._loop.call_later(HEAD_LIMIT_S, self.force_close)
        if self._visitors.count > MOST_VISITORS:
            self.force_close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._request_count:
            self._in_time()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._visitors.count -= 1
        self._in_time()
        super().connection_lost(exc)

    def _in_time(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None
