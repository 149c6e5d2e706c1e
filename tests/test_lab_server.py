"""The lab as a process: its page and API, what it refuses, and that nothing of it is left behind."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple
from unittest.mock import Mock

import pytest
from aiohttp.streams import StreamReader
from aiohttp.test_utils import make_mocked_request

from reports.lab.app import Lab
from reports.lab.experiment import experiment
from reports.lab.live import LiveRuns
from reports.lab.setting import Setting, SettingError, parse_strictly
from tests.conftest import COMMAND, refused, tokentick

FAST = "rate=100&tick=0.02&policy=chunked"  # 0.15 s of arrivals, and less than a second in all
LONG = "preset=steady&policy=immediate&tick=0.02"  # many seconds of arrivals, and a short warm-up


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class RunningLab(NamedTuple):
    """A lab; its temporary files are below `temporary`."""

    process: subprocess.Popen[str]
    port: int
    temporary: Path

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        answer = Answer(response.status, dict(response.headers), response.read())
        connection.close()
        return answer

    def own(self, method: str, path: str, value: Any = None) -> Answer:
        """As its own page asks."""
        body = None if value is None else json.dumps(value).encode()
        return self.ask(method, path, body, {"Origin": self.origin, "Content-Type": "application/json"})

    def start(self, query: str) -> str:
        answer = self.own("POST", "/api/runs", {"query": query})
        assert answer.status == 201, answer.body
        id: str = answer.json["id"]
        return id

    def events(self, id: str, last: int = 0) -> Generator[tuple[str, Any], None, None]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", f"/api/runs/{id}/events", headers={"Last-Event-ID": str(last)})
        with closing(connection), connection.getresponse() as response:
            assert response.headers["Content-Type"].startswith("text/event-stream")
            yield from _events(response)

    def left_behind(self) -> list[str]:
        """Its temporary files, and the processes that have such a file among their arguments."""
        found = [path.name for path in self.temporary.iterdir()]
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                arguments = process.read_bytes()
            except OSError:
                continue
            if os.fsencode(self.temporary) in arguments:
                found.append(arguments.decode(errors="replace"))
        return found


def _events(response: IO[bytes]) -> Iterator[tuple[str, Any]]:
    fields: dict[str, str] = {}
    for line in response:
        name, colon, value = line.decode().rstrip("\n").partition(": ")
        if colon:
            fields[name] = value
        elif "event" in fields:
            yield fields["event"], json.loads(fields["data"])
            fields = {}


@contextmanager
def running_lab(temporary: Path) -> Iterator[RunningLab]:
    """Killed at the end if it still runs."""
    temporary.mkdir(exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(temporary)}
    command = [*COMMAND, "lab", "--port", "0"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            assert said.startswith("lab: http://127.0.0.1:"), said
            yield RunningLab(process, int(said.split("/")[2].partition(":")[2]), temporary)
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    with running_lab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


# What it answers


def test_the_experiment_as_json(lab: RunningLab) -> None:
    """What the pure part computes, and its canonical query."""
    answer = lab.ask("GET", "/api/experiment?rate=8.0&policy=static")
    assert answer.status == 200
    assert answer.json["query"] == "preset=busy&policy=static"
    assert answer.json == json.loads(json.dumps(experiment(parse_strictly("preset=busy&policy=static"))))


def test_the_page_has_the_results_without_javascript(lab: RunningLab) -> None:
    """A form's GET with every knob: the page names the policies."""
    answer = lab.ask(
        "GET", "/?preset=busy&rate=8&batch=4&wait=0.2&slo=1550&ttft=&tick=&policy=static&lang=en"
    )
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert all(policy in answer.body.decode() for policy in ("immediate", "static", "continuous", "chunked"))


@pytest.mark.parametrize(
    ("query", "accepted", "lang"),
    [
        ("", "", "en"),
        ("", "zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("", "de, en;q=0.5, zh;q=0.4", "en"),
        ("", "zh;q=nonsense", "en"),
        ("lang=zh", "en", "zh"),
        ("lang=en", "zh", "en"),
    ],
)
def test_the_language_is_the_one_asked_for(lab: RunningLab, query: str, accepted: str, lang: str) -> None:
    answer = lab.ask("GET", f"/?{query}", headers={"Accept-Language": accepted})
    assert f'<html lang="{lang}' in answer.body.decode()


def test_a_page_with_a_bad_value_is_still_a_page(lab: RunningLab) -> None:
    """It says so; what came in is text, whatever it looks like."""
    answer = lab.ask("GET", "/?rate=%3Cscript%3Ealert(1)%3C/script%3E&colour=%3Cb%3E")
    assert answer.status == 200
    assert b"<script>alert" not in answer.body
    assert b"<b>" not in answer.body
    assert b"that is not a number from 0.1 to 100" in answer.body
    assert lab.ask("GET", "/?rate=0.1&tick=0.02").status == 200


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("rate=2&rate=3", {"field": "rate", "code": "given_twice", "values": {}}),
        ("x=" + "1" * 600, {"field": None, "code": "query_too_long", "values": {"most": 512}}),
        ("rate=0.1&tick=0.02", {"field": None, "code": "too_many_ticks", "values": {"most": 3000}}),
    ],
)
def test_a_bad_setting_is_refused_by_its_field(lab: RunningLab, query: str, error: Mapping[str, Any]) -> None:
    """With a message for who reads, and a code and figures for a page that says it in its own words."""
    answer = lab.ask("GET", f"/api/experiment?{query}")
    assert answer.status == 400
    assert answer.json["error"]["message"]
    assert answer.json["error"] == {**error, "message": answer.json["error"]["message"]}


# What it does not let in


@pytest.mark.parametrize("path", ["/", "/api/experiment", "/static/nothing.js", "/nothing"])
def test_every_answer_is_hardened(lab: RunningLab, path: str) -> None:
    """Errors too. The policy allows no inline script, no other origin and no frame."""
    headers = lab.ask("GET", path).headers
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize(
    "host", ["lab.example.org", "127.0.0.1", "lab.example.org:{port}", "127.0.0.1:1", ""]
)
def test_another_name_for_this_machine_is_refused(lab: RunningLab, host: str) -> None:
    """A page elsewhere can have its own name mean 127.0.0.1, and would then read what we answer."""
    answer = lab.ask("GET", "/api/experiment", headers={"Host": host.format(port=lab.port)})
    assert answer.status == 421
    assert answer.json["error"]["code"] == "wrong_host"


def test_a_target_names_this_page_too(lab: RunningLab) -> None:
    """A target in absolute form counts as much as the Host header."""
    own = f"localhost:{lab.port}"
    for authority, status in ((own, 200), (f"LOCALHOST:{lab.port}", 200), ("lab.example.org", 421)):
        target = f"http://{authority}/static/lab.css"
        assert lab.ask("GET", target, headers={"Host": own}).status == status, target


def test_localhost_is_this_machine_too(lab: RunningLab) -> None:
    assert lab.ask("GET", "/", headers={"Host": f"localhost:{lab.port}"}).status == 200


@pytest.mark.parametrize(
    "origin", [None, "null", "http://lab.example.org", "https://127.0.0.1:{port}", "http://127.0.0.1:1"]
)
@pytest.mark.parametrize(("method", "path"), [("POST", "/api/runs"), ("DELETE", "/api/runs/0")])
def test_another_page_cannot_start_or_stop_anything(
    lab: RunningLab, method: str, path: str, origin: str | None
) -> None:
    headers = {"Content-Type": "application/json"}
    if origin is not None:
        headers["Origin"] = origin.format(port=lab.port)
    assert lab.ask(method, path, b'{"query": ""}', headers).status == 403
    assert lab.left_behind() == []


@pytest.mark.parametrize(
    ("method", "path", "body", "kind", "status", "code"),
    [
        ("DELETE", "/api/runs", b"", "application/json", 405, "wrong_method"),
        ("PUT", "/api/runs", b"{}", "application/json", 405, "wrong_method"),
        ("POST", "/", b"{}", "application/json", 405, "wrong_method"),
        ("POST", "/api/experiment", b"{}", "application/json", 405, "wrong_method"),
        ("POST", "/api/runs", b'{"query": ""}', "text/plain", 415, "wrong_type"),
        ("POST", "/api/runs", b"query=", "application/x-www-form-urlencoded", 415, "wrong_type"),
        ("POST", "/api/runs", b"{", "application/json", 400, "bad_request"),
        ("POST", "/api/runs", b'{"query": 1}', "application/json", 400, "bad_request"),
        ("POST", "/api/runs", b'{"command": "x"}', "application/json", 400, "bad_request"),
        ("POST", "/api/runs", b'{"query": "rate=0"}', "application/json", 400, "out_of_range"),
        ("POST", "/api/runs", b'{"query": "' + b"x" * 5_000 + b'"}', "application/json", 413, "too_large"),
        ("GET", "/api/runs/none/events", b"", "application/json", 404, "not_found"),
        ("DELETE", "/api/runs/none", b"", "application/json", 404, "not_found"),
    ],
)
def test_what_is_refused_is_refused_in_json(
    lab: RunningLab, method: str, path: str, body: bytes, kind: str, status: int, code: str
) -> None:
    """By its status, with one message, and without a word of where in the program."""
    answer = lab.ask(method, path, body or None, {"Origin": lab.origin, "Content-Type": kind})
    assert answer.status == status, answer.body
    assert answer.json["error"]["message"]
    assert answer.json["error"]["code"] == code
    assert b"Traceback" not in answer.body
    assert b".py" not in answer.body
    assert lab.left_behind() == []


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static/..%5capp.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/app.py",
        "/static/lab.js%00.css",
        "/static/",
        "/static/.css",
    ],
)
def test_no_other_file_can_be_had(lab: RunningLab, path: str) -> None:
    answer = lab.ask("GET", path)
    assert answer.status == 404
    assert b"import" not in answer.body


def test_it_listens_on_this_machine_only(lab: RunningLab) -> None:
    """No other address of this machine answers, not even another of the loopback net."""
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", lab.port), timeout=5)


HOST = b"Host: localhost:{port}\r\n"
POST = (
    b"POST /api/runs HTTP/1.1\r\n"
    + HOST
    + (b"Origin: http://localhost:{port}\r\nContent-Type: application/json\r\n")
)
MALFORMED = {
    "no HTTP": b"\x16\x03\x01 this is no HTTP\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
    "a method that there is not": b"FROB / HTTP/1.1\r\n" + HOST + b"\r\n",
    "9 KB of URL": b"GET /" + b"x" * 9_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    "a big header": b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 20_000 + b"\r\n\r\n",
    "3,000 headers": b"GET / HTTP/1.1\r\n" + HOST + b"X: x\r\n" * 3_000 + b"\r\n",
    "control characters": b"GET / HTTP/1.1\r\n" + HOST + b"X: \x00\x01\r\n\r\n",
    "two lengths": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "no gzip": POST + b'Content-Encoding: gzip\r\nContent-Length: 12\r\n\r\n{"query":""}',
    "no gzip, and not read": b"PUT / HTTP/1.1\r\n"
    + HOST
    + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnone",
    "an expectation": b"GET / HTTP/1.1\r\n" + HOST + b"Expect: foo\r\n\r\n",
}


def test_what_is_malformed_is_refused_in_json_without_a_word_in_the_terminal(tmp_path: Path) -> None:
    """What the HTTP parser refuses too, with the headers of every answer; it is no failure of the lab."""
    with running_lab(tmp_path / "lab") as lab:
        for name, sent in MALFORMED.items():
            with socket.create_connection(("127.0.0.1", lab.port), timeout=20) as connection:
                connection.sendall(sent.replace(b"{port}", str(lab.port).encode()))
                response = http.client.HTTPResponse(connection)
                response.begin()
                assert 400 <= response.status < 500, name
                assert response.headers["Content-Security-Policy"].startswith("default-src 'none'"), name
                assert response.headers["Cache-Control"] == "no-store", name
                error = json.loads(response.read())["error"]
                assert error["message"], name
                assert error["code"] in ("bad_request", "wrong_method", "wrong_expectation"), name
        assert lab.ask("GET", "/").status == 200
        lab.process.send_signal(signal.SIGTERM)
        assert lab.process.communicate(timeout=20) == ("", "")


def test_a_setting_that_takes_too_long_is_refused_beforehand(lab: RunningLab) -> None:
    """150 s of arrivals on the real clock; the message says how long."""
    answer = lab.own("POST", "/api/runs", {"query": "rate=0.1"})
    assert answer.status == 400
    assert "15" in answer.json["error"]["message"]
    assert "120 s" in answer.json["error"]["message"]
    assert answer.json["error"]["code"] == "too_long"
    assert answer.json["error"]["values"]["most_s"] == 120
    assert lab.left_behind() == []


async def test_the_page_answers_while_a_live_run_is_simulated_beforehand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That is done beside the event loop, in turn with all other simulations."""
    threads: list[str] = []

    def simulated(_: Setting) -> float:
        threads.append(threading.current_thread().name)
        raise SettingError(None, "too long", "too_long")

    monkeypatch.setattr("reports.lab.app.simulated_s", simulated)
    lab, body = Lab(0, LiveRuns()), StreamReader(Mock(), 1_000)
    body.feed_data(b"{}")
    body.feed_eof()
    headers = {"Content-Type": "application/json"}
    with pytest.raises(SettingError):
        await lab.start(make_mocked_request("POST", "/api/runs", headers, payload=body))
    await lab.close()
    assert threads == ["simulation_0"]


# Live


def test_a_live_run_from_its_first_tick_to_the_agreement(tmp_path: Path) -> None:
    """Every token of the ledger is told once as it is emitted, every request as the client had it.

    A second run is refused meanwhile, and who asks is told of the first; who comes later gets all of it, who
    comes back what was missed; and when it is over nothing of it is left.
    """
    with running_lab(tmp_path / "lab") as lab:
        assert lab.ask("GET", "/api/runs").json == {"run": None}
        id = lab.start(FAST)
        run = lab.ask("GET", "/api/runs").json["run"]
        assert (run["id"], run["query"]) == (id, parse_strictly(FAST).query())
        assert run["state"] in ("starting", "running", "comparing")
        second = lab.own("POST", "/api/runs", {"query": FAST})
        assert second.status == 409
        assert "going on" in second.json["error"]["message"]
        assert second.json["error"]["code"] == "run_going_on"
        events = list(lab.events(id))
        assert lab.left_behind() == []
        again = list(lab.events(id))
        rest = list(lab.events(id, last=len(events) - 1))
        ended = lab.ask("GET", "/api/runs").json["run"]
        seen = lab.ask("GET", f"/api/runs/{id}/events", headers={"Last-Event-ID": str(len(events))})
    assert again == events
    assert ended == {**run, "state": "agreement"}
    assert rest == events[-1:]
    assert seen.status == 204  # nothing more will come: a browser is not to ask again
    states = [data["state"] for name, data in events if name == "state"]
    assert states == ["starting", "running", "comparing"]
    ticks = [data for name, data in events if name == "tick"]
    expected = experiment(parse_strictly(FAST))["policies"][3]["requests"]
    for request in expected:
        emitted = sum(tick["emitted"].count(request["id"]) for tick in ticks)
        assert emitted == request["output_tokens"]
    assert [tick["tick"] for tick in ticks] == sorted({tick["tick"] for tick in ticks})
    requests = {data["id"]: data for name, data in events if name == "request"}
    assert {id: len(data["token_ms"]) for id, data in requests.items()} == {
        request["id"]: request["output_tokens"] for request in expected
    }
    name, data = events[-1]
    assert name == "agreement"
    assert data["verdict"] in ("agree", "inconclusive")  # the latter on a machine that stalls
    assert data["agreement"]["schedule"]["requests_equal"] == 16
    assert data["text"].startswith("chunked: ")


def test_events_come_while_the_run_goes_on_and_it_can_be_stopped(lab: RunningLab) -> None:
    """It is stopped at its first tick, and all of it ends; then there can be another one."""
    id = lab.start(LONG)
    with closing(lab.events(id)) as stream:
        tick = next(data for name, data in stream if name == "tick")
        assert (tick["tick"], tick["events"]) == (0, ["arrive R01", "prefill_start R01", "prefill_end R01"])
        assert lab.own("DELETE", f"/api/runs/{id}").status == 200
        names = [name for name, _ in stream]
    assert names[-1] == "stopped"
    assert "agreement" not in names
    assert lab.ask("GET", "/api/runs").json["run"]["state"] == "stopped"
    wait_until(lambda: not lab.left_behind())
    other = lab.start(FAST)
    assert other != id
    assert lab.ask("GET", f"/api/runs/{id}/events").status == 404
    assert lab.own("DELETE", f"/api/runs/{other}").status == 200


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_its_end_is_the_end_of_all(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C or SIGTERM in the middle of a live run that is watched: exit code 0, and nothing is left."""
    with running_lab(tmp_path / "lab") as lab:
        with closing(lab.events(lab.start(LONG))) as stream:
            assert any(name == "tick" for name, _ in stream)
            assert lab.left_behind()
            lab.process.send_signal(number)
            assert lab.process.wait(30) == 0
        wait_until(lambda: not lab.left_behind())


def test_a_port_in_use_is_said_in_one_line(tmp_path: Path, lab: RunningLab) -> None:
    refused(tokentick("lab", "--port", str(lab.port), cwd=tmp_path), 2, f"--port {lab.port}")


def wait_until(done: Any, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)
