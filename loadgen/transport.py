"""The stamping transport: connections that date every byte at the socket and parse later.

Reading comes first: a readable socket costs one recvmsg and an append; what was read is parsed in slices
afterwards, so that neither parsing nor encoding nor sending delays the next read by much. There is no limit
on connections, no proxy, no timeout but the one for connecting.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from ledgers.rows import Outcome
from ledgers.units import NS_PER_MS, NS_PER_S
from loadgen.connection import Connection, hand_over
from loadgen.readiness import Readiness
from loadgen.stamps import StampClock
from loadgen.target import Address, Target

_SLICE_NS = NS_PER_MS // 4
_DRAIN_GRACE_NS = NS_PER_S
# A reused connection that dies this soon after a request was handed to it was dead before; one that dies
# later belonged to a server that may have started on the request. The news of it takes a round trip.
_LEAST_STALE_NS = 10 * NS_PER_MS
_STALE_ROUND_TRIPS = 4
_LOOK_EVERY_S = 0.005
_LONG_IDLE_NS = NS_PER_S  # a connection that rested this long may be dead too, used before or not


class Exchange(Protocol):
    """What the transport needs of a recorder."""

    @property
    def finished(self) -> bool: ...
    @property
    def drained(self) -> bool: ...
    @property
    def reusable(self) -> bool: ...
    @property
    def answered(self) -> bool: ...

    @property
    def usual_end(self) -> bytes | None:
        """How bytes end that need no attention soon; None while all do."""

    sent_ns: int | None

    def connected(self, waited_ns: int | None = None) -> None: ...
    def sending(self, ns: int) -> None: ...
    def sent(self, ns: int) -> None: ...
    def take_usual(self, pieces: Sequence[tuple[bytes, int]]) -> int: ...
    def feed(self, data: bytes, ns: int) -> None: ...
    def lost(self, ns: int, why: str | None) -> None: ...
    def stop(self, outcome: Outcome, ns: int, why: str | None = None) -> None: ...


class Transport:
    """Sends requests over a pool of connections and feeds what comes back to their recorders.

    Whoever sends sets `on_finished`: it is called with each exchange once, as soon as its outcome is certain.
    """

    def __init__(
        self,
        target: Target,
        address: Address,
        *,
        tls: ssl.SSLContext | None = None,
        connect_timeout_s: float = 30.0,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.target = target
        self.address = address
        self.tls = tls
        self.clock = StampClock()
        self.connect_timeout_s = connect_timeout_s
        self.connections_opened = 0
        self.resent = 0  # requests sent again because the kept connection turned out to be dead
        self.on_finished: Callable[[Exchange], None] = lambda exchange: None
        self._idle: list[Connection] = []
        self._opening: dict[Connection, None] = {}  # opened ahead, no exchange yet; in order
        self._busy: dict[Exchange, Connection] = {}
        self._draining: dict[Connection, int] = {}
        self._dirty: deque[Connection] = deque()
        self._drain_scheduled = False
        self.readiness = Readiness(self.loop, self.clock.follow, self._drain)
        self._look_again()

    # What the driver calls

    def open_ahead(self, wanted: int) -> None:
        """See to it that `wanted` connections are ready or on their way."""
        for _ in range(wanted - len(self._idle) - len(self._opening)):
            connection = Connection(self)
            self._opening[connection] = None
            connection.open()

    @property
    def opening(self) -> int:
        return len(self._opening)

    def send(self, *requests: tuple[Exchange, bytes]) -> None:
        """Send at once on ready connections, else on such as are being opened."""
        begun, direct, waiting = [], [], []
        for exchange, request in requests:
            connection = self._take_ready()
            if connection is None:
                waiting.append((exchange, request))
                continue
            self._busy[exchange] = connection
            if (sock := connection.take(exchange, request)) is not None:
                begun.append(connection)
                direct.append((sock, request))
        for connection, taken in zip(begun, hand_over(direct), strict=True):
            connection.begun(*taken)
        for exchange, request in waiting:
            self._send_later(exchange, request, self._take_opening())

    def forget(self, exchange: Exchange) -> None:
        """Close the connection of an exchange that ends before its time."""
        connection = self._busy.pop(exchange, None)
        if connection is not None:
            connection.exchange = None
            connection.close()

    def housekeeping(self, now_ns: int) -> None:
        """Once a second: follow the wall clock; close connections whose body end does not come."""
        self.clock.sample()
        self._hurry()
        late = [c for c, since in self._draining.items() if now_ns - since > _DRAIN_GRACE_NS]
        for connection in late:
            connection.close()

    @property
    def behind(self) -> bool:
        """Whether something has been read and not been parsed."""
        return bool(self._dirty)

    def catch_up(self) -> None:
        """Read and parse whatever has come, without a pause."""
        self.readiness.look()
        self._hurry()
        while self._dirty:
            self._dirty.popleft().parse()

    def close(self) -> None:
        for connection in (*self._idle, *self._opening, *self._busy.values(), *self._draining):
            connection.exchange = None
            connection.close()
        self._look_timer.cancel()
        self.readiness.close()

    # What connections call

    def ready(self, connection: Connection) -> None:
        """A connection opened ahead is usable."""
        if connection in self._opening:
            del self._opening[connection]
            self._rest(connection)

    def has_read(self, connection: Connection) -> None:
        """Bytes or the end have come that want to be parsed, after everything readable has been read."""
        self._dirty.append(connection)

    def gone(self, connection: Connection, why: str | None, *, too_slow: bool = False) -> None:
        """A connection ended. `why` is None when the peer closed it in order.

        `too_slow`: it did not open in time.
        """
        exchange, connection.exchange = connection.exchange, None
        connection.close()
        if exchange is None or exchange.finished:
            return
        self._busy.pop(exchange, None)
        now = time.monotonic_ns()
        if self._was_stale(connection, exchange, now):
            self.resent += 1
            self._send_later(exchange, connection.request)
            return
        if too_slow:
            exchange.stop("timeout", now, why)
        else:
            exchange.lost(now, why)
        self.on_finished(exchange)

    def closed(self, connection: Connection) -> None:
        """Strike a closed connection off every list."""
        self._opening.pop(connection, None)
        self._draining.pop(connection, None)
        if connection in self._idle:
            self._idle.remove(connection)

    def progressed(self, connection: Connection, exchange: Exchange) -> None:
        """Bytes were fed to an exchange whose outcome is certain, by them or before."""
        by_them = self._busy.pop(exchange, None) is not None
        if exchange.drained:
            self._release(connection, exchange)
        elif connection not in self._draining:
            self._draining[connection] = time.monotonic_ns()
        if by_them:
            self.on_finished(exchange)

    # Inside

    def _send_later(self, exchange: Exchange, request: bytes, connection: Connection | None = None) -> None:
        """Send on a connection that is being opened; on a new one if none is given."""
        if connection is None:
            connection = Connection(self)
            connection.open()
        self._busy[exchange] = connection
        connection.take(exchange, request)

    def _take_ready(self) -> Connection | None:
        """The most recently used connection on which nothing has happened since."""
        while self._idle:
            connection = self._idle.pop()
            if connection.quiet:
                return connection
            connection.close()
        return None

    def _take_opening(self) -> Connection | None:
        connection = next(iter(self._opening), None)
        if connection is not None:
            del self._opening[connection]
        return connection

    def _release(self, connection: Connection, exchange: Exchange) -> None:
        self._draining.pop(connection, None)
        connection.exchange = None
        if exchange.reusable and connection.request_gone:
            connection.used = True
            self._rest(connection)
        else:
            connection.close()

    def _rest(self, connection: Connection) -> None:
        connection.idle_since_ns = time.monotonic_ns()
        self._idle.append(connection)

    def _was_stale(self, connection: Connection, exchange: Exchange, now_ns: int) -> bool:
        soon_ns = max(_LEAST_STALE_NS, _STALE_ROUND_TRIPS * (self.address.connect_ns or 0))
        # While we were away the news may have been waiting for us: the earliest that it can have come counts.
        ended_ns = now_ns if connection.ended_after_ns is None else connection.ended_after_ns
        recent = exchange.sent_ns is None or ended_ns - exchange.sent_ns < soon_ns
        rested = connection.idle_since_ns is not None and now_ns - connection.idle_since_ns > _LONG_IDLE_NS
        return (connection.used or rested) and not exchange.answered and recent

    def _look_again(self) -> None:
        # So that the time since the last look says how long we were away.
        self.readiness.round()
        self._look_timer = self.loop.call_later(_LOOK_EVERY_S, self._look_again)

    def _hurry(self) -> None:
        for connection in self._busy.values():
            connection.hurry()

    def _drain(self) -> None:
        """Parse for a slice of time, then let the loop read and send before going on."""
        until = time.monotonic_ns() + _SLICE_NS
        while self._dirty:
            self._dirty.popleft().parse()
            if time.monotonic_ns() > until:
                break
        if self._dirty and not self._drain_scheduled:
            self._drain_scheduled = True
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._drain_scheduled = False
        self._drain()
