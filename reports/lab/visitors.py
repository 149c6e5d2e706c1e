"""The connections of the lab: so many at a time, heads that come in their time, and the shape of refusals.

What aiohttp refuses by itself, for it is no HTTP or nothing that the lab has, is JSON with the headers of all
other answers, and no word of it is printed. The lab's own failures are.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler, RequestPayloadError
from aiohttp.web_request import BaseRequest

from reports.lab.refusals import by_aiohttp, refused
from reports.lab.security import harden

MOST_VISITORS = 64
HEAD_LIMIT_S = 10.0
_MOST_SAID = 120


class Visitors:
    """Makes the protocol of each connection."""

    def __init__(self, server: web.Server, **settings: Any) -> None:
        self._server = server
        self._settings = settings
        self.count = 0

    def __call__(self) -> Visitor:
        """A connection that rests is closed as a slow one is: a head has its time from the answer before."""
        loop = asyncio.get_running_loop()
        return Visitor(self, self._server, loop=loop, keepalive_timeout=HEAD_LIMIT_S, **self._settings)


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
            if self.transport is not None:
                self.transport.write(_whole(refused(503, "there are too many connections")))
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

    async def finish_response(
        self, request: BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        answer = by_aiohttp(resp, request) if isinstance(resp, web.HTTPException) else resp
        return await super().finish_response(request, answer, start_time)

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Called by aiohttp for what it cannot parse, and for what the application does not catch."""
        super().handle_error(request, status, exc, message)
        said = "the lab failed; its terminal says more"
        if status < 500:
            why = (message or "").partition("\n")[0].rstrip(":")
            said = f"this cannot be read as a request: {why[:_MOST_SAID]}"
        refusal = refused(status, said)
        harden(refusal)
        refusal.force_close()
        return refusal

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """What a visitor sends is no failure of ours."""
        if not isinstance(kw.get("exc_info"), HttpProcessingError | RequestPayloadError):
            super().log_exception(*args, **kw)


def _whole(response: web.Response) -> bytes:
    """Status line, head and body at once, for a connection that is closed with it."""
    harden(response)
    assert isinstance(response.body, bytes)
    headers = {**response.headers, "Content-Length": len(response.body), "Connection": "close"}
    lines = [f"HTTP/1.1 {response.status} {response.reason}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + response.body
