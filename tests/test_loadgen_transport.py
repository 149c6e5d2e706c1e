"""The stamping transport over real sockets: stamps, reuse, dead connections, TLS, slow sends."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ledgers.rows import RequestRow
from loadgen.dialects import DIALECTS
from loadgen.recorder import Recorder
from loadgen.stamps import StampClock
from loadgen.target import Address, find_address, parse_target
from loadgen.transport import Transport
from tests.scripted_server import (
    SSE_HEAD,
    Answer,
    Request,
    ScriptedServer,
    answered,
    ending,
    plain,
    quick,
    raw_server,
    scripted_server,
    token,
)

MS = 1_000_000


def post(body: bytes = b"{}") -> bytes:
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )


async def exchange(transport: Transport, body: bytes = b"{}") -> RequestRow:
    """Send one request and wait for its row; times are on the monotonic clock."""
    finished: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    transport.on_finished = finished.set_result
    planned = RequestRow(id="a", prompt_tokens=1, output_tokens=1, arrival_ns=0)
    recorder = Recorder(planned, DIALECTS["chat"](), record_text=True)
    transport.send((recorder, post(body)))
    await finished
    return recorder.row(0, record_tokens=True)


@asynccontextmanager
async def connected(
    answer: Answer, *, tls: ssl.SSLContext | None = None, insecure: bool = False
) -> AsyncIterator[tuple[ScriptedServer, Transport]]:
    async with scripted_server(answer, tls) as server:
        scheme = "https" if tls else "http"
        target = parse_target(f"{scheme}://127.0.0.1:{server.port}")
        tls_here = target.tls(insecure=insecure)
        transport = Transport(target, await find_address(target, 5), tls=tls_here)
        server.connections = 0
        try:
            yield server, transport
        finally:
            transport.close()


async def test_a_hundred_requests_in_a_row_share_a_connection() -> None:
    """Keep-alive: one after the other, on one connection."""
    async with connected(quick) as (server, transport):
        rows = [await exchange(transport) for _ in range(100)]
        assert {row.outcome for row in rows} == {"completed"}
        assert (len(server.posts), transport.connections_opened) == (100, 1)


async def test_three_hundred_at_once_are_all_in_flight() -> None:
    """No limit on connections: the server holds 300 requests before it answers any."""
    everyone = asyncio.Event()

    async def together(request: Request, writer: asyncio.StreamWriter) -> None:
        if len(server.posts) == 300:
            everyone.set()
        await everyone.wait()
        await quick(request, writer)

    async with connected(together) as (server, transport):
        done: list[object] = []
        transport.on_finished = done.append
        for number in range(300):
            planned = RequestRow(id=str(number), prompt_tokens=1, output_tokens=1)
            transport.send((Recorder(planned, DIALECTS["chat"]()), post()))
        async with asyncio.timeout(20):
            while len(done) < 300:
                await asyncio.sleep(0.01)
        assert transport.connections_opened == 300


async def test_what_is_sent_together_takes_the_ready_connections_first() -> None:
    """The rest goes on connections of its own, and says how long it waited for them; all are answered."""
    async with connected(quick) as (_, transport):
        transport.open_ahead(2)
        async with asyncio.timeout(20):
            while transport.opening:
                await asyncio.sleep(0.001)
        done: list[object] = []
        transport.on_finished = done.append
        recorders = [
            Recorder(RequestRow(id=str(number), prompt_tokens=1, output_tokens=1), DIALECTS["chat"]())
            for number in range(4)
        ]
        transport.send(*((recorder, post()) for recorder in recorders))
        async with asyncio.timeout(20):
            while len(done) < 4:
                await asyncio.sleep(0.001)
        rows = [recorder.row(0) for recorder in recorders]
        assert [row.outcome for row in rows] == ["completed"] * 4
        assert [row.connect_ns is None for row in rows] == [True, True, False, False]
        assert [row.sent_ns for row in rows] == sorted(row.sent_ns or 0 for row in rows)


@pytest.mark.skipif(sys.platform != "linux", reason="kernel receive stamps are Linux's")
async def test_kernel_stamps_are_right_while_the_loop_is_blocked() -> None:
    """A token that arrives while the loop sleeps 200 ms is dated by its arrival, not by the late read."""
    written: list[int] = []

    async def two_tokens(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + token("a"))
        await asyncio.sleep(0.01)
        # From here on client and server share a blocked loop: write to the socket itself, then block.
        written.append(time.monotonic_ns())
        raw = writer.get_extra_info("socket")
        socket.socket.send(raw._sock, token("b"))
        time.sleep(0.2)
        await asyncio.sleep(0.02)  # what is sent before the late read would be merged with the token
        writer.write(ending(2))

    async with connected(two_tokens) as (_, transport):
        await exchange(transport)  # the kernel turns stamping on a little after it was first asked for
        written.clear()
        row = await exchange(transport)
        assert transport.clock.source == "kernel"
        assert row.last_token_ns is not None
        assert row.end_ns is not None
        assert abs(row.last_token_ns - written[0]) < 5 * MS
        assert row.end_ns - row.last_token_ns > 190 * MS


def test_a_stamp_lies_between_the_one_before_and_the_read() -> None:
    """A wall clock that jumps cannot put a stamp into the future or before its predecessor."""
    clock = StampClock()
    now = time.monotonic_ns()

    def stamped(wall_ns: int) -> list[tuple[int, int, bytes]]:
        seconds, ns = divmod(wall_ns, 10**9)
        return [(socket.SOL_SOCKET, 35, seconds.to_bytes(8, sys.byteorder) + ns.to_bytes(8, sys.byteorder))]

    wall = time.time_ns()
    assert abs(clock.stamp(stamped(wall - 3 * MS), 0, now) - (now - 3 * MS)) < MS
    assert clock.stamp(stamped(wall + 3_600 * 10**9), 0, now) == now
    assert clock.stamp(stamped(wall - 3_600 * 10**9), now - 7, now) == now - 7
    assert clock.stamp([], 0, now) == now


async def test_sent_is_before_the_server_has_it_all_even_for_a_slow_big_body() -> None:
    """A body that the kernel takes in parts is sent when it takes the last, while the server reads."""
    began: list[int] = []

    async def slow_reader(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.1)
        began.append(time.monotonic_ns())
        while b"END" not in (await reader.read(1 << 20))[-3:]:
            pass
        began.append(time.monotonic_ns())
        writer.write(SSE_HEAD + token("a") + ending(1))
        await writer.drain()
        writer.close()

    async with raw_server(slow_reader) as port:
        target = parse_target(f"http://127.0.0.1:{port}")
        # Without the probe of find_address: this server would take that for the request.
        transport = Transport(target, Address(socket.AF_INET, ("127.0.0.1", port)))
        row = await exchange(transport, b"x" * 30_000_000 + b"END")
        transport.close()
    assert row.outcome == "completed"
    assert row.sent_ns is not None
    assert began[0] < row.sent_ns <= began[1]


async def test_a_connection_closed_while_idle_is_not_used_again() -> None:
    """The server hangs up between two requests: the second gets a fresh connection and does not fail."""

    async def one_each(request: Request, writer: asyncio.StreamWriter) -> None:
        await quick(request, writer)
        await writer.drain()
        writer.close()

    async with connected(one_each) as (_, transport):
        for pause_s in (0.02, 0.02, 0, 0):
            assert (await exchange(transport)).outcome == "completed"
            await asyncio.sleep(pause_s)
        assert transport.connections_opened >= 4


async def hang_up_on_second(request: Request, writer: asyncio.StreamWriter) -> None:
    """At once, without a byte."""
    if request.number == 1:
        writer.transport.abort()
    else:
        await quick(request, writer)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The news of a dead connection may take half a second: a busy machine must not look like a server."""
    monkeypatch.setattr("loadgen.transport._LEAST_STALE_NS", 500 * MS)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("at_work_s", "outcome", "posts", "resent"),
    [(0, "completed", 3, 1), (0.8, "connect_error", 2, 0)],
    ids=["the connection was dead", "the server was at work"],
)
async def test_only_a_dead_kept_connection_is_worth_a_second_try(
    at_work_s: float, outcome: str, posts: int, resent: int
) -> None:
    """Gone at once without a byte: sent once more, and counted. Gone after a while: the server had it."""

    async def hang_up_on_second(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.number == 1:
            await asyncio.sleep(at_work_s)
            writer.transport.abort()
        else:
            await quick(request, writer)

    async with connected(hang_up_on_second) as (server, transport):
        rows = [await exchange(transport) for _ in range(2)]
        assert [row.outcome for row in rows] == ["completed", outcome]
        assert (len(server.posts), transport.resent) == (posts, resent)


async def test_a_connection_that_died_while_we_were_away_was_dead() -> None:
    """The news of it waits for 300 ms because the loop is busy: still sent once more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            """Beside the loop: answer one request, hang up on the next, answer on a new connection."""
            for answers in ([answered(1, 1), b""], [answered(1, 1)]):
                connection, _ = listener.accept()
                with connection:
                    for answer in answers:
                        connection.recv(65_536)
                        connection.sendall(answer)

        serving = asyncio.create_task(asyncio.to_thread(serve))
        target = parse_target(f"http://127.0.0.1:{listener.getsockname()[1]}")
        transport = Transport(target, Address(socket.AF_INET, listener.getsockname()))
        try:
            await exchange(transport)
            asyncio.get_running_loop().call_soon(time.sleep, 0.3)
            row = await exchange(transport)
        finally:
            transport.close()
        await serving
    assert (row.outcome, transport.resent) == ("completed", 1)


@pytest.mark.usefixtures("patient")
async def test_a_request_sent_once_more_was_sent_the_first_time() -> None:
    """The wait for the dead connection and the new one is no lag of the generator."""
    async with connected(hang_up_on_second) as (server, transport):
        row = [await exchange(transport) for _ in range(2)][1]
        assert row.sent_ns is not None
        assert row.sent_ns <= server.posts[1].received_ns < server.posts[2].received_ns


async def test_a_fresh_connection_that_dies_is_a_failure() -> None:
    """No retry where nothing was stale: it would hide a failing server."""

    async def hang_up(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with connected(hang_up) as (server, transport):
        row = await exchange(transport)
        assert (row.outcome, row.phase, len(server.posts)) == ("connect_error", "headers", 1)


async def test_an_answer_before_the_body_was_taken() -> None:
    """A 413 that comes while the body is still being sent is an http_error, not a broken pipe."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(plain(413, b'{"error":{"message":"too large"}}'))
        await writer.drain()
        await asyncio.sleep(0.2)
        writer.close()

    async with raw_server(refuse) as port:
        target = parse_target(f"http://127.0.0.1:{port}")
        transport = Transport(target, Address(socket.AF_INET, ("127.0.0.1", port)))
        row = await exchange(transport, b"x" * 30_000_000)
        transport.close()
    assert (row.outcome, row.http_status, row.error) == ("http_error", 413, "HTTP 413: too large")


async def test_any_cut_of_the_stream_over_tcp() -> None:
    """A stream sent in pieces of one to seven bytes is the same stream."""
    stream = SSE_HEAD + token("é\u2028") + token("b") + ending(2)

    async def drip(request: Request, writer: asyncio.StreamWriter) -> None:
        size = 1 + request.number
        for start in range(0, len(stream), size):
            writer.write(stream[start : start + size])
            if start % 50 < size:
                await asyncio.sleep(0.001)

    async with connected(drip) as (_, transport):
        for _ in range(7):
            row = await exchange(transport)
            assert (row.outcome, row.text, row.tokens, row.events) == ("completed", "é\u2028b", 2, 2)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key, in one file."""
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=127.0.0.1",
    ]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(path), "-out", f"{path}.crt"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no openssl command to make a certificate with")
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


async def test_https_with_stamps_and_reuse(certificate: Path) -> None:
    """TLS over memory: the same rows, kernel stamps of the ciphertext, connections kept."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    async with connected(quick, tls=tls, insecure=True) as (server, transport):
        rows = [await exchange(transport, b"x" * 10)]  # meanwhile the kernel begins to stamp
        unstamped = transport.clock.unstamped
        rows += [await exchange(transport, b"x" * size) for size in (200_000, 10, 10)]
        assert [(row.outcome, row.text) for row in rows] == [("completed", "ab")] * 4
        assert [len(request.body) for request in server.posts] == [10, 200_000, 10, 10]
        assert transport.connections_opened == 1
        assert transport.clock.unstamped == unstamped


async def test_https_refuses_a_certificate_that_nobody_vouches_for(certificate: Path) -> None:
    """Without --insecure a self-signed server is not talked to, and the row says how to."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    async with connected(quick, tls=tls) as (server, transport):
        row = await exchange(transport)
        assert (row.outcome, row.phase, server.posts) == ("connect_error", "connect", [])
        assert row.error is not None
        assert "--insecure" in row.error


async def test_a_large_request_has_a_first_and_a_last_byte() -> None:
    """A server that takes its time to read: the wait is between the two, and not before the first."""

    async def slow_reader(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.3)
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(30_000_000)
        writer.write(SSE_HEAD + token("a") + ending(1))

    async with raw_server(slow_reader) as port:
        target = parse_target(f"http://127.0.0.1:{port}")
        transport = Transport(target, await find_address(target, 5))
        try:
            began = time.monotonic_ns()
            row = await exchange(transport, body=b"x" * 30_000_000)
        finally:
            transport.close()
    assert row.outcome == "completed"
    assert row.send_start_ns is not None
    assert row.sent_ns is not None
    assert 0 <= row.send_start_ns - began < 200 * MS
    assert row.sent_ns - row.send_start_ns > 150 * MS


def test_a_wall_clock_that_is_set_is_followed_before_the_next_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second forward or back: a stamp of this moment stays a stamp of this moment."""
    clock = StampClock()
    wall = time.time_ns
    for step in (500 * MS, -500 * MS):
        monkeypatch.setattr("time.time_ns", lambda step=step: wall() + step)
        clock.follow()
        seconds, nanoseconds = divmod(time.time_ns(), 1_000 * MS)
        now = time.monotonic_ns()
        stamp = clock.stamp([(1, 35, struct.pack("@ll", seconds, nanoseconds))], 0, now + 50 * MS)
        assert abs(stamp - now) < 20 * MS
    assert clock.largest_step_ns > 400 * MS
