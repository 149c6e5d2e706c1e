"""The server as a process: faults of clients, the served ledger, and how it ends."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from ledgers.rundir import Run
from tests.conftest import MockServer, json_lines, on_full_disk, refused, serving, tokentick

HARDWARE = "prefill_tokens_per_tick = 50\nkv_budget_tokens = 100000\ndecode_slots = 1\ntick_s = 0.02\n"


def ask(
    server: MockServer, method: str, path: str, body: bytes | None = None
) -> tuple[int, Any, dict[str, str]]:
    """Status, body (JSON if it is) and headers of one request."""
    request = urllib.request.Request(server.url + path, data=body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, response.read(), dict(response.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read()), dict(error.headers)


def state(server: MockServer) -> dict[str, Any]:
    status, body, _ = ask(server, "GET", "/mock/state")
    assert status == 200
    answer: dict[str, Any] = json.loads(body)
    return answer


def wait_until(condition: Any, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


def send(
    server: MockServer, body: dict[str, Any], version: str = "1.1", headers: Mapping[str, str] | None = None
) -> socket.socket:
    """A request on a connection of its own; the answer is the caller's to read."""
    where = urlsplit(server.url)
    data = json.dumps(body).encode()
    fields = {"Host": "mock", "Content-Length": str(len(data)), **(headers or {})}
    lines = [f"POST /v1/completions HTTP/{version}", *map(": ".join, fields.items())]
    connection = socket.create_connection((where.hostname, where.port), timeout=20)
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + data)
    return connection


def read_all(connection: socket.socket) -> bytes:
    pieces = []
    with connection:
        while piece := connection.recv(65536):
            pieces.append(piece)
    return b"".join(pieces)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v1/nothing", None, 404),
        ("GET", "/v1/completions", None, 405),
        ("POST", "/v1/completions", b"", 400),
        ("POST", "/v1/completions", b"{", 400),
        ("POST", "/v1/completions", b"\xff\xfe", 400),
        ("POST", "/v1/completions", b"[]", 400),
        ("POST", "/v1/completions", b'{"prompt": ["a", "b"]}', 400),
        ("POST", "/v1/completions", b'{"prompt": [1, -2]}', 400),
        ("POST", "/v1/completions", b'{"max_tokens": 1}', 400),
        ("POST", "/v1/chat/completions", b"[" * 100_000, 400),
        ("POST", "/v1/chat/completions", b'{"messages": [{"content": "a"}]}', 400),
    ],
)
def test_every_refusal_has_openais_shape(
    server: MockServer, method: str, path: str, body: bytes | None, status: int
) -> None:
    """An error object with message, type, param and code, whatever was wrong."""
    code, answer, _ = ask(server, method, path, body)
    assert code == status
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["message"]


def test_a_body_over_the_limit_is_refused(server: MockServer) -> None:
    """413 before the body is read whole, and the server goes on."""
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=20) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: mock\r\nContent-Length: 999999999\r\n\r\n"
        )
        try:
            for _ in range(80):
                connection.sendall(b" " * 2**20)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it did not wait for the rest
        assert b" 413 " in connection.recv(200)
    assert ask(server, "GET", "/health")[0] == 200


def test_streams_say_that_they_must_not_be_buffered(server: MockServer) -> None:
    """What proxies look at is there, and nothing is compressed though the client would take it."""
    body = json.dumps({"prompt": "time", "max_tokens": 2, "stream": True}).encode()
    _, answer, headers = ask(server, "POST", "/v1/completions", body)
    assert headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert headers["Cache-Control"] == "no-cache"
    assert headers["X-Accel-Buffering"] == "no"
    assert "Content-Encoding" not in headers
    assert answer.endswith(b"data: [DONE]\n\n")


def test_http_1_0_clients_get_a_stream_that_ends_by_closing(server: MockServer) -> None:
    """No chunk framing for those who do not know it."""
    answer = read_all(send(server, {"prompt": "time", "max_tokens": 2, "stream": True}, version="1.0"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"Transfer-Encoding" not in head
    assert body.startswith(b"data: {")
    assert body.endswith(b"data: [DONE]\n\n")


@pytest.fixture
def one_slot(tmp_path: Path) -> Any:
    """A server that decodes one sequence at a time, so that whoever holds the slot blocks the others."""
    hardware = tmp_path / "one.toml"
    hardware.write_text(HARDWARE)
    with serving(tmp_path / "served", "--policy", "immediate", "--hardware", str(hardware)) as server:
        yield server


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot_and_its_memory(one_slot: MockServer, stream: bool) -> None:
    """In decode and in the queue: the next request starts within two ticks of the disconnect."""
    holder = send(one_slot, {"prompt": "time", "max_tokens": 5000, "stream": stream})
    wait_until(lambda: state(one_slot)["tick"] >= 3)
    queued = send(one_slot, {"prompt": "time", "max_tokens": 5000, "stream": stream})
    wait_until(lambda: state(one_slot)["in_flight"] == 2)
    heir = send(one_slot, {"prompt": "time", "max_tokens": 1, "stream": False})
    wait_until(lambda: state(one_slot)["in_flight"] == 3)
    queued.close()
    holder.close()
    assert b"HTTP/1.1 200" in heir.recv(4096)
    heir.close()
    wait_until(lambda: state(one_slot)["idle"])
    assert state(one_slot)["kv_reserved"] == 0
    rows = json_lines(one_slot.out / "requests.jsonl")
    ticks: list[Any] = [row["ticks"] for row in rows]
    assert [row["outcome"] for row in rows] == ["cancelled", "cancelled", "completed"]
    assert ticks[2]["prefill_start"] - max(ticks[0]["cancel"], ticks[1]["cancel"]) <= 2


def test_clients_that_leave_leave_no_trace_in_the_log(tmp_path: Path) -> None:
    """Before the headers, in the stream, after the end, by FIN or by RST: nothing on stderr, nothing held."""
    with (
        (tmp_path / "errors").open("w") as errors,
        serving(tmp_path / "served", "--tick", "0.01", stderr=errors) as server,
    ):
        for stream in (True, False):
            for linger in (b"\0" * 8, b"\1\0\0\0\0\0\0\0"):
                for seconds in (0, 0.05, 0.3):
                    client = send(server, {"prompt": "time", "max_tokens": 10, "stream": stream})
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    time.sleep(seconds)
                    client.close()
        wait_until(lambda: state(server)["idle"])
        assert state(server)["kv_reserved"] == 0
        assert server.stop() == 0
    assert (tmp_path / "errors").read_text() == ""


def test_a_reader_that_stops_does_not_stop_the_others(tmp_path: Path) -> None:
    """A client that never reads is cut off at a bound; the stream beside it keeps its ticks."""
    hardware = tmp_path / "fast.toml"
    hardware.write_text("tick_s = 0.001\nkv_budget_tokens = 1000000\nprefill_tokens_per_tick = 100\n")
    with serving(
        tmp_path / "served", "--policy", "continuous", "--max-wait", "0", "--hardware", str(hardware)
    ) as server:
        where = urlsplit(server.url)
        stuck = socket.socket()
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect((where.hostname, where.port))
        fat = {"model": "m" * 4000}  # echoed in every event, so that buffers fill up soon
        data = json.dumps({"prompt": "time", "max_tokens": 90000, "stream": True, **fat}).encode()
        stuck.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: m\r\nContent-Length: %d\r\n\r\n" % len(data) + data
        )
        wait_until(lambda: state(server)["in_flight"] == 1)
        answer = read_all(send(server, {"prompt": "time", "max_tokens": 300, "stream": True}, version="1.0"))
        assert answer.endswith(b"data: [DONE]\n\n")
        wait_until(lambda: state(server)["cut_off"] == 1, seconds=60)
        wait_until(lambda: state(server)["idle"])
        assert (
            b'tokentick_cut_off_total{engine="0",model_name="tokentick-mock"} 1.0'
            in (ask(server, "GET", "/metrics")[1])
        )
        stuck.close()
        assert server.stop() == 0
    rows = {row["outcome"]: row for row in json_lines(tmp_path / "served" / "requests.jsonl")}
    ticks: Any = rows["completed"]["ticks"]
    assert ticks["last_token"] - ticks["first_token"] == 299
    beside: Any = rows["completed"]
    assert beside["last_token_ns"] - beside["first_token_ns"] < 5e9  # 0.3 s, were the machine quiet
    assert set(rows) == {"completed", "cancelled"}


def test_the_served_ledger_is_the_same_over_http_and_on_disk(tmp_path: Path) -> None:
    """Rows have the ticks, the write times and the client's id; the directory is complete after SIGTERM."""
    with serving(tmp_path / "served", "--tick", "0.02", "--record-tokens") as server:
        body = json.dumps({"prompt": "time and", "max_tokens": 3}).encode()
        request = urllib.request.Request(
            server.url + "/v1/completions", data=body, headers={"X-Request-Id": "mine"}
        )
        with urllib.request.urlopen(request, timeout=20) as response:
            response.read()
        assert ask(server, "POST", "/v1/completions", b'{"prompt": "time", "max_tokens": 72}')[0] == 400
        wait_until(lambda: state(server)["idle"])
        over_http = [json.loads(line) for line in ask(server, "GET", "/mock/ledger")[1].splitlines()]
        assert server.stop() == 0
    assert over_http == json_lines(server.out / "requests.jsonl")
    first, second = Run(server.out).rows()
    assert (first.request_id, first.prompt_tokens, first.tokens, first.outcome) == ("mine", 2, 3, "completed")
    assert first.token_ns is not None
    assert len(first.token_ns) == 3
    assert first.received_ns == 0
    assert (second.outcome, second.error) == ("rejected", "context_length_exceeded")
    info = Run(server.out).info
    assert info.complete
    assert info.clock.t0_monotonic_ns is not None


def test_reset_is_refused_in_flight_and_then_begins_a_new_ledger(one_slot: MockServer) -> None:
    """409 while a request is served; afterwards the ledger is empty and the next request is tick 0."""
    holder = send(one_slot, {"prompt": "time", "max_tokens": 5000, "stream": True})
    wait_until(lambda: state(one_slot)["in_flight"] == 1)
    assert ask(one_slot, "POST", "/mock/reset", b"")[0] == 409
    holder.close()
    wait_until(lambda: state(one_slot)["idle"])
    assert ask(one_slot, "POST", "/mock/reset", b"")[0] == 200
    assert ask(one_slot, "GET", "/mock/ledger")[1] == b""
    ask(one_slot, "POST", "/v1/completions", b'{"prompt": "time", "max_tokens": 1}')
    (row,) = Run(one_slot.out).rows()
    assert row.received_ns == 0


def test_a_reset_forgets_where_the_old_grid_began(one_slot: MockServer) -> None:
    """Reset and first request again and again: `run.json` has the last anchor, and none after a reset."""
    for _ in range(30):
        assert ask(one_slot, "POST", "/v1/completions", b'{"prompt": "time", "max_tokens": 1}')[0] == 200
        wait_until(lambda: state(one_slot)["idle"])
        assert ask(one_slot, "POST", "/mock/reset", b"")[0] == 200
    assert one_slot.stop() == 0
    assert Run(one_slot.out).info.clock.t0_monotonic_ns is None


@pytest.mark.parametrize(
    ("id", "status"), [(b"\xff\xfe", b"400"), ("Größe-模".encode(), b"200"), (b"mine-1", b"200")]
)
def test_a_request_id_comes_back_as_it_was_or_is_refused(
    server: MockServer, id: bytes, status: bytes
) -> None:
    """What is not UTF-8 has no place in a row, which is JSON, and is not changed into something else."""
    where = urlsplit(server.url)
    body = b'{"prompt": "time", "max_tokens": 1}'
    head = b"POST /v1/completions HTTP/1.0\r\nX-Request-Id: %b\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection((where.hostname, where.port), timeout=20) as connection:
        connection.sendall(head % (id, len(body)) + body)
        answer = connection.recv(4096)
    assert answer.split()[1] == status
    assert (b"X-Request-Id: " + id + b"\r\n" in answer) is (status == b"200")
    assert (b"X-Request-Id" in answer.partition(b"\r\n\r\n")[2]) is (status == b"400")


def test_sigterm_ends_within_the_grace_and_keeps_a_row_for_what_was_cut(tmp_path: Path) -> None:
    """An endless stream is cut after --grace; its row says so, with the tokens it had."""
    with serving(tmp_path / "served", "--tick", "0.01", "--grace", "0.2", "--hardware", "medium") as server:
        stream = send(server, {"prompt": "time", "max_tokens": 100000, "stream": True})
        wait_until(lambda: state(server)["tick"] > 25)
        begin = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - begin < 10
        stream.close()
    (row,) = Run(server.out).rows()
    assert row.outcome == "unfinished"
    assert row.tokens is not None
    assert 0 < row.tokens < 100000
    assert Run(server.out).info.complete


def test_kill_9_keeps_every_row_that_ended(tmp_path: Path) -> None:
    """Rows are on disk when their request has ended; the directory says that it is not complete."""
    with serving(tmp_path / "served", "--tick", "0.01") as server:
        for _ in range(3):
            assert ask(server, "POST", "/v1/completions", b'{"prompt": "time", "max_tokens": 2}')[0] == 200
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
    run = Run(tmp_path / "served")
    assert len(list(run.rows())) == 3
    assert not run.info.complete


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_names_no_model_gets_the_servers(tmp_path: Path, stream: bool) -> None:
    """The answer says what `--model` says; a request that names one has that come back."""
    with serving(tmp_path / "served", "--model", "small-8b", "--tick", "0.01") as server:
        for named, told in (({}, "small-8b"), ({"model": "other"}, "other")):
            fields = {"prompt": "a b", "max_tokens": 2, "stream": stream, **named}
            status, body, _ = ask(server, "POST", "/v1/completions", json.dumps(fields).encode())
            assert status == 200
            first = body.partition(b"\n")[0].removeprefix(b"data: ")
            assert json.loads(first)["model"] == told


def test_a_port_in_use_is_one_line(server: MockServer, tmp_path: Path) -> None:
    """The address that could not be had is named, once."""
    port = str(urlsplit(server.url).port)
    result = tokentick("serve", "--port", port, cwd=tmp_path)
    refused(result, 2, f"127.0.0.1:{port}", "in use")
    assert result.stderr.count(port) == 1


def test_a_full_disk_ends_the_server_with_one_line(tmp_path: Path) -> None:
    """The first row that cannot be written stops the server, and the file is named."""
    arguments = ["serve", "--port", "0", "--json", "--out", str(tmp_path / "served"), "--ticks", "none"]
    process = subprocess.Popen(
        [*on_full_disk(4000), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    server = MockServer(json.loads(process.stdout.readline())["url"], process, tmp_path / "served")
    with suppress(OSError, http.client.HTTPException):
        for _ in range(20):
            ask(server, "POST", "/v1/completions", b'{"prompt": "time", "max_tokens": 1}')
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 2
    assert errors.strip().splitlines() == [errors.strip()]
    assert "requests.jsonl" in errors
    run = Run(tmp_path / "served")
    assert not run.info.complete
    assert list(run.rows())
    assert run.notes  # the row that did not fit is cut off, and that is said
