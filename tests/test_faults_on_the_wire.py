"""Each fault as a client meets it: on a bare socket, as the load generator reads it, and in the ledger."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
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
from tests.conftest import MockServer, json_lines, refused, serving, tokentick
from tests.test_server import ask, wait_until
from tests.test_server import state as server_state
from tests.transcripts import DATA, load_all

TICK_S = 0.01


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
    with socket.create_connection((where.hostname, where.port), timeout=20) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + data)
        return read(connection)


def read(connection: socket.socket) -> Answer:
    start, first, pieces, ended = time.monotonic(), 0.0, bytearray(), "end"
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
    """A server with all transcripts as scripts; whatever is asked of it, it has nothing to say on stderr."""
    path = tmp_path_factory.mktemp("faults")
    flags = [f"--tick={TICK_S}", "--policy=chunked", f"--script={DATA}"]
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
    if after:  # else it was cut with the headers, and when that was is the machine's doing
        assert row["tokens"] == after
        assert row["ticks"]["cancel"] == row["ticks"]["first_token"] + after
        assert row["ticks"]["last_token"] is None


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
    """Half a second without a byte, then everything; the tokens have their ticks all the same."""
    with socket.create_connection(urlsplit(faulty.url).netloc.split(":"), timeout=20) as other:
        data = json.dumps({"prompt": "time", "stream": True, "max_tokens": 60}).encode()
        head = "POST /v1/completions HTTP/1.0\r\nHost: m\r\nX-Request-Id: beside\r\nContent-Length: "
        other.sendall(f"{head}{len(data)}\r\n\r\n".encode() + data)
        answer = request(faulty, "stall:after=3,seconds=0.8", {"max_tokens": 10}, "stall")
        beside = read(other)
    assert (answer.words, answer.ended) == (10, "end")
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert answer.first_byte_s < 0.7
    assert answer.took_s >= 0.8
    assert beside.words == 60
    row, fellow = row_of(faulty, "stall"), row_of(faulty, "beside")
    assert row["outcome"] == "completed"
    assert row["ticks"]["last_token"] - row["ticks"]["first_token"] < 70
    assert fellow["ticks"]["last_token"] - fellow["ticks"]["first_token"] < 120


def test_a_slow_first_byte_holds_back_the_headers(faulty: MockServer) -> None:
    """Nothing at all for half a second, then the whole answer."""
    answer = request(faulty, "slow-first-byte:seconds=0.5", {"max_tokens": 5}, "slow")
    assert answer.first_byte_s >= 0.5
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
    assert request(faulty, "stall:seconds=0.3", whole).took_s >= 0.3
    names = ("whole-cut", "whole-error", "whole-malformed-event", "whole-broken-utf8")
    outcomes = [row_of(faulty, name)["outcome"] for name in names]
    assert outcomes == ["connect_error", "http_error", "stream_error", "completed"]


def test_a_fault_after_more_tokens_than_there_are_does_not_strike(faulty: MockServer) -> None:
    """The answer is whole, and the row names the fault that it was to have."""
    for kind in ("cut", "error-event", "malformed-event", "stall"):
        answer = request(faulty, f"{kind}:after=3", {"max_tokens": 3}, f"spared-{kind}")
        assert answer.words == 3
        assert answer.body.endswith(b"data: [DONE]\n\n")
        row = row_of(faulty, f"spared-{kind}")
        assert row["outcome"] == "completed"
        assert row["fault"].startswith(kind)


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
        assert row_of(server, "fat")["outcome"] == "cancelled"


def test_configuration_changes_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    """What is in force is told, obeyed and kept in the run directory; a mistake changes nothing."""
    with serving(tmp_path / "served", "--tick=0.01", "--fault=cut:after=2@0") as server:

        def post(config: object) -> tuple[int, Any]:
            status, body, _ = ask(server, "POST", "/mock/config", json.dumps(config).encode())
            return status, json.loads(body) if isinstance(body, bytes) else body

        first = {"faults": ["cut:after=2@0"], "seed": 0, "plan": []}
        assert json.loads(ask(server, "GET", "/mock/config")[1]) == first
        for wrong in (
            {"faults": ["http-500"], "seed": "x"},
            {"sead": 1},
            {"faults": ["bang"]},
            [],
            {"plan": 1},
        ):
            status, body = post(wrong)
            assert (status, body["error"]["code"]) == (400, "invalid_config"), wrong
        assert json.loads(ask(server, "GET", "/mock/config")[1]) == first
        assert request(server, None, {"max_tokens": 2}).status == 200
        plan = [{"request_id": "a", "fault": "http-503:retry_after=1"}]
        changed = {"faults": ["http-500@1"], "seed": 3, "plan": plan}
        assert post(changed) == (200, changed)
        assert [request(server, None, {}, id).status for id in ("a", "b")] == [503, 500]
        assert post({"faults": []}) == (200, {**changed, "faults": []})
        assert request(server, None, {"max_tokens": 2}, "b").status == 200
        assert server.stop() == 0
    kept = Run(tmp_path / "served").info.config.extra["faults"]
    assert [change["from_request"] for change in kept] == ["S1", "S2", "S4"]
    assert kept[1] == {"from_request": "S2", **changed}


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--fault=bang"], "bang"),
        (["--fault=cut@2"], "probability"),
        (["--fault=script:x@0.1"], "unknown script"),
        (["--fault-plan=nowhere.jsonl"], "nowhere.jsonl"),
        (["--script=nowhere.json"], "nowhere.json"),
    ],
)
def test_flags_that_cannot_be_are_one_line(tmp_path: Path, flags: list[str], named: str) -> None:
    """Exit code 2, before anything listens."""
    refused(tokentick("serve", "--port=0", *flags, cwd=tmp_path), 2, named)


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
    fields = ("outcome", "fault", "error", "http_status", "tokens", "received_ns")
    for id, row in rows.items():
        assert [getattr(simulated[id], name) for name in fields] == [getattr(row, name) for name in fields]
    outcomes = {row.outcome for row in rows.values()}
    assert outcomes >= {"completed", "truncated", "stream_error", "http_error"}
    seen = {row.request_id: row.outcome for row in Run(tmp_path / "measured").rows()}
    assert {row.request_id: row.outcome for row in rows.values()} == seen
    assert tokentick("report", "served", cwd=tmp_path).returncode == 0


def test_the_load_generator_reads_every_script_as_it_should(faulty: MockServer, tmp_path: Path) -> None:
    """All transcripts of a dialect in one run: each outcome is the one that its transcript expects."""
    cases = load_all()
    for api in sorted({case.api for case in cases}):
        names = [case.name for case in cases if case.api == api]
        lines = [
            f'{{"id":"{name}","prompt_tokens":3,"output_tokens":3,"at":{i}}}' for i, name in enumerate(names)
        ]
        (tmp_path / f"{api}.jsonl").write_text("\n".join(lines) + "\n")
        plan = [{"request_id": name, "fault": f"script:{name}"} for name in names]
        body = json.dumps({"plan": plan}).encode()
        assert ask(faulty, "POST", "/mock/config", body)[0] == 200
        flags = [
            "--stall-timeout=2",
            "--first-token-timeout=3",
            "--no-preflight",
            "--model=m",
            f"--out={api}",
        ]
        tokentick(
            "run",
            f"{api}.jsonl",
            f"--api={api}",
            "--rate=50",
            "--base-url",
            faulty.url,
            *flags,
            cwd=tmp_path,
        )
        outcomes = {row.id: row.outcome for row in Run(tmp_path / api).rows()}
        wrong = {case.name: outcomes[case.name] for case in cases if case.api == api}
        expected = {case.name: case.outcomes for case in cases if case.api == api}
        assert {name: is_ for name, is_ in wrong.items() if is_ not in expected[name]} == {}


def test_a_script_is_played_at_any_path_and_its_row_says_how_it_went(faulty: MockServer) -> None:
    """Byte for byte, in its own dialect, whatever was asked; without the header the path is unknown."""
    case = next(case for case in load_all() if case.name == "anthropic_messages_thinking")
    where = urlsplit(faulty.url)
    for fault, status in (("X-Mock-Fault: script:anthropic_messages_thinking\r\n", 200), ("", 404)):
        with socket.create_connection((where.hostname, where.port), timeout=20) as connection:
            head = (
                f"POST /v1/messages HTTP/1.1\r\nHost: m\r\nX-Request-Id: any\r\n{fault}Content-Length: 2\r\n"
            )
            connection.sendall(f"{head}Connection: close\r\n\r\n[]".encode())
            answer = read(connection)
        assert answer.status == status
        if status == 200:
            assert answer.body == b"".join(case.framed(case.parts)) + case.end
    row = row_of(faulty, "any")
    assert (row["outcome"], row["http_status"], row["ticks"]) == ("completed", 200, None)
    assert (row["fault"], row["prompt_tokens"]) == ("script:anthropic_messages_thinking", 0)


def test_a_script_that_hangs_is_ended_by_its_client_or_by_the_shutdown(tmp_path: Path) -> None:
    """Neither holds the server up, and each has its row."""
    script = DATA / "sse_hang_midstream.json"
    with serving(tmp_path / "served", f"--script={script}", "--grace=0.3") as server:
        where = urlsplit(server.url)
        head = "POST /v1/completions HTTP/1.1\r\nHost: m\r\nX-Mock-Fault: script:sse_hang_midstream\r\n"
        clients = []
        for name in ("left", "stayed"):
            clients.append(socket.create_connection((where.hostname, where.port), timeout=20))
            clients[-1].sendall(f"{head}X-Request-Id: {name}\r\nContent-Length: 2\r\n\r\n{{}}".encode())
            assert b" 200 " in clients[-1].recv(20)
        clients[0].close()
        assert row_of(server, "left")["outcome"] == "cancelled"
        assert server.stop() == 0
        assert row_of(server, "stayed")["outcome"] == "unfinished"
        clients[1].close()
