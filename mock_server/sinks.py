"""Where tokens go: after the tick straight to a client's socket, or into an answer that is sent whole.

A sink never waits. What a slow reader does not take is kept up to a bound; beyond it the reader is cut off.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time

from aiohttp import web

from mock_server.scheduler import Rejection
from mock_server.sse import StreamEncoder

MAX_BEHIND_BYTES = 2**18  # some 1,500 tokens, on top of what the kernel holds
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a RST
RESET_LIMIT_S = 1.0


def hand_over(writes: list[tuple[int, bytes]]) -> list[tuple[int, int]]:
    """Write to each file its bytes, one right after the other: when (monotonic ns), and how many it took."""
    taken = []
    for file, data in writes:
        at_ns = time.monotonic_ns()
        try:
            taken.append((at_ns, os.write(file, data) if data else 0))
        except BlockingIOError:
            taken.append((at_ns, 0))
        except OSError:  # the client is gone, and the handler will be told
            taken.append((at_ns, len(data)))
    return taken


async def reset(transport: asyncio.Transport) -> None:
    """End the connection by a RST, once the kernel has what was written: a slow reader has a second."""
    deadline = time.monotonic() + RESET_LIMIT_S
    while transport.get_write_buffer_size() and time.monotonic() < deadline:
        await asyncio.sleep(0.005)
    if not transport.is_closing():
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        transport.abort()


async def write_out(request: web.Request, response: web.StreamResponse, limit_s: float) -> bool:
    """End an answer and wait until the kernel has all of it. False if that took too long: it is cut off."""
    transport = request.transport
    if transport is None or transport.is_closing():
        raise ConnectionResetError
    transport.set_write_buffer_limits(0)  # a drain is then one to the end
    try:
        async with asyncio.timeout(limit_s):
            await response.write_eof()
            await request.writer.drain()
    except TimeoutError:
        transport.abort()
        return False
    if not transport.is_closing():
        transport.set_write_buffer_limits()
    return True


class Sink:
    """What both sinks share.

    `fate` is done when the request has its place, or with why it was rejected; `ended` after the last token.
    `abort` ends the request without them.
    """

    file = -1
    cut_off = False

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.fate: asyncio.Future[Rejection | None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()

    def decided(self, rejection: Rejection | None) -> None:
        if not self.fate.done():
            self.fate.set_result(rejection)

    def token(self, index: int, last: bool) -> bytes | None:
        if last and not self.ended.done():
            self.ended.set_result(None)
        return b""

    def held_back(self, rest: bytes) -> None:
        """Only what is written can be held back."""

    def left(self) -> None:
        """The handler has ended: nobody waits for anything more."""

    def abort(self) -> None:
        self.fate.cancel()
        self.ended.cancel()


class Stream(Sink):
    """Each token is one HTTP chunk, past the transport's buffer if that is empty."""

    def __init__(self, transport: asyncio.Transport, encoder: StreamEncoder) -> None:
        super().__init__()
        self._transport = transport
        self._encoder = encoder
        self.file = transport.get_extra_info("socket").fileno()
        self._early: bytes | None = encoder.start()  # and tokens that come before the headers are out

    async def may_begin(self) -> None:
        """Wait until the headers may go out."""

    async def finish(self, request: web.Request, response: web.StreamResponse, limit_s: float) -> None:
        """All tokens are out: end the body, for which a slow reader has so long."""
        self.cut_off = not await write_out(request, response, limit_s) or self.cut_off

    def open(self) -> None:
        """The headers are out: from now on tokens may follow."""
        early, self._early = self._early, None
        if early:
            self._transport.write(early)

    def token(self, index: int, last: bool) -> bytes | None:
        data = self._encoder.token(index)
        if data is None:
            return None
        if last:
            data += self._encoder.end()
            super().token(index, last)
        if self._early is not None:
            self._early += data
            return b""
        transport = self._transport
        if transport.is_closing():
            return b""
        if behind_bytes := transport.get_write_buffer_size():
            self._queue(data, behind_bytes)
            return b""
        return data

    def held_back(self, rest: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(rest)

    def abort(self) -> None:
        self._transport.abort()
        super().abort()

    def _queue(self, data: bytes, behind_bytes: int) -> None:
        if behind_bytes > MAX_BEHIND_BYTES:
            self.cut_off = True
            self._transport.abort()
        else:
            self._transport.write(data)


class Answer(Sink):
    """An answer that is not streamed: it is sent when the last token is there."""

    async def finish(self, request: web.Request, response: web.Response, limit_s: float) -> web.Response:
        """Send the answer that is due, or what there is in its place."""
        await response.prepare(request)
        self.cut_off = not await write_out(request, response, limit_s)
        return response
