"""Who may connect, and for how long a request may take to come: the server's guard against its clients.

aiohttp parses requests, keeps few of those that are pipelined, and bounds their heads. What it leaves open is
here: how many connections there are, how many are taken up in one turn of the loop (a thousand at once would
hold up every stream), how long half a request may stand, in what shape it refuses what is no HTTP, and how
many connections it has closed for which reason.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest

from ledgers.errors import InputError
from mock_server.intake import too_slow
from mock_server.openai import ApiError

_MOST_PER_TURN = 4
_FILES_OF_OUR_OWN = 64  # a refusal takes a file too
_MOST_SAID = 200
_REST_S = 0.05  # when the process is out of files, until it looks again

_FULL = ApiError("too many connections", status=503, type="server_error", code="too_many_connections")


class ConnectionCounts(msgspec.Struct):
    """Connections that are open, and how many the server has closed by itself, by the reason."""

    open: int = 0
    too_many: int = 0
    too_slow: int = 0
    idle: int = 0


class Connections:
    """Takes up connections on a listening socket, a few per turn of the loop."""

    def __init__(
        self,
        listening: socket.socket,
        manager: web.Server,
        *,
        most: int,
        request_timeout_s: float,
        before_each: Callable[[], None],
        counts: ConnectionCounts,
        **settings: Any,
    ) -> None:
        """At most so many at a time. `before_each` is called before each read is looked at: clients that all
        send at once hold up nothing. `settings` are those of aiohttp's RequestHandler. InputError if the
        system grants too few files.
        """
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._manager = manager
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if files == resource.RLIM_INFINITY:
            files = most + _FILES_OF_OUR_OWN
        if files <= _FILES_OF_OUR_OWN:
            raise InputError(f"open files: {files} are too few for a server (ulimit -n)")
        self._most = min(most, files - _FILES_OF_OUR_OWN)
        self._settings = settings
        self.request_timeout_s = request_timeout_s
        self.before_each = before_each
        self.counts = counts
        self._taking_up: set[asyncio.Task[Any]] = set()
        listening.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Take up no more."""
        self._loop.remove_reader(self._listening.fileno())
        self._listening.close()

    def _listen(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_MOST_PER_TURN):
            try:
                accepted, _ = self._listening.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                return
            except OSError:  # out of files: those that wait are taken up when others have gone
                self._loop.remove_reader(self._listening.fileno())
                self._loop.call_later(_REST_S, self._listen)
                return
            accepted.setblocking(False)
            if self.counts.open >= self._most:
                self.counts.too_many += 1
                with suppress(OSError):
                    accepted.send(_plain_refusal(_FULL))
                accepted.close()
                continue
            task = self._loop.create_task(self._loop.connect_accepted_socket(self._make, accepted))
            self._taking_up.add(task)
            task.add_done_callback(self._taken_up)
            self.counts.open += 1

    def _taken_up(self, task: asyncio.Task[Any]) -> None:
        self._taking_up.discard(task)
        if task.cancelled() or task.exception() is not None:
            self.counts.open -= 1  # nobody else will say that it is lost

    def _make(self) -> Connection:
        return Connection(self, self._manager, loop=self._loop, **self._settings)


class Connection(RequestHandler):
    """aiohttp's protocol of one connection, with a limit to how long half a head may stand."""

    __slots__ = ("_ahead", "_body", "_owner", "_slow")

    def __init__(self, owner: Connections, manager: web.Server, **settings: Any) -> None:
        super().__init__(manager, **settings)
        self._owner = owner
        self._slow: asyncio.TimerHandle | None = None
        self._body: StreamReader | None = None  # of the request that came last
        self._ahead = False  # something of the next one has come while that was being answered

    def connection_lost(self, exc: BaseException | None) -> None:
        self._owner.counts.open -= 1
        self._in_time()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._owner.before_each()
        before = self._request_count
        whole = self._body is None or self._body.is_eof()
        super().data_received(data)
        if self._request_count > before:
            self._in_time()
            self._ahead, self._body = False, self._messages[-1][1]
        elif whole and data:
            self._ahead = True
            if self._waiter is not None or not before:  # it waits for a request
                self._wait_for_the_rest()

    async def finish_response(
        self, request: BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """The time of a request that came in part meanwhile counts from here."""
        finished = await super().finish_response(request, resp, start_time)
        if self._ahead and not self._messages:
            self._wait_for_the_rest()
        return finished

    def _wait_for_the_rest(self) -> None:
        if self._slow is None:
            self._slow = self._loop.call_later(self._owner.request_timeout_s, self._too_slow)

    def _in_time(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def _too_slow(self) -> None:
        self._slow = None
        if self.transport is not None:
            self._owner.counts.too_slow += 1
            self.transport.write(_plain_refusal(too_slow()))
            self.force_close()

    def _process_keepalive(self) -> None:
        """Called by aiohttp when a connection may have rested for too long."""
        gone = self.transport is None
        super()._process_keepalive()
        self._owner.counts.idle += not gone and self.transport is None

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """A refusal of aiohttp's own, in OpenAI's error shape. It closes the connection."""
        response = super().handle_error(request, status, exc, message)
        fault = "server_error" if status >= 500 else "invalid_request_error"
        said = exc.message if isinstance(exc, HttpProcessingError) else response.reason
        error = ApiError(" ".join(str(said).split())[:_MOST_SAID], status=status, type=fault)
        refusal = web.Response(status=status, body=error.body, content_type="application/json")
        refusal.force_close()
        return refusal


def _plain_refusal(error: ApiError) -> bytes:
    """Status line, head and body at once, for a connection that is closed with it."""
    head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(error.body)}\r\nConnection: close\r\n\r\n".encode() + error.body
