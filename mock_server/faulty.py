"""Answers that misbehave: damaged events, streams that stall, are cut or end in an error.

Time passes on timers of the loop, never inside a tick; what is held back meanwhile stays within the bound of
any stream.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from mock_server.faults import Fault
from mock_server.openai import ApiError, Generation
from mock_server.scheduler import Rejection
from mock_server.sinks import MAX_BEHIND_BYTES, Answer, Sink, Stream, reset
from mock_server.sse import PLAIN, StreamEncoder, Style

_TEXT = re.compile(rb'"(content|text|reasoning)":"(?=[^"])')
_MESSAGES = {
    429: ("Too many requests for now; this answer was asked for as a fault", "rate_limit_exceeded"),
    500: ("The server failed; this answer was asked for as a fault", "server_error"),
    503: ("The server is overloaded; this answer was asked for as a fault", "service_unavailable"),
}


def http_error(fault: Fault, headers: dict[str, str]) -> web.Response:
    """The answer that is nothing but a status of error."""
    status = fault.http_status or 500
    if fault.told_retry_after is not None:
        headers = {**headers, "Retry-After": str(fault.told_retry_after)}
    body = _error(status).body
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


def _error(status: int) -> ApiError:
    message, kind = _MESSAGES[status]
    return ApiError(message, status=status, type=kind, code=kind)


def told(generation: Generation, fault: Fault | None) -> Generation:
    """The generation whose usage the client is told."""
    if fault is None or fault.kind != "wrong-usage":
        return generation
    return msgspec.structs.replace(generation, output_tokens=max(0, generation.output_tokens + fault.by))


def damaged(data: bytes, kind: str) -> bytes:
    """Events or a body with one byte that is wrong; none more or less, so that the framing is right."""
    found = _TEXT.search(data)
    if found is None:
        return data
    at, wrong = (found.end(1) + 1, b"=") if kind == "malformed-event" else (found.end(), b"\xff")
    return data[:at] + wrong + data[at + 1 :]


class FaultyEncoder(StreamEncoder):
    """Encodes a stream in which one event is damaged, or the usage is wrong; `struck` when it was.

    The token before a fault ends its event, so that N tokens before it are N tokens that were sent.
    """

    def __init__(
        self,
        fault: Fault,
        generation: Generation,
        id: str,
        created: int,
        style: Style = PLAIN,
        *,
        chunked: bool = True,
    ) -> None:
        super().__init__(generation, id, created, style, chunked=chunked)
        self._fault = fault
        self._break = fault.strikes_after
        self._damages = fault.kind in ("malformed-event", "broken-utf8")
        self.struck = False

    def token(self, index: int) -> bytes | None:
        data = super().token(index)
        if data and self._damages and not self.struck and index >= self._fault.after:
            self.struck = True
            return damaged(data, self._fault.kind)
        return data

    def error(self) -> bytes:
        return self._frame(b"data: " + _error(500).body + b"\n\n")

    def _usage(self, emitted: int) -> dict[str, Any]:
        if self._fault.kind != "wrong-usage":
            return super()._usage(emitted)
        self.struck = True
        return super()._usage(max(0, emitted + self._fault.by))


class Faulty(Sink):
    """What both sinks share: when the fault strikes, and how a request leaves by it, as if its client had.

    `mark` has its row name the fault; `leave`, called inside a tick, gives up its place at the next one.
    """

    fault: Fault
    mark: Callable[[], None]
    leave: Callable[[], None]
    at_token: frozenset[str]
    """The kinds that strike with a token, or with its place in the queue where no token comes before them."""

    struck = False
    over = False
    """Nothing more is to be given to anybody."""

    def decided(self, rejection: Rejection | None) -> None:
        super().decided(rejection)
        if rejection is None and self._is_due(0):
            self._strike()

    def left(self) -> None:
        self.over = True

    def _is_due(self, tokens: int) -> bool:
        return self.fault.kind in self.at_token and tokens == self.fault.strikes_after and not self.over

    def _strike(self) -> None:
        self.struck = True
        self.mark()
        if self.fault.ends_early:
            self.over = True
            self.leave()
            if not self.ended.done():
                self.ended.set_result(None)


class FaultyStream(Faulty, Stream):
    """A stream that stalls, begins late, is cut or ends in an error; damage is its encoder's."""

    at_token = frozenset({"cut", "error-event", "stall", "slow-first-byte"})

    def __init__(self, transport: asyncio.Transport, encoder: FaultyEncoder, fault: Fault) -> None:
        super().__init__(transport, encoder)
        self.fault = fault
        self._faulty = encoder
        self._opened = False
        self._before = b""  # what came before a stall, and has yet to go out with the headers
        self._timer: asyncio.TimerHandle | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def may_begin(self) -> None:
        if self.fault.kind == "slow-first-byte":
            await asyncio.sleep(self.fault.seconds)

    def open(self) -> None:
        self._opened = True
        if self._flowing.is_set():
            super().open()
        elif self._before:
            self._transport.write(self._before)

    def token(self, index: int, last: bool) -> bytes | None:
        if self.over:  # the scheduler has not yet been told
            return b""
        data = super().token(index, last)
        if (self._faulty.struck and not self.struck) or (not last and self._is_due(index + 1)):
            self._strike()
        if self._early is not None and len(self._early) > MAX_BEHIND_BYTES:
            self.cut_off = True
            self._transport.abort()
        return data

    async def finish(self, request: web.Request, response: web.StreamResponse, limit_s: float) -> None:
        await self._flowing.wait()
        if self.struck and self.fault.kind == "cut":
            await reset(self._transport)
            return
        if self.struck and self.fault.kind == "error-event":
            self.held_back(self._faulty.error())
        await super().finish(request, response, limit_s)

    def left(self) -> None:
        """A client that does not wait for the end of a stall leaves nothing behind."""
        super().left()
        if self._timer is not None:
            self._timer.cancel()

    def _strike(self) -> None:
        super()._strike()
        if self.fault.kind == "stall":
            self._flowing.clear()
            self._before, self._early = self._early or b"", b""
            self._timer = asyncio.get_running_loop().call_later(self.fault.seconds, self._flow)

    def _flow(self) -> None:
        if not self._opened:
            self._early = self._before + (self._early or b"")
        elif not self._transport.is_closing():
            super().open()
        self._flowing.set()


class FaultyAnswer(Faulty, Answer):
    """An answer in one piece that comes late, damaged, as an error, or not at all."""

    at_token = frozenset({"cut", "error-event"})

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault = fault

    def token(self, index: int, last: bool) -> bytes | None:
        if not last:
            if self._is_due(index + 1):
                self._strike()
        elif not self.over and not self.fault.ends_early and self.fault.strikes_after <= index:
            self._strike()  # what is wrong will be wrong with the whole of it
        return b"" if self.over else super().token(index, last)

    async def finish(self, request: web.Request, response: web.Response, limit_s: float) -> web.Response:
        fault = self.fault
        if self.struck and fault.kind == "error-event":
            return http_error(fault, {"X-Request-Id": response.headers["X-Request-Id"]})
        if self.struck and fault.kind == "cut" and request.transport is not None:
            await reset(request.transport)
            return response
        if self.struck and fault.kind in ("stall", "slow-first-byte"):
            await asyncio.sleep(fault.seconds)
        elif self.struck and fault.kind in ("malformed-event", "broken-utf8"):
            assert isinstance(response.body, bytes)
            response.body = damaged(response.body, fault.kind)
        return await super().finish(request, response, limit_s)
