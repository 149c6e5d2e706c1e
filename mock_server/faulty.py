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
from mock_server.sinks import MAX_BEHIND_BYTES, Answer, Stream, reset
from mock_server.sse import PLAIN, StreamEncoder, Style

_TEXT = re.compile(rb'"(content|text|reasoning|reasoning_content)":"(?=[^"])')
_MESSAGES = {
    429: ("Too many requests for now; this answer was asked for as a fault", "rate_limit_exceeded"),
    500: ("The server failed; this answer was asked for as a fault", "server_error"),
    503: ("The server is overloaded; this answer was asked for as a fault", "service_unavailable"),
}


def http_error(fault: Fault, headers: dict[str, str]) -> web.Response:
    """The answer that is nothing but a status of error."""
    status = fault.http_status or 500
    if status != 500:
        headers = {**headers, "Retry-After": str(fault.retry_after)}
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
    """Encodes a stream in which one event is damaged, the usage is wrong, or an error is the end."""

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
        self._fault = fault  # first: the base encodes what does not change, usage included
        super().__init__(generation, id, created, style, chunked=chunked)
        self._output_tokens = generation.output_tokens
        self._damages = fault.kind in ("malformed-event", "broken-utf8")

    def token(self, index: int) -> bytes | None:
        data = super().token(index)
        if self._fault.kind == "error-event" and index + 1 == self._fault.after < self._output_tokens:
            return (data or b"") + self.error()
        if self._damages and data and index >= self._fault.after:
            whole = data
            data = damaged(whole, self._fault.kind)
            self._damages = data == whole  # it had no text that could be damaged: the next one will have
        return data

    def _usage(self, emitted: int) -> dict[str, Any]:
        by = self._fault.by if self._fault.kind == "wrong-usage" else 0
        return super()._usage(max(0, emitted + by))

    def error(self) -> bytes:
        return self._frame(b"data: " + _error(500).body + b"\n\n")


class Faulty:
    """What both sinks share: a request that leaves with one of its tokens, as if its client had left.

    `leave` takes its place in the scheduler from it; from inside a tick, by the next one.
    """

    fault: Fault
    leave: Callable[[bool], None]
    ended: asyncio.Future[None]
    over = False

    def _strikes(self, index: int, last: bool) -> bool:
        return index + 1 == self.fault.after and not last and not self.over

    def _end_early(self, *, in_tick: bool) -> None:
        self.over = True
        self.leave(in_tick)
        if not self.ended.done():
            self.ended.set_result(None)


class FaultyStream(Faulty, Stream):
    """A stream that stalls, begins late, is cut or ends in an error; damage is its encoder's."""

    def __init__(self, transport: asyncio.Transport, encoder: FaultyEncoder, fault: Fault) -> None:
        super().__init__(transport, encoder)
        self.fault = fault
        self._errors = encoder
        self._opened = False
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
        if self.fault.after == 0 and not self.over:
            self._strike(in_tick=False)
            if self.fault.kind == "error-event":
                self.held_back(self._errors.error())

    def token(self, index: int, last: bool) -> bytes | None:
        if self.over:  # the scheduler has not yet been told
            return b""
        data = super().token(index, last)
        if self._strikes(index, last):
            self._strike(in_tick=True)
        if self._early is not None and len(self._early) > MAX_BEHIND_BYTES:
            self.cut_off = True
            self._transport.abort()
        return data

    async def finish(self, response: web.StreamResponse) -> None:
        await self._flowing.wait()
        if self.over and self.fault.kind == "cut":
            await reset(self._transport)
        else:
            await super().finish(response)

    def _strike(self, *, in_tick: bool) -> None:
        if self.fault.kind == "stall":
            self._stall()
        elif self.fault.ends_early:
            self._end_early(in_tick=in_tick)

    def _stall(self) -> None:
        self._flowing.clear()
        if self._early is None:
            self._early = b""
        self._timer = asyncio.get_running_loop().call_later(self.fault.seconds, self._flow)

    def left(self) -> None:
        """A client that does not wait for the end of a stall leaves nothing behind."""
        if self._timer is not None:
            self._timer.cancel()

    def _flow(self) -> None:
        if self._opened and not self._transport.is_closing():
            super().open()
        self._flowing.set()


class FaultyAnswer(Faulty, Answer):
    """An answer in one piece that comes late, damaged, as an error, or not at all."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault = fault

    def begin(self) -> None:
        if self.fault.after == 0 and self.fault.ends_early:
            self._end_early(in_tick=False)

    def token(self, index: int, last: bool) -> bytes | None:
        if self.fault.ends_early and self._strikes(index, last):
            self._end_early(in_tick=True)
        return b"" if self.over else super().token(index, last)

    async def finish(self, request: web.Request, response: web.Response) -> web.Response:
        fault = self.fault
        if self.over and fault.kind == "error-event":
            return http_error(fault, {"X-Request-Id": response.headers["X-Request-Id"]})
        if self.over and request.transport is not None:
            await reset(request.transport)
        elif fault.kind in ("stall", "slow-first-byte"):
            await asyncio.sleep(fault.seconds)
        elif fault.kind in ("malformed-event", "broken-utf8") and isinstance(response.body, bytes):
            response.body = damaged(response.body, fault.kind)
        return response
