"""A live run's events as a stream that a browser's EventSource reads, and can take up again."""

from __future__ import annotations

import asyncio
import contextlib

from aiohttp import web

from ledgers.rows import encode
from reports.lab.live import LiveRun
from reports.lab.refusals import TooManyError

HEARTBEAT_S = 15.0
MOST_STREAMS = 16


class Streams:
    """At most so many at a time."""

    def __init__(self) -> None:
        self._open = 0

    async def send(self, request: web.Request, run: LiveRun) -> web.StreamResponse:
        """From the beginning, or after the event that the browser saw last."""
        sent = min(_seen(request.headers.get("Last-Event-ID", "")), len(run.events))
        if run.over and sent == len(run.events):
            return web.Response(status=204)  # so that an EventSource does not ask again
        if self._open >= MOST_STREAMS:
            raise TooManyError("too many follow the run already")
        self._open += 1
        try:
            return await _send(request, run, sent)
        finally:
            self._open -= 1


def _seen(last_id: str) -> int:
    return int(last_id) if last_id.isascii() and last_id.isdigit() and len(last_id) < 9 else 0


async def _send(request: web.Request, run: LiveRun, sent: int) -> web.StreamResponse:
    response = web.StreamResponse()
    response.content_type, response.charset = "text/event-stream", "utf-8"
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):  # the page is gone; the run goes on
        while True:
            for number, (name, data) in enumerate(run.events[sent:], sent + 1):
                await response.write(
                    b"id: %d\nevent: %b\ndata: %b\n\n" % (number, name.encode(), encode(data))
                )
                sent = number
            if run.over and sent >= len(run.events):
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await run.more_than(sent)
                continue
            await response.write(b": still there\n\n")
        await response.write_eof()
    return response
