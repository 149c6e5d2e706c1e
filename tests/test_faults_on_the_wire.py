"""Each fault as a client meets it: on a bare socket, as the load generator reads it, and in the ledger."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from ledgers.rows import TickRow
from ledgers.rundir import Run
from ledgers.settings import SchedulerSettings
from mock_server.policies import make_scheduler
from mock_server.simulate import served_inputs, simulate
from reports.schedule import compare_schedule
from reports.sides import Side
from tests.conftest import MockServer, json_lines, serving, tokentick
from tests.test_server import ask, wait_until
from tests.test_server import state as server_state

TICK_S = 0.01
EARLY_S = 0.005
"""The server's loop counts in milliseconds: a timer can end a little before its time."""


class Answer(NamedTuple):
    """What came over a socket, and how it ended: `end`, `reset` or `silence`."""

    head: bytes
    body: bytes
    ended: str
    first_byte_s: float
    took_s: float

    @property
    def status(self) -> int:
        return int(self.head.split()[1])

    @property
    def words(self) -> int:
        """How many events have text."""
        return self.body.count(b'"text":"') - self.body.count(b'"text":""')


def request(server: MockServer, fault: str | None, body: dict[str, Any], id: str | None = None) -> Answer:
    """One request, on a connection of its own, over HTTP/1.0 so that events stand on the wire as they are."""
    where = urlsplit(server.url)
    data = json.dumps({"prompt": "time", "stream": True, **body}).encode()
    lines = ["POST /v1/completions HTTP/1.0", "Host: mock", f"Content-Length: {len(data)}"]
    lines += [f"X-Mock-Fault: {fault}"] if fault else []
    lines += [f"X-Request-Id: {id}"] if id else []
    start = time.monotonic()
    with socket.create_connection((where.hostname, where.port), timeout=20) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + data)
        return read(connection, start)


def read(connection: socket.socket, start: float) -> Answer:
    first, pieces, ended = 0.0, bytearray(), "end"
    try:
        while piece := connection.recv(65536):
            first = first or time.monotonic() - start
            pieces += piece
    except ConnectionResetError:
        ended = "reset"
    except TimeoutError:
        ended = "silence"
    head, _, body = bytes(pieces).partition(b"\r\n\r\n")
    return Answer(head, body, ended, first, time.monotonic() - start)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockServer]:
    """A server that has nothing to say on stderr, whatever is asked of it."""
    path = tmp_path_factory.mktemp("faults")
    flags = [f"--tick={TICK_S}", "--policy=chunked"]
    with (path / "errors").open("w") as errors, serving(path / "served", *flags, stderr=errors) as mock:
        yield mock
        assert mock.stop() == 0
    assert (path / "errors").read_text() == ""


def row_of(server: MockServer, id: str) -> dict[str, Any]:
    """The row of a request, once it is there."""
    found: list[dict[str, Any]] = []

    def there() -> bool:
        found[:] = [row for row in json_lines(server.out / "requests.jsonl") if row["request_id"] == id]
        return bool(found)

    wait_until(there)
    assert len(found) == 1
    return found[0]


def test_an_http_error_is_a_row_without_ticks(faulty: MockServer) -> None:
    """429 and 503 ask to wait, 500 does not; each is in OpenAI's shape, and none meets the scheduler."""
    for status, word in ((429, "http-429:retry_after=7"), (500, "http-500"), (503, "http-503")):
        code, body, headers = ask_with(faulty, word, f"e{status}")
        assert code == status
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert headers.get("Retry-After") == {429: "7", 500: None, 503: "1"}[status]
        assert headers["X-Request-Id"] == f"e{status}"
        row = row_of(faulty, f"e{status}")
        assert (row["outcome"], row["http_status"], row["ticks"]) == ("http_error", status, None)
        assert row["fault"].startswith(word)
        assert row["retry_after_s"] == {429: 7, 500: None, 503: 1}[status]
        assert row["received_ns"] is not None


def ask_with(server: MockServer, fault: str, id: str) -> tuple[int, Any, dict[str, str]]:
    answer = request(server, fault, {"stream": False, "max_tokens": 3}, id)
    lines = answer.head.decode().split("\r\n")[1:]
    return answer.status, json.loads(answer.body), dict(line.split(": ", 1) for line in lines)


@pytest.mark.parametrize("after", [0, 1, 4])
def test_a_cut_comes_after_so_many_tokens(faulty: MockServer, after: int) -> None:
    """By a RST, with no end of the body; the request gives up its place at the very next tick."""
    answer = request(faulty, f"cut:after={after}", {"max_tokens": 60}, f"cut{after}")
    assert (answer.status, answer.words, answer.ended) == (200, after, "reset")
    assert b"[DONE]" not in answer.body
    row = row_of(faulty, f"cut{after}")
    assert (row["outcome"], row["fault"]) == ("truncated", f"cut:after={after}")
    ticks = row["ticks"]
    assert (row["tokens"], ticks["last_token"]) == (after, None)
    assert ticks["cancel"] == (ticks["first_token"] + after if after else ticks["received"] + 1)


def test_an_error_event_ends_the_stream(faulty: MockServer) -> None:
    """So many tokens, an error object, an orderly end without [DONE]; the slot is free by the next tick."""
    answer = request(faulty, "error-event:after=2", {"max_tokens": 60}, "error")
    events = answer.body.split(b"\n\n")
    assert (answer.status, answer.words, answer.ended) == (200, 2, "end")
    assert set(json.loads(events[2].removeprefix(b"data: "))["error"]) == {"message", "type", "param", "code"}
    assert events[3:] == [b""]
    row = row_of(faulty, "error")
    assert (row["outcome"], row["tokens"]) == ("stream_error", 2)
    assert row["ticks"]["cancel"] == row["ticks"]["first_token"] + 2


def test_a_stall_holds_back_what_comes_after_and_nothing_of_another_stream(faulty: MockServer) -> None:
    """Two seconds without a byte, then everything; a stream beside it is over long before."""
    with (
        socket.create_connection(urlsplit(faulty.url).netloc.split(":"), timeout=20) as other,
        ThreadPoolExecutor() as pool,
    ):
        data = json.dumps({"prompt": "time", "stream": True, "max_tokens": 60}).encode()
        head = "POST /v1/completions HTTP/1.0\r\nHost: m\r\nX-Request-Id: beside\r\nContent-Length: "
        start = time.monotonic()
        other.sendall(f"{head}{len(data)}\r\n\r\n".encode() + data)
        reading = pool.submit(read, other, start)
        answer = request(faulty, "stall:after=3,seconds=2", {"max_tokens": 10}, "stall")
        beside = reading.result()
    assert (answer.words, answer.ended) == (10, "end")
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert answer.first_byte_s < 1.8
    assert answer.took_s >= 2 - EARLY_S
    assert (beside.words, beside.ended) == (60, "end")
    assert beside.took_s < 2  # 0.6 s, were the machine quiet
    row, fellow = row_of(faulty, "stall"), row_of(faulty, "beside")
    assert row["outcome"] == fellow["outcome"] == "completed"
    assert row["ticks"]["first_token"] < fellow["ticks"]["last_token"]  # they were there at the same time
    assert row["ticks"]["last_token"] - row["ticks"]["first_token"] == 9
    assert fellow["ticks"]["last_token"] - fellow["ticks"]["first_token"] == 59


def test_a_slow_first_byte_holds_back_the_headers(faulty: MockServer) -> None:
    """Nothing at all for half a second, then the whole answer."""
    answer = request(faulty, "slow-first-byte:seconds=0.5", {"max_tokens": 5}, "slow")
    assert answer.first_byte_s >= 0.5 - EARLY_S
    assert (answer.words, answer.ended) == (5, "end")
    assert row_of(faulty, "slow")["outcome"] == "completed"


def test_a_malformed_event_is_no_json_and_the_stream_goes_on(faulty: MockServer) -> None:
    """The event after three good ones cannot be parsed, all others can."""
    answer = request(faulty, "malformed-event:after=3", {"max_tokens": 6}, "malformed")
    bad = []
    for number, event in enumerate(answer.body.split(b"\n\n")[:-2]):
        try:
            json.loads(event.removeprefix(b"data: "))
        except ValueError:
            bad.append(number)
    assert bad == [3]
    assert answer.body.endswith(b"data: [DONE]\n\n")
    row = row_of(faulty, "malformed")
    assert (row["outcome"], row["ticks"]["cancel"], row["tokens"]) == ("stream_error", None, 6)


def test_broken_utf8_is_in_one_event_alone(faulty: MockServer) -> None:
    """The event after one good one is no UTF-8; but for that it is good JSON."""
    answer = request(faulty, "broken-utf8", {"max_tokens": 4}, "utf8")
    events = answer.body.split(b"\n\n")
    with pytest.raises(UnicodeDecodeError):
        events[1].decode()
    assert (
        "�" in json.loads(events[1].decode("utf-8", "replace").removeprefix("data: "))["choices"][0]["text"]
    )
    b"\n\n".join([events[0], *events[2:]]).decode()
    assert row_of(faulty, "utf8")["outcome"] == "completed"


def test_a_fault_beside_continuous_usage_is_that_fault(faulty: MockServer) -> None:
    """And no error of the server's own: every event says the usage, off by as much as was asked."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = request(faulty, "wrong-usage:by=3", {"max_tokens": 2, "stream": True, "stream_options": options})
    assert b'"completion_tokens":4' in answer.body
    assert b'"completion_tokens":5' in answer.body


def test_a_wrong_usage_is_off_by_as_much_as_was_asked(faulty: MockServer) -> None:
    """Five tokens, and a usage of eight; the ledger has the right count."""
    answer = request(
        faulty, "wrong-usage:by=3", {"max_tokens": 5, "stream_options": {"include_usage": True}}, "usage"
    )
    usage = json.loads(answer.body.split(b"\n\n")[-3].removeprefix(b"data: "))["usage"]
    assert usage == {"prompt_tokens": 1, "completion_tokens": 8, "total_tokens": 9}
    assert answer.words == 5
    assert row_of(faulty, "usage")["tokens"] == 5


def test_answers_in_one_piece_have_their_faults_too(faulty: MockServer) -> None:
    """A cut is no answer, an error event a 500, damage is in the body, a stall is a wait."""
    whole = {"stream": False, "max_tokens": 5}
    cut = request(faulty, "cut:after=2", whole, "whole-cut")
    assert (cut.head, cut.ended) == (b"", "reset")
    failed = request(faulty, "error-event:after=2", whole, "whole-error")
    assert (failed.status, json.loads(failed.body)["error"]["code"]) == (500, "server_error")
    for kind in ("malformed-event", "broken-utf8"):
        answer = request(faulty, kind, whole, f"whole-{kind}")
        assert answer.status == 200
        with pytest.raises(ValueError, match=r"codec|Expecting"):
            json.loads(answer.body)
    assert json.loads(request(faulty, "wrong-usage", whole).body)["usage"]["completion_tokens"] == 6
    assert request(faulty, "stall:seconds=0.3", whole).took_s >= 0.3 - EARLY_S
    names = ("whole-cut", "whole-error", "whole-malformed-event", "whole-broken-utf8")
    outcomes = [row_of(faulty, name)["outcome"] for name in names]
    assert outcomes == ["connect_error", "http_error", "stream_error", "completed"]


def test_a_fault_after_more_tokens_than_there_are_does_not_strike(faulty: MockServer) -> None:
    """The answer is whole and in time, streamed or not; neither its row nor a counter names the fault."""
    before = faults_counted(faulty)
    for stream in (True, False):
        for kind in (
            "cut:after=3",
            "error-event:after=3",
            "malformed-event:after=3",
            "stall:after=3,seconds=60",
        ):
            id = f"spared-{stream}-{kind}"
            answer = request(faulty, kind, {"max_tokens": 3, "stream": stream}, id)
            assert answer.ended == "end"
            assert answer.body.endswith(b"data: [DONE]\n\n") or json.loads(answer.body)["choices"]
            row = row_of(faulty, id)
            assert (row["outcome"], row["fault"]) == ("completed", None)
    assert faults_counted(faulty) == before
    request(faulty, "cut:after=3", {"max_tokens": 4}, "counted")
    row_of(faulty, "counted")
    assert faults_counted(faulty) == {**before, "cut": before.get("cut", 0) + 1}


def faults_counted(server: MockServer) -> dict[str, float]:
    text = ask(server, "GET", "/metrics")[1].decode()
    found = re.findall(r'^tokentick_faults_total\{.*fault="([^"]*)".*\} (.*)$', text, re.MULTILINE)
    return {kind: float(count) for kind, count in found}


def test_a_header_that_names_no_fault_is_refused(faulty: MockServer) -> None:
    """400 in OpenAI's shape, with what was wrong."""
    answer = request(faulty, "bang", {})
    assert answer.status == 400
    error = json.loads(answer.body)["error"]
    assert (error["code"], "bang" in error["message"]) == ("invalid_fault", True)


def test_a_stall_beyond_the_bound_of_a_stream_is_cut_off(tmp_path: Path) -> None:
    """What is held back does not grow without end."""
    hardware = tmp_path / "fast.toml"
    hardware.write_text("tick_s = 0.001\nkv_budget_tokens = 1000000\nprefill_tokens_per_tick = 100\n")
    with serving(tmp_path / "served", "--policy=chunked", "--hardware", str(hardware)) as server:
        fat = {"model": "m" * 4000, "max_tokens": 5000}  # the model's name is in every event
        answer = request(server, "stall:after=1,seconds=60", fat, "fat")
        assert answer.took_s < 30
        wait_until(lambda: server_state(server)["idle"])
        assert server_state(server)["cut_off"] == 1
        row = row_of(server, "fat")
        assert (row["outcome"], row["error"]) == ("cancelled", "the reader was too far behind")


def test_a_simulation_of_what_was_received_has_the_same_rows(tmp_path: Path) -> None:
    """Forty requests, most with a fault: every tick, outcome and fault is the same, request by request."""
    faults = "cut:after=3 error-event:after=2 stall:after=1,seconds=0.1 http-500 malformed-event broken-utf8"
    flags = [f"--fault={word}@0.13" for word in faults.split()]
    ledger = ["--num-prompts=40", "--random-input-len=20", "--random-output-len=8", "--request-rate=100"]
    with serving(
        tmp_path / "served", f"--tick={TICK_S}", "--policy=chunked", *flags, "--fault-seed=1"
    ) as server:
        client = ["--base-url", server.url, "--no-preflight", "--out=measured", "--seed=1", "--quiet"]
        tokentick("run", *ledger, *client, cwd=tmp_path)
        assert server.stop() == 0
    served = Run(tmp_path / "served")
    rows = {row.id: row for row in served.rows()}
    requests, cancels = served_inputs(rows.values())
    config = served.info.config
    assert config.hardware is not None
    settings = SchedulerSettings(
        policy="chunked", hardware=config.hardware, prefill_chunk=config.prefill_chunk or 0
    )
    ticks: list[TickRow] = []
    again = simulate(make_scheduler(settings), requests, cancels=cancels, on_tick=ticks.append)
    simulated = {row.id: row for row in again}
    both = [
        Side(rows, {tick.tick: tick for tick in served.ticks()}),
        Side(simulated, {tick.tick: tick for tick in ticks}),
    ]
    schedule = compare_schedule(*both)
    assert (schedule.agrees, schedule.requests_equal) == (True, 40)
    fields = ("outcome", "fault", "error", "http_status", "retry_after_s", "tokens", "received_ns")
    for id, row in rows.items():
        assert [getattr(simulated[id], name) for name in fields] == [getattr(row, name) for name in fields]
    outcomes = {row.outcome for row in rows.values()}
    assert outcomes >= {"completed", "truncated", "stream_error", "http_error"}
    seen = {row.request_id: row.outcome for row in Run(tmp_path / "measured").rows()}
    assert {row.request_id: row.outcome for row in rows.values()} == seen
    assert tokentick("report", "served", cwd=tmp_path).returncode == 0
