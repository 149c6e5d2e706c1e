"""Where tokens go: from inside the tick straight to a client's socket, or into an answer that is sent whole.

A sink never waits. What a slow reader does not take is kept up to a bound; beyond it the reader is cut off.
"""

from __future__ import annotations

import asyncio
import os

from mock_server.scheduler import Rejection
from mock_server.sse import StreamEncoder

MAX_BEHIND_BYTES = 2**18  # some 1,500 tokens, on top of what the kernel holds


class Sink:
    """What both sinks share.

    `fate` is done when the request has its place, or with why it was rejected; `ended` after the last token.
    `abort` ends the request without them.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.fate: asyncio.Future[Rejection | None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()

    def decided(self, rejection: Rejection | None) -> None:
        if not self.fate.done():
            self.fate.set_result(rejection)

    def token(self, index: int, last: bool) -> None:
        if last and not self.ended.done():
            self.ended.set_result(None)

    def abort(self) -> None:
        self.fate.cancel()
        self.ended.cancel()


class Stream(Sink):
    """Writes each token to the client's socket as one HTTP chunk, at once or not at all."""

    def __init__(self, transport: asyncio.Transport, encoder: StreamEncoder) -> None:
        super().__init__()
        self._transport = transport
        self._encoder = encoder
        self._fd: int = transport.get_extra_info("socket").fileno()
        self._early: bytes | None = b""  # tokens that came before the headers were out
        self.cut_off = False

    def open(self) -> None:
        """The headers are out: from now on tokens may follow."""
        early, self._early = self._early, None
        if early:
            self._send(early)

    def token(self, index: int, last: bool) -> None:
        data = self._encoder.token(index)
        if last:
            data += self._encoder.end()
        if self._early is None:
            self._send(data)
        else:
            self._early += data
        super().token(index, last)

    def abort(self) -> None:
        self._transport.abort()
        super().abort()

    def _send(self, data: bytes) -> None:
        """Past the transport's buffer if that is empty, so that the stamp taken before is the write's."""
        transport = self._transport
        if transport.is_closing():
            return
        behind_bytes = transport.get_write_buffer_size()
        if behind_bytes == 0:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                pass
            except OSError:
                return  # the client is gone, and the handler will be told
        if behind_bytes > MAX_BEHIND_BYTES:
            self.cut_off = True
            transport.abort()
        elif data:
            transport.write(data)


class Answer(Sink):
    """An answer that is not streamed: it is sent when the last token is there."""
