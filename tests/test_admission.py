"""Admission control: who is turned away, how a client is told, and that both drivers turn away the same."""

from __future__ import annotations

import http.client
import json
import select
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from urllib.parse import urlsplit

import click
import pytest

from ledgers.rows import RequestRow
from ledgers.rundir import Run
from ledgers.settings import SchedulerSettings
from mock_server.policies import POLICIES, make_scheduler
from mock_server.simulate import simulate
from reports.agree import Replay
from reports.cli import agree
from tests.conftest import MockServer, refused, serving, tokentick

NS = 10**9
SLOW_TICKS = ("--tick", "0.05", "--policy", "immediate")


def outcomes(setup: SchedulerSettings, requests: list[RequestRow]) -> dict[str, tuple[Any, ...]]:
    rows = simulate(make_scheduler(setup), requests)
    return {row.id: (row.outcome, row.error, row.http_status) for row in rows}


def at_once(count: int, prompt: int = 5, output: int = 5) -> list[RequestRow]:
    return [
        RequestRow(id=f"q{i}", prompt_tokens=prompt, output_tokens=output, arrival_ns=0) for i in range(count)
    ]


@pytest.mark.parametrize("policy", list(POLICIES))
def test_who_finds_the_queue_full_is_rejected(policy: str) -> None:
    """Of five that come in one tick three find a place, whatever the policy admits later in that tick."""
    found = outcomes(SchedulerSettings(policy=policy, max_queue=3), at_once(5))
    assert [found[f"q{i}"][0] for i in range(5)] == ["completed"] * 3 + ["rejected"] * 2
    assert found["q4"] == ("rejected", "queue_full", 429)


def test_a_place_that_came_free_is_there_for_the_next() -> None:
    """The queue is limited, not the number of requests in service."""
    requests = at_once(3)
    for number, row in enumerate(requests):
        row.arrival_ns = number * NS // 10
    found = outcomes(SchedulerSettings(policy="chunked", max_queue=1), requests)
    assert {outcome for outcome, *_ in found.values()} == {"completed"}


def test_who_is_too_long_takes_no_place() -> None:
    """Over the limit with prompt and output, or over the KV budget: 400, and the queue is not the reason."""
    requests = at_once(4)
    requests[0].prompt_tokens = 16
    requests[1].prompt_tokens = 15
    found = outcomes(SchedulerSettings(max_model_len=20, max_queue=3), requests)
    assert found["q0"] == ("rejected", "context_length_exceeded", 400)
    assert [found[id][0] for id in ("q1", "q2", "q3")] == ["completed"] * 3
    huge = at_once(1, prompt=70)
    assert outcomes(SchedulerSettings(max_model_len=100), huge)["q0"][1] == "context_length_exceeded"


class Asking:
    """A request on a connection of its own, sent and not yet answered."""

    def __init__(self, server: MockServer, headers: dict[str, str] = {}, **body: Any) -> None:  # noqa: B006
        where = urlsplit(server.url)
        self._connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=20)
        data = json.dumps({"prompt": "time", "max_tokens": 20, "stream": True, **body})
        self._connection.request("POST", "/v1/completions", data, headers)

    def answer(self) -> http.client.HTTPResponse:
        """Its head, once that has come."""
        return self._connection.getresponse()

    def answered_within(self, seconds: float) -> bool:
        return bool(select.select([self._connection.sock], [], [], seconds)[0])

    def close(self) -> None:
        self._connection.close()


@contextmanager
def asking(server: MockServer, count: int, **body: Any) -> Iterator[list[Asking]]:
    requests = [Asking(server, **body) for _ in range(count)]
    try:
        yield requests
    finally:
        for request in requests:
            request.close()


@pytest.mark.parametrize("stream", [True, False])
def test_a_full_queue_is_http_429_in_openais_words(tmp_path: Path, stream: bool) -> None:
    """No stream begins for who is rejected; Retry-After in whole seconds; a row for each in the ledger."""
    with serving(tmp_path / "served", "--max-queue", "2", *SLOW_TICKS) as server:
        with asking(server, 6, stream=stream) as requests:
            answers = [request.answer() for request in requests]
            statuses = [answer.status for answer in answers]
            assert statuses.count(429) >= 1
            assert statuses.count(200) >= 2
            refusal = answers[statuses.index(429)]
            assert int(refusal.headers["Retry-After"]) == 1
            error = json.loads(refusal.read())["error"]
            assert (error["code"], error["type"], error["param"]) == ("queue_full", "rate_limit_error", None)
            taken = answers[statuses.index(200)].read()
            assert taken.endswith(b"data: [DONE]\n\n") if stream else json.loads(taken)["choices"]
        server.stop()
    rows = list(Run(tmp_path / "served").rows())
    refused_rows = [row for row in rows if row.outcome == "rejected"]
    assert len(rows) == 6
    assert len(refused_rows) == statuses.count(429)
    told = {(row.error, row.http_status, row.retry_after_s, row.tokens) for row in refused_rows}
    assert told == {("queue_full", 429, 1, 0)}


def test_a_stream_that_has_its_place_says_so_before_its_turn(tmp_path: Path) -> None:
    """With a limit the headers wait for the tick that decides, and for nothing after that."""
    with (
        serving(tmp_path / "served", "--max-queue", "2", "--tick", "2", "--policy", "immediate") as server,
        asking(server, 1, max_tokens=60) as first,
    ):
        assert first[0].answer().status == 200  # at once, for the first of all sets off the ticks
        with asking(server, 1, max_tokens=60) as second:
            assert not second[0].answered_within(0.5)
            assert second[0].answer().status == 200
        where = urlsplit(server.url)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=20)
        connection.request("GET", "/mock/state")
        assert json.loads(connection.getresponse().read())["tick"] == 1  # and no token has come
        connection.close()


def test_without_a_limit_the_headers_wait_for_no_tick(tmp_path: Path) -> None:
    """What is in the queue for long is told at once that it is."""
    with (
        serving(tmp_path / "served", "--tick", "10", "--policy", "immediate") as server,
        asking(server, 1, max_tokens=60) as first,
    ):
        assert first[0].answer().status == 200
        with asking(server, 1, max_tokens=60) as second:
            assert second[0].answered_within(5)


def test_the_longest_request_is_told_and_kept_to(tmp_path: Path) -> None:
    """`/v1/models` says it, a longer one gets 400 at once, and one as long is served."""
    with serving(tmp_path / "served", "--max-model-len", "8", *SLOW_TICKS) as server:
        where = urlsplit(server.url)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=20)
        connection.request("GET", "/v1/models")
        assert json.loads(connection.getresponse().read())["data"][0]["max_model_len"] == 8
        connection.close()
        with asking(server, 1, max_tokens=8) as (request,):
            answer = request.answer()
            assert answer.status == 400
            error = json.loads(answer.read())["error"]
            assert error["code"] == "context_length_exceeded"
            assert "8 tokens" in error["message"]
        with asking(server, 1, max_tokens=7) as (request,):
            assert request.answer().status == 200


def test_a_request_says_its_class_in_a_header(tmp_path: Path) -> None:
    """Percent-encoded, as names need not be ASCII; bytes that are no text are replaced; none without it."""
    with serving(tmp_path / "served", *SLOW_TICKS) as server:
        for headers in ({"X-Request-Class": "%C3%BCber%20all"}, {}, {"X-Request-Class": "a\xff%FF"}):
            request = Asking(server, headers, max_tokens=1)
            request.answer().read()
            request.close()
        server.stop()
    assert [row.class_ for row in Run(tmp_path / "served").rows()] == ["über all", None, "a?\ufffd"]


def agreement(path: Path, *arguments: str) -> dict[str, Any]:
    result = tokentick("agree", "ledger.csv", *arguments, "--out", "out", "--json", cwd=path)
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_an_overloaded_server_and_the_simulator_reject_the_same(tmp_path: Path) -> None:
    """Forty requests at once, four places: (a) every request and tick, and the client saw 429 for each."""
    lines = [f"{5 + i % 9},{2 + i % 5},{i // 10 * 0.2}" for i in range(40)]
    (tmp_path / "ledger.csv").write_text("\n".join(["prompt_tokens,output_tokens,arrival_s", *lines]) + "\n")
    answer = agreement(tmp_path, "--tick", "0.02", "--max-queue", "4", "--max-model-len", "16")
    found = answer["policies"]["continuous"]
    assert found["schedule"]["requests_equal"] == found["schedule"]["requests"] == 40
    assert found["schedule"]["ticks_equal"] == found["schedule"]["ticks"]
    assert found["timing"]["outcome_different"] == []
    runs = {
        name: Run(tmp_path / "out" / "continuous" / name) for name in ("served", "measured", "resimulated")
    }
    served = {row.id: row for row in runs["served"].rows()}
    errors = [row.error for row in served.values() if row.outcome == "rejected"]
    assert errors.count("queue_full") >= 10
    assert errors.count("context_length_exceeded") >= 4
    assert {row.id: row.error for row in runs["resimulated"].rows()} == {
        id: r.error for id, r in served.items()
    }
    statuses = [row.http_status for row in runs["measured"].rows() if row.outcome == "http_error"]
    assert statuses.count(429) == errors.count("queue_full")
    assert statuses.count(400) == errors.count("context_length_exceeded")


@pytest.mark.parametrize("longest", [4, 1])
def test_a_ledger_of_which_little_fits_is_agreed_upon(tmp_path: Path, longest: int) -> None:
    """The first request alone, or none at all: what the server refuses ends neither side."""
    lines = ["2,2,0", "30,4,0.1", "30,4,0.2"]
    (tmp_path / "ledger.csv").write_text("\n".join(["prompt_tokens,output_tokens,arrival_s", *lines]) + "\n")
    answer = agreement(tmp_path, "--tick", "0.02", "--max-model-len", str(longest))
    found = answer["policies"]["continuous"]
    assert found["schedule"]["requests_equal"] == found["schedule"]["requests"] == 3
    assert found["timing"]["outcome_different"] == []


def test_classes_are_agreed_upon_from_end_to_end(tmp_path: Path) -> None:
    """The ledger's classes reach the server, and it gives each what the file says: equal in every tick."""
    (tmp_path / "classes.toml").write_text(
        '[classes."chat é"]\npriority = 3\nreserved_slots = 1\nmax_batch = 1\n'
        "[classes.bulk]\nmax_wait_s = 0.1\n",
        encoding="utf-8",
    )
    lines = [f"{20 - 15 * (i % 2)},{3 + i % 4},{i * 0.02},{('bulk', 'chat é')[i % 2]}" for i in range(30)]
    (tmp_path / "ledger.csv").write_text(
        "\n".join(["prompt_tokens,output_tokens,arrival_s,class", *lines]) + "\n", encoding="utf-8"
    )
    answer = agreement(tmp_path, "--tick", "0.02", "--policy", "classes", "--classes", "classes.toml")
    found = answer["policies"]["classes"]
    assert found["schedule"]["requests_equal"] == found["schedule"]["requests"] == 30
    assert found["schedule"]["ticks_equal"] == found["schedule"]["ticks"]
    assert found["plan"]["differ_before"] == []
    assert found["timing"]["outcome_different"] == []
    rows = list(Run(tmp_path / "out" / "classes" / "served").rows())
    assert {row.class_ for row in rows} == {"bulk", "chat é"}
    waits = {
        name: sorted(row.ticks.prefill_start - row.ticks.received for row in rows if row.class_ == name)  # type: ignore
        for name in ("bulk", "chat é")
    }
    assert waits["chat é"][-1] < waits["bulk"][-1]


def test_every_policy_means_classes_where_there_are_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a file of them it would be continuous a second time."""
    (tmp_path / "classes.toml").write_text("[classes.a]\npriority = 1\n")
    replayed: list[str] = []

    def replay_nothing(replay: Replay) -> SimpleNamespace:
        replayed.append(replay.settings.policy)
        return SimpleNamespace(agreement=SimpleNamespace(verdict="agree"))

    def end_here(verdicts: list[str]) -> NoReturn:
        raise click.Abort

    monkeypatch.setattr("reports.cli._result", replay_nothing)
    monkeypatch.setattr("reports.cli.overall", end_here)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    everyone = ["immediate", "static", "continuous", "chunked"]
    with_file = ["--classes", str(tmp_path / "classes.toml")]
    for flags, expected in (([], everyone), (with_file, [*everyone, "classes"])):
        replayed.clear()
        out = str(tmp_path / f"out-{len(expected)}")
        with pytest.raises(click.Abort):
            agree.main(["toy", "--policy", "all", *flags, "--out", out], standalone_mode=False)
        assert replayed == expected


@pytest.mark.parametrize("command", [("simulate", "toy"), ("agree", "toy"), ("serve", "--port", "0")])
def test_settings_that_cannot_be_used_are_said_in_one_line(tmp_path: Path, command: tuple[str, ...]) -> None:
    """Exit code 2, whichever command has them."""
    (tmp_path / "classes.toml").write_text("[classes.chat]\nreserved_slots = 4\n")
    classes = ("--policy", "classes", "--classes")
    refused(tokentick(*command, *classes, "classes.toml", cwd=tmp_path), 2, "4 slots", "only 3")
    refused(tokentick(*command, *classes, "nothing.toml", cwd=tmp_path), 2, "nothing.toml")
    refused(tokentick(*command, "--max-queue", "0", cwd=tmp_path), 2, "--max-queue")
    (tmp_path / "classes.toml").write_text("[classes.chat]\npriority = 4\n")
    elsewhere = ("--policy", "static", "--classes", "classes.toml")
    refused(tokentick(*command, *elsewhere, cwd=tmp_path), 2, "--classes", "--policy static")
    assert [path.name for path in tmp_path.iterdir()] == ["classes.toml"]
