"""One plain question to a server: a small request, and the whole of the answer, whenever it came.

It goes over the stamping transport like the measured requests, but nobody looks at its stamps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from ledgers.rows import Outcome
from loadgen.http1 import ProtocolError, ResponseReader
from loadgen.inflate import CODINGS, Inflater
from loadgen.transport import Transport

MOST_BYTES = 4 << 20  # of an answer: a list of all of a hosted API's models has less


class Question:
    """What the transport needs of an exchange. `fault` says why there is no answer.

    `heard` is called when there is a connection, and whenever something of the answer comes.
    """

    def __init__(self, heard: Callable[[], None]) -> None:
        self.sent_ns: int | None = None
        self.reached = False  # there was a connection
        self.too_slow = False  # there was none in time
        self.fault: str | None = None
        self._heard = heard
        self._http = ResponseReader()
        self._body = bytearray()

    @property
    def status(self) -> int:
        return self._http.status or 0

    @property
    def headers(self) -> Mapping[str, str]:
        return self._http.headers

    @property
    def finished(self) -> bool:
        return self.fault is not None or self._http.complete or len(self._body) >= MOST_BYTES

    @property
    def drained(self) -> bool:
        """The rest of what is broken or too long is not worth its reading."""
        return self.finished

    @property
    def reusable(self) -> bool:
        return self._http.complete and self._http.keep_alive

    @property
    def usual_end(self) -> None:
        return None

    @property
    def answered(self) -> bool:
        return self._http.started

    def connected(self, waited_ns: int | None = None) -> None:
        self.reached = True
        self._heard()

    def sending(self, ns: int) -> None:
        pass

    def sent(self, ns: int) -> None:
        self.sent_ns = ns

    def take_usual(self, pieces: Sequence[tuple[bytes, int]]) -> int:
        return 0

    def feed(self, data: bytes, ns: int) -> None:
        self._heard()
        try:
            for piece in self._http.feed(data):
                self._body += piece
        except ProtocolError as error:
            self.fault = str(error)

    def lost(self, ns: int, why: str | None) -> None:
        if why is not None or not self._http.feed_eof():
            self.fault = why or "the server closed the connection before its answer was complete"

    def stop(self, outcome: Outcome, ns: int, why: str | None = None) -> None:
        """The transport ends it only where connecting takes too long."""
        self.too_slow = True
        self.fault = why or outcome

    def body(self) -> bytes:
        """Unpacked, and no more than MOST_BYTES. zlib.error if it is not packed as the server says."""
        if self.headers.get("content-encoding", "").strip().lower() not in CODINGS:
            return bytes(self._body)
        whole = bytearray()
        for part in Inflater().feed(bytes(self._body)):
            whole += part
            if len(whole) >= MOST_BYTES:
                break
        return bytes(whole)


async def put(transport: Transport, request: bytes, *, quiet_s: float, most_s: float) -> Question:
    """Send it, and wait for the end. Not on a transport that carries anything else.

    TimeoutError if the server is not heard of for `quiet_s`, or goes on for `most_s`. How long connecting may
    take is the transport's to know.
    """
    loop, ended = transport.loop, asyncio.Event()
    latest = loop.time() + most_s
    transport.on_finished = lambda _: ended.set()
    async with asyncio.timeout_at(latest) as patience:

        def heard() -> None:
            if not patience.expired():
                patience.reschedule(min(latest, loop.time() + quiet_s))

        question = Question(heard)
        transport.send((question, request))
        try:
            await ended.wait()
        finally:
            transport.forget(question)
    return question


def request_bytes(method: str, path: str, headers: Mapping[str, str], body: bytes | None = None) -> bytes:
    """A request as it goes over the wire."""
    if body is not None or method == "POST":
        headers = {**headers, "Content-Length": str(len(body or b""))}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (body or b"")
