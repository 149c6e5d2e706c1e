"""The server's guard against its clients: what one of them does must not move another's tokens."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from mock_server.intake import whole_body
from mock_server.openai import ApiError
from tests.conftest import MockServer, refused, serving, tokentick
from tests.test_server import ask, read_all, send, state

FAST = "prefill_tokens_per_tick = 1000000\ndecode_slots = 64\nkv_budget_tokens = 100000000\ntick_s = 0.02\n"


def open_to(server: MockServer) -> socket.socket:
    where = urlsplit(server.url)
    return socket.create_connection((where.hostname, where.port), timeout=20)


def answer_of(connection: socket.socket) -> tuple[int, Any]:
    """Status and JSON body of an answer that ends with its connection."""
    head, _, body = read_all(connection).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[MockServer]:
    """A server that waits for half a second, for no more than three clients at a time."""
    hardware = tmp_path / "fast.toml"
    hardware.write_text(FAST)
    arguments = ("--hardware", str(hardware), "--max-wait", "0")
    with serving(
        tmp_path / "served", "--request-timeout", "0.5", "--max-connections", "3", *arguments
    ) as server:
        yield server


@pytest.mark.parametrize(
    "half",
    [
        b"POST /v1/completions HTTP/1.1\r\nHost: mo",
        b'POST /v1/completions HTTP/1.1\r\nHost: mock\r\nContent-Length: 50\r\n\r\n{"prompt": ',
    ],
)
def test_half_a_request_is_cut_off_while_streams_go_on(guarded: MockServer, half: bytes) -> None:
    """408 after --request-timeout; a stream that takes longer than that is not a request that is late."""
    stream = send(guarded, {"prompt": "time", "max_tokens": 60, "stream": True})
    slow = open_to(guarded)
    slow.sendall(half)
    status, answer = answer_of(slow)
    assert status == 408
    assert answer["error"]["code"] == "request_timeout"
    stream.settimeout(20)
    received = b""
    while not received.endswith(b"0\r\n\r\n"):
        received += stream.recv(65536)
    assert received.count(b'"text":') == 60
    stream.close()


def test_a_kept_connection_may_rest_longer_than_a_request_may_take(guarded: MockServer) -> None:
    """The limit is of requests that have begun."""
    connection = open_to(guarded)
    for _ in range(2):
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: mock\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        time.sleep(0.8)
    connection.close()


def test_half_a_request_behind_another_is_cut_off_after_that_ones_answer(guarded: MockServer) -> None:
    """Its time counts from the end of the answer: that took longer than a request may take to come."""
    connection = send(guarded, {"prompt": "time", "max_tokens": 60})
    time.sleep(0.1)
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: mo")
    assert re.findall(rb"HTTP/1\.1 (\d+)", read_all(connection)) == [b"200", b"408"]
    assert state(guarded)["connections"]["too_slow"] == 1


def test_a_request_in_two_parts_behind_another_is_answered(guarded: MockServer) -> None:
    """What came during the answer before and what came after it are one request."""
    connection = send(guarded, {"prompt": "time", "max_tokens": 10})
    time.sleep(0.1)
    connection.sendall(b"GET /health HTTP/1.1\r\nHo")
    assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    time.sleep(0.2)
    connection.sendall(b"st: mock\r\nConnection: close\r\n\r\n")
    assert read_all(connection).endswith(b'{"status":"ok"}')


def test_a_connection_without_a_request_is_closed_and_counted(tmp_path: Path) -> None:
    """After --keep-alive, whether it never said a byte or rests behind an answer."""
    with serving(tmp_path / "served", "--keep-alive", "0.4") as server:
        silent, resting = open_to(server), open_to(server)
        resting.sendall(b"GET /health HTTP/1.1\r\nHost: mock\r\n\r\n")
        begin = time.monotonic()
        assert read_all(silent) == b""
        assert read_all(resting).startswith(b"HTTP/1.1 200")
        assert 0.3 < time.monotonic() - begin < 10
        assert state(server)["connections"]["idle"] == 2
        scraped = ask(server, "GET", "/metrics")[1].decode()
        labels = 'engine="0",model_name="tokentick-mock"'
        assert f'tokentick_connections_closed_total{{{labels},reason="idle"}} 2.0' in scraped
        assert f"tokentick_connections_open{{{labels}}} 1.0" in scraped


def test_one_connection_too_many_is_told_so(guarded: MockServer) -> None:
    """A 503 in OpenAI's shape; there is room again when another has gone."""
    held = [open_to(guarded) for _ in range(3)]
    time.sleep(0.2)
    status, answer = answer_of(open_to(guarded))
    assert status == 503
    assert answer["error"]["code"] == "too_many_connections"
    held.pop().close()
    time.sleep(0.2)
    assert state(guarded)["connections"] == {"open": 3, "too_many": 1, "too_slow": 0, "idle": 0}
    for connection in held:
        connection.close()


@pytest.mark.parametrize("junk", [b"HELLO\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"])
def test_what_is_no_http_is_refused_in_openais_shape(guarded: MockServer, junk: bytes) -> None:
    """A client with the wrong scheme gets an answer that it can read."""
    connection = open_to(guarded)
    connection.sendall(junk)
    status, answer = answer_of(connection)
    assert status == 400
    assert set(answer["error"]) == {"message", "type", "param", "code"}


def test_pipelined_requests_are_answered_one_after_the_other(guarded: MockServer) -> None:
    """Each whole, in order, on the one connection."""
    body = json.dumps({"prompt": "time", "max_tokens": 2}).encode()
    request = (
        b"POST /v1/completions HTTP/1.1\r\nHost: mock\r\nX-Request-Id: %d\r\nContent-Length: %d\r\n%b\r\n%b"
    )
    connection = open_to(guarded)
    connection.sendall(
        request % (1, len(body), b"", body) + request % (2, len(body), b"Connection: close\r\n", body)
    )
    answers = read_all(connection)
    assert answers.count(b"HTTP/1.1 200 OK") == 2
    assert answers.index(b"X-Request-Id: 1") < answers.index(b"X-Request-Id: 2")


def test_strict_ends_the_server_when_a_tick_is_late(tmp_path: Path) -> None:
    """Exit code 4 and one line; the ledger is complete."""
    with (
        (tmp_path / "stderr").open("w") as errors,
        serving(tmp_path / "served", "--strict", "0", stderr=errors) as server,
        send(server, {"prompt": "time", "max_tokens": 3, "stream": True}),
    ):
        assert server.process.wait(20) == 4
    line = (tmp_path / "stderr").read_text()
    assert line.count("\n") == 1
    assert "tick 0 ran" in line
    assert "--strict 0 ms" in line
    assert json.loads((tmp_path / "served" / "run.json").read_text())["complete"]
    assert len((tmp_path / "served" / "requests.jsonl").read_text().splitlines()) == 1


def test_a_request_that_is_too_large_gets_one_answer(guarded: MockServer) -> None:
    """The rest of its body is no request of its own that comes too slowly."""
    connection = open_to(guarded)
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: mock\r\nContent-Length: 99999999\r\n\r\n")
    for _ in range(4):
        connection.sendall(b" " * 1000)
        time.sleep(0.3)
    answers = read_all(connection)
    assert answers.count(b"HTTP/1.1 ") == 1
    assert answers.startswith(b"HTTP/1.1 413")


def test_another_version_of_http_is_refused(guarded: MockServer) -> None:
    """Not answered in a version that nobody speaks."""
    connection = open_to(guarded)
    connection.sendall(b"GET /health HTTP/2.0\r\nHost: mock\r\nConnection: close\r\n\r\n")
    assert connection.recv(65536).split()[1] == b"505"
    connection.close()


@pytest.mark.parametrize("path", ["/health", "/v1/nothing"])
def test_an_expectation_that_nobody_knows_is_refused_in_openais_shape(guarded: MockServer, path: str) -> None:
    """417, by whatever path; what is known is met."""
    connection = open_to(guarded)
    head = b"GET %b HTTP/1.1\r\nHost: mock\r\nConnection: close\r\nExpect: %b\r\n\r\n"
    connection.sendall(head % (path.encode(), b"foo"))
    status, answer = answer_of(connection)
    assert status == 417
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    connection = open_to(guarded)
    connection.sendall(head % (b"/health", b"100-Continue"))
    assert read_all(connection).startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200")


def test_ticks_too_short_for_a_server_are_refused(tmp_path: Path) -> None:
    """One line instead of a server that is late from its first tick on."""
    refused(tokentick("serve", "--port", "0", "--tick", "1e-6", cwd=tmp_path), 2, "at least")


@pytest.mark.skipif(sys.platform != "linux", reason="counts files as Linux does")
def test_connections_without_end_leave_files_for_the_ledger(tmp_path: Path) -> None:
    """As many are taken up as the system grants files; who is too many is told, and rows are written."""
    script = (
        "import resource, tokentick\nresource.setrlimit(resource.RLIMIT_NOFILE, (70, 200))\ntokentick.main()"
    )
    out = tmp_path / "served"
    process = subprocess.Popen(
        [sys.executable, "-c", script, "serve", "--port", "0", "--json", "--out", str(out)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        server = MockServer(json.loads(process.stdout.readline())["url"], process, out)
        first = send(server, {"prompt": "time", "max_tokens": 3})
        held = [open_to(server) for _ in range(200 - 64 - 1)]
        status, _ = answer_of(open_to(server))
        assert status == 503
        held[-1].sendall(b"GET /health HTTP/1.1\r\nHost: mock\r\n\r\n")
        assert held[-1].recv(65536).startswith(b"HTTP/1.1 200")
        assert first.recv(65536).startswith(b"HTTP/1.1 200")
        for connection in (first, *held):
            connection.close()
        assert server.stop() == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert len((out / "requests.jsonl").read_text().splitlines()) == 1


async def test_a_refusal_keeps_nothing_of_the_requests_before() -> None:
    """Each is an error of its own: one raised anew each time would hold all that it ever refused."""

    class Huge:
        content_length = 10**9

    lengths = []
    for _ in range(3):
        try:
            await whole_body(cast(web.Request, Huge()), 1.0)
        except ApiError as error:
            lengths.append(len(list(traceback.walk_tb(error.__traceback__))))
    assert lengths == [lengths[0]] * 3
