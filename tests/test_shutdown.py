"""How a server ends: what it still owes its clients, and what it does not take on any more."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from ledgers.rundir import Run
from tests.conftest import MockServer, serving
from tests.test_server import read_all, send, state, wait_until


def keeping(server: MockServer) -> http.client.HTTPConnection:
    """A connection that has had an answer, and is kept."""
    where = urlsplit(server.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=20)
    connection.request("GET", "/health")
    assert connection.getresponse().read()
    return connection


def test_a_request_that_comes_during_the_shutdown_is_refused(tmp_path: Path) -> None:
    """503 and the end of its connection, in OpenAI's shape; the stream that was there comes to its end."""
    with serving(tmp_path / "served", "--tick=0.01", "--grace=20", "--policy=chunked") as server:
        kept = keeping(server)
        stream = send(server, {"prompt": "time", "max_tokens": 60, "stream": True})
        late = send(server, {"prompt": "time", "max_tokens": 50, "stream": True})
        wait_until(lambda: state(server)["in_flight"] == 2)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: refuses(server))
        body = json.dumps({"prompt": "time", "max_tokens": 1000})
        kept.request("POST", "/v1/completions", body, {"X-Request-Id": "late"})
        answer = kept.getresponse()
        assert (answer.status, answer.headers["Connection"]) == (503, "close")
        assert answer.headers["X-Request-Id"] == "late"
        assert json.loads(answer.read())["error"]["code"] == "shutting_down"
        assert b"data: [DONE]" in read_all(stream)
        assert b"data: [DONE]" in read_all(late)
        assert server.process.wait(20) == 0
        kept.close()
    assert [row.outcome for row in Run(server.out).rows()] == ["completed"] * 2


def refuses(server: MockServer) -> bool:
    """Whether it takes up no connection any more."""
    where = urlsplit(server.url)
    try:
        socket.create_connection((where.hostname, where.port), timeout=1).close()
    except OSError:
        return True
    return False


@pytest.mark.parametrize("stream", [True, False])
def test_what_is_owed_after_the_last_token_is_still_sent(tmp_path: Path, stream: bool) -> None:
    """Tokens whose ticks are over, and which a stall holds back: the grace is for them too."""
    flags = ("--tick=0.01", "--grace=20", "--policy=chunked", "--fault=stall:after=1,seconds=1.5")
    with serving(tmp_path / "served", *flags) as server:
        client = send(server, {"prompt": "time", "max_tokens": 4, "stream": stream}, version="1.0")
        wait_until(lambda: (server.out / "requests.jsonl").read_text())  # all its tokens have had their tick
        begin = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - begin < 15  # it does not wait for longer than it must
        body = read_all(client).partition(b"\r\n\r\n")[2]
    assert body.endswith(b"data: [DONE]\n\n") if stream else json.loads(body)["choices"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_slow_reader_still_gets_its_answer(tmp_path: Path, stream: bool) -> None:
    """What it has not taken when its last token was written, it can take within the grace."""
    with serving(tmp_path / "served", "--tick=0.01", "--grace=20") as server:
        body = {"model": "m" * 8_000_000, "prompt": "time", "max_tokens": 1, "stream": stream}
        client = send(server, body, version="1.0")
        wait_until(lambda: (server.out / "requests.jsonl").read_text())
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        answer = read_all(client)
        assert server.process.wait(20) == 0
    assert len(answer) > 8_000_000
    assert answer.endswith(b"data: [DONE]\n\n" if stream else b"}")


BROKEN = """
import mock_server.scheduler, tokentick
step = mock_server.scheduler.Scheduler.step
def broken(self, tick, *what):
    if tick == 3:
        raise ZeroDivisionError("in tick 3")
    return step(self, tick, *what)
mock_server.scheduler.Scheduler.step = broken
tokentick.main()
"""


def test_a_tick_that_fails_ends_the_server(tmp_path: Path) -> None:
    """Not with exit code 0, and with what went wrong; a server that never ticks again would be worse."""
    command = [sys.executable, "-c", BROKEN, "serve", "--port=0", "--json", "--tick=0.01"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        server = MockServer(json.loads(process.stdout.readline())["url"], process, tmp_path)
        client = send(server, {"prompt": "time", "max_tokens": 60, "stream": True})
        _, errors = process.communicate(timeout=20)
        client.close()
    assert process.returncode == 1
    assert "ZeroDivisionError: in tick 3" in errors


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    """It is over at once, grace or not, and the directory is complete."""
    with serving(tmp_path / "served", "--tick=0.01", "--grace=600", "--hardware=medium") as server:
        endless = send(server, {"prompt": "time", "max_tokens": 60_000, "stream": True})
        wait_until(lambda: state(server)["in_flight"] == 1)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: refuses(server))
        assert server.process.poll() is None
        begin = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
        assert time.monotonic() - begin < 10
        endless.close()
    assert [row.outcome for row in Run(server.out).rows()] == ["unfinished"]
    assert Run(server.out).info.complete


@pytest.mark.parametrize("stream", [True, False])
def test_a_reader_that_stops_after_its_last_token_is_cut_off(tmp_path: Path, stream: bool) -> None:
    """There is no later token by which it could be found too far behind: it has the time of a request."""
    with serving(tmp_path / "served", "--tick=0.01", "--request-timeout=1") as server:
        where = urlsplit(server.url)
        with socket.socket() as stuck:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck.connect((where.hostname, where.port))
            body: dict[str, Any] = {"model": "m" * 8_000_000, "prompt": "time", "max_tokens": 1}
            data = json.dumps({**body, "stream": stream}).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: m\r\nContent-Length: {len(data)}\r\n\r\n"
            stuck.sendall(head.encode() + data)
            wait_until(lambda: state(server)["cut_off"] == 1)
        assert server.stop() == 0
    (row,) = Run(server.out).rows()
    assert (row.outcome, row.tokens) == ("completed", 1)  # it was all written, as far as the ticks go
