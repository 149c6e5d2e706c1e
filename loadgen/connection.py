"""One connection: a non-blocking socket, and TLS over memory where the URL asks for it.

TLS is ours to drive so that the ciphertext can be dated when it arrives; decrypting waits its turn.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ledgers.rows import CLIENT_LIMIT
from ledgers.units import NS_PER_MS
from loadgen.readiness import READ_BYTES, Received, receive
from loadgen.stamps import ask_for_stamps

if TYPE_CHECKING:
    from loadgen.transport import Exchange, Transport

_LATE_NS = 20 * NS_PER_MS
_MOST_WAITING = 8  # pieces parsed at once cost half of what they cost one by one
_READS_IN_A_ROW = 16  # one flood must not keep the other sockets waiting
_CLIENT_LIMITS = {
    errno.EMFILE: "too many open files",
    errno.ENFILE: "too many open files on this machine",
    errno.EADDRNOTAVAIL: "no local port left",
    errno.ENOBUFS: "no buffer space left",
    errno.ENOMEM: "out of memory",
}


def describe(error: OSError) -> str:
    """The reason in words; what this machine ran out of is named as the client's limit."""
    if isinstance(error, ssl.SSLCertVerificationError):
        ways_out = "--ca-file FILE says whom to trust, --insecure skips the check"
        return f"certificate not accepted: {error.verify_message} ({ways_out})"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    limit = _CLIENT_LIMITS.get(error.errno or 0)
    if limit:
        return f"{CLIENT_LIMIT}{limit} ({errno.errorcode[error.errno or 0]})"
    return os.strerror(error.errno) if error.errno else str(error)


def hand_over(requests: Sequence[tuple[socket.socket, bytes]]) -> list[tuple[int, int]]:
    """Give each socket its request, one right after the other: when, and how much of it the kernel took."""
    taken = []
    # As little as can be between two sends: after each the processor has forgotten how Python runs.
    for sock, request in requests:
        # The stamp comes before the call: the receiver can have the last byte before send() returns.
        at_ns = time.monotonic_ns()
        try:
            taken.append((at_ns, sock.send(request)))
        except OSError:  # as the next try will tell
            taken.append((at_ns, 0))
    return taken


class Connection:
    """Opens, sends one request at a time, and dates what comes back."""

    def __init__(self, transport: Transport) -> None:
        self.exchange: Exchange | None = None
        self.request = b""
        self.used = False  # it has carried a whole exchange before
        self.idle_since_ns: int | None = None  # when it was last ready and without an exchange
        self._transport = transport
        self._clock = transport.clock
        self._sock: socket.socket | None = None
        self._up = False
        self._closed = False
        self._out: memoryview | None = None  # what the kernel has not taken yet
        self._writing = False  # the loop tells us when there is room
        self._carries_request = False  # `_out` ends with the last byte of the request
        self._pieces: list[tuple[bytes, int]] = []
        self._queued = False  # they will be parsed soon
        self._usual_end: bytes | None = None  # what ends so may wait for more of its kind
        self._ended = False
        self._why: str | None = None  # why it ended; None for an orderly close
        self._send_error: str | None = None
        self.ended_after_ns: int | None = None  # the peer's end came after this
        self._floor_ns = 0
        self._taken_ns = 0  # when a request began to wait for it
        self._connect_timer: asyncio.TimerHandle | None = None
        self._tls: ssl.SSLObject | None = None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()

    @property
    def request_gone(self) -> bool:
        """Whether every byte given to it went to the kernel."""
        return self._out is None

    @property
    def quiet(self) -> bool:
        """Whether nothing has come since the last exchange: neither bytes nor the end."""
        if self._pieces or self._ended or self._sock is None:
            return False
        if time.monotonic_ns() - self._transport.readiness.seen_ns < _LATE_NS:
            return True  # it is as good as sure, and to ask takes as long as to send
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    # Opening

    def open(self) -> None:
        """Start connecting. A failure is reported from the loop, never from inside this call."""
        transport = self._transport
        transport.connections_opened += 1
        self._start_timer()
        try:
            self._sock = socket.socket(transport.address.family, socket.SOCK_STREAM)
            self._sock.setblocking(False)
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ask_for_stamps(self._sock)
            code = self._sock.connect_ex(transport.address.sockaddr)
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
            transport.loop.add_writer(self._sock.fileno(), self._connect_done)
        except OSError as error:
            transport.loop.call_soon(self._fail, describe(error))

    def _connect_done(self) -> None:
        assert self._sock is not None
        self._transport.loop.remove_writer(self._sock.fileno())
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._fail(describe(OSError(code, os.strerror(code))))
            return
        self._transport.readiness.watch(self._sock, self._take)
        context = self._transport.tls
        if context is None:
            self._connected()
            return
        name = self._transport.target.host
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self._handshake()

    def _handshake(self) -> None:
        assert self._tls is not None
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._write(self._outgoing.read())
            return
        except OSError as error:
            self._write(self._outgoing.read())  # the alert that tells the server why
            self._fail(describe(error))
            return
        self._write(self._outgoing.read())
        self._connected()

    def _connected(self) -> None:
        self._up = True
        self._cancel_timer()
        if self.exchange is None:
            self._transport.ready(self)
            return
        assert self._sock is not None
        self.exchange.connected(time.monotonic_ns() - self._taken_ns)
        if self._tls is None:
            self.begun(*hand_over([(self._sock, self.request)])[0])
        else:
            self._encrypt_request()

    def _too_slow(self) -> None:
        why = f"no connection within --connect-timeout {self._transport.connect_timeout_s:g} s"
        self._transport.gone(self, why, too_slow=True)

    def _start_timer(self) -> None:
        self._cancel_timer()
        loop, timeout_s = self._transport.loop, self._transport.connect_timeout_s
        self._connect_timer = loop.call_later(timeout_s, self._too_slow)

    def _cancel_timer(self) -> None:
        if self._connect_timer is not None:
            self._connect_timer.cancel()
            self._connect_timer = None

    # Sending

    def take(self, exchange: Exchange, request: bytes) -> socket.socket | None:
        """Carry this exchange.

        An open socket comes back if it only has to be handed the request, and `begun` to be told of it; else
        the request goes as soon as it can.
        """
        self.exchange = exchange
        self.request = request
        if not self._up:
            self._taken_ns = time.monotonic_ns()
            self._start_timer()  # this request has waited for no time yet
            return None
        exchange.connected()
        if self._tls is None:
            return self._sock
        self._encrypt_request()
        return None

    def begun(self, at_ns: int, count: int) -> None:
        """At that time the kernel took so many bytes of the request; what is left goes when there is room."""
        assert self.exchange is not None
        self._floor_ns = at_ns
        self.exchange.sending(at_ns)
        if count == len(self.request):
            self.exchange.sent(at_ns)
        else:
            self._carries_request = True
            self._write(self.request[count:])

    def _encrypt_request(self) -> None:
        assert self._tls is not None
        self._floor_ns = time.monotonic_ns()
        self._carries_request = True
        plain = memoryview(self.request)
        while plain:
            plain = plain[self._tls.write(plain) :]
        self._write(self._outgoing.read())

    def _write(self, data: bytes) -> None:
        if not data or self._sock is None:
            return
        if self._out is not None:
            data = bytes(self._out) + data
        self._out = memoryview(data)
        if not self._writing:
            self._flush()

    def _flush(self) -> None:
        assert self._sock is not None
        while self._out is not None:
            before = time.monotonic_ns()
            if self._carries_request and self.exchange is not None:
                self.exchange.sending(before)
            try:
                count = self._sock.send(self._out)
            except (BlockingIOError, InterruptedError):
                self._wait_for_room()
                return
            except OSError as error:
                # What the server said before it hung up may still be there to read; the reader ends it.
                self._send_error = describe(error)
                self._stop_writing()
                return
            self._out = self._out[count:] if count < len(self._out) else None
        self._stop_writing()
        if self._carries_request and self.exchange is not None:
            self._carries_request = False
            self.exchange.sent(before)

    def _wait_for_room(self) -> None:
        if not self._writing and self._sock is not None:
            self._writing = True
            self._transport.loop.add_writer(self._sock.fileno(), self._flush)

    def _stop_writing(self) -> None:
        if self._writing and self._sock is not None:
            self._writing = False
            self._transport.loop.remove_writer(self._sock.fileno())

    # Reading

    def _take(self, received: Received, now: int, more: int = _READS_IN_A_ROW) -> None:
        """Date what was read until `now`. Nothing is looked at here: that would delay the next round."""
        if isinstance(received, OSError):
            if not isinstance(received, BlockingIOError | InterruptedError):
                self._end(describe(received))
            return
        data, ancillary, _, _ = received
        if not data:
            self._end(self._send_error)
            return
        self._floor_ns = ns = self._clock.stamp(ancillary, self._floor_ns, now)
        pieces, usual = self._pieces, self._usual_end
        pieces.append((data, ns))
        if usual is None or len(pieces) >= _MOST_WAITING or not data.endswith(usual):
            self.hurry()
        # There is more after a full read; when we were away, the end may have come as well.
        if more and (len(data) == READ_BYTES or now - ns > _LATE_NS) and self._sock is not None:
            self._take(receive(self._sock), time.monotonic_ns(), more - 1)

    def _end(self, why: str | None) -> None:
        assert self._sock is not None
        self._transport.readiness.forget(self._sock.fileno())
        self._ended, self._why = True, why
        self.ended_after_ns = self._transport.readiness.seen_ns
        self.hurry()

    def hurry(self) -> None:
        """See to it that what has been read is parsed soon."""
        if not self._queued and (self._pieces or self._ended):
            self._queued = True
            self._transport.has_read(self)

    def parse(self) -> None:
        """Hand on what has been read since the last time, then the end if it came."""
        self._queued = False
        pieces, self._pieces = self._pieces, []
        if self._usual_end is not None and self.exchange is not None:
            del pieces[: self.exchange.take_usual(pieces)]
        for data, ns in pieces:
            if self._closed:
                return
            if self._transport.tls is not None:
                data = self._decrypt(data)
            if data and not self._closed:
                self._deliver(data, ns)
        if self._ended and not self._closed:
            self._fail(self._why)
        self._usual_end = None
        if self.exchange is not None and self._transport.tls is None:
            self._usual_end = self.exchange.usual_end

    def _deliver(self, data: bytes, ns: int) -> None:
        exchange = self.exchange
        if exchange is None:  # bytes that nobody asked for: the connection cannot be trusted
            self.close()
            return
        exchange.feed(data, ns)
        if exchange.finished:
            self._transport.progressed(self, exchange)

    def _decrypt(self, data: bytes) -> bytes:
        assert self._tls is not None
        self._incoming.write(data)
        if not self._up:
            self._handshake()
        plain = []
        try:
            while self._up:
                plain.append(self._tls.read(READ_BYTES))
                if not plain[-1]:
                    self._ended = True
                    break
        except ssl.SSLWantReadError:
            self._write(self._outgoing.read())
        except ssl.SSLZeroReturnError:
            self._ended = True
        except OSError as error:
            self._ended, self._why = True, describe(error)
        return b"".join(plain)

    # Ending

    def _fail(self, why: str | None) -> None:
        if not self._closed:
            if why is None and not self._up:
                why = "the server closed the connection while it was being opened"
            self._transport.gone(self, why)

    def close(self) -> None:
        """Close at once. What was read and not parsed is dropped."""
        if self._closed:
            return
        self._closed = True
        self._cancel_timer()
        if self._sock is not None:
            self._transport.readiness.forget(self._sock.fileno())
            self._transport.loop.remove_writer(self._sock.fileno())
            self._sock.close()
        self._transport.closed(self)
