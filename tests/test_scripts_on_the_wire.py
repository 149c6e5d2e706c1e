"""Raw byte scripts as a client meets them, and what stands in the ledger of them."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ledgers.rundir import Run
from tests.conftest import MockServer, serving, tokentick
from tests.test_faults_on_the_wire import read, row_of
from tests.test_server import ask
from tests.transcripts import DATA, load_all


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockServer]:
    """A server with all transcripts as scripts; whatever is asked of it, it has nothing to say on stderr."""
    path = tmp_path_factory.mktemp("scripts")
    with (
        (path / "errors").open("w") as errors,
        serving(path / "served", f"--script={DATA}", stderr=errors) as mock,
    ):
        yield mock
        assert mock.stop() == 0
    assert (path / "errors").read_text() == ""


def test_the_load_generator_reads_every_script_as_it_should(scripted: MockServer, tmp_path: Path) -> None:
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
        assert ask(scripted, "POST", "/mock/config", body)[0] == 200
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
            scripted.url,
            *flags,
            cwd=tmp_path,
        )
        outcomes = {row.id: row.outcome for row in Run(tmp_path / api).rows()}
        wrong = {case.name: outcomes[case.name] for case in cases if case.api == api}
        expected = {case.name: case.outcomes for case in cases if case.api == api}
        assert {name: is_ for name, is_ in wrong.items() if is_ not in expected[name]} == {}


def test_a_script_is_played_at_any_path_and_its_row_says_how_it_went(scripted: MockServer) -> None:
    """Byte for byte, in its own dialect, whatever was asked; without the header the path is unknown."""
    case = next(case for case in load_all() if case.name == "anthropic_messages_thinking")
    where = urlsplit(scripted.url)
    for fault, status in (("X-Mock-Fault: script:anthropic_messages_thinking\r\n", 200), ("", 404)):
        with socket.create_connection((where.hostname, where.port), timeout=20) as connection:
            head = (
                f"POST /v1/messages HTTP/1.1\r\nHost: m\r\nX-Request-Id: any\r\n{fault}Content-Length: 2\r\n"
            )
            connection.sendall(f"{head}Connection: close\r\n\r\n[]".encode())
            answer = read(connection, time.monotonic())
        assert answer.status == status
        if status == 200:
            assert answer.body == b"".join(case.framed(case.parts)) + case.end
    row = row_of(scripted, "any")
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
