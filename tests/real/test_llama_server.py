"""`tokentick run` against llama.cpp's server: what a real server does, and what is made of it."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from ledgers.rows import RequestRow
from ledgers.rundir import Run
from ledgers.vocabulary import WORDS
from tests.conftest import COMMAND, tokentick
from tests.real.conftest import LlamaServer, StartLlama, until
from tests.real.tiny_model import TinyModel

MS = 1_000_000
LONG = 3900  # tokens: seconds of streaming, and with a short prompt just what fits a slot


def made(requests: int, prompt_tokens: int, output_tokens: int, rate: str = "inf") -> list[str]:
    """The words that make a ledger."""
    lengths = ["--random-input-len", str(prompt_tokens), "--random-output-len", str(output_tokens)]
    return ["--num-prompts", str(requests), "--request-rate", rate, *lengths]


def planned(path: Path, requests: Sequence[tuple[float, int]]) -> str:
    """A ledger of (arrival in s, output tokens), with short prompts."""
    lines = [f"r{number},{at},5,{tokens}" for number, (at, tokens) in enumerate(requests)]
    file = path / "plan.csv"
    file.write_text("\n".join(["id,arrival_s,prompt_tokens,output_tokens", *lines]) + "\n")
    return str(file)


def against(server: LlamaServer, out: Path, *words: str) -> list[str]:
    return ["run", *words, "--base-url", server.url, "--out", str(out), "--quiet"]


def run(server: LlamaServer, path: Path, *words: str) -> list[RequestRow]:
    """A run to its end; its rows. That a busy machine slowed the load generator (4) is of no matter here."""
    result = tokentick(*against(server, path / "run", *words), cwd=path)
    assert result.returncode in (0, 4), result.stderr
    return rows_of(path / "run")


def rows_of(out: Path) -> list[RequestRow]:
    """The rows in order of arrival, then of id."""
    return sorted(Run(out).rows(), key=lambda row: (row.arrival_ns or 0, row.id))


@contextmanager
def running(server: LlamaServer, path: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run that goes on while the server is dealt with; killed if it does not end by itself."""
    process = subprocess.Popen([*COMMAND, *against(server, path / "run", *words)], cwd=path)
    try:
        yield process
        process.wait(30)
    finally:
        process.kill()
        process.wait()


def connections_opened(path: Path) -> int:
    opened: int = (Run(path / "run").info.target or {})["connections_opened"]
    return opened


def times(row: RequestRow) -> list[int]:
    """What must have happened, in the order in which it must."""
    order = [row.arrival_ns, row.sent_ns, row.headers_ns, row.first_token_ns, row.last_token_ns, row.end_ns]
    return [at for at in order if at is not None]


def gaps_ms(row: RequestRow) -> list[float]:
    return [(after - before) / MS for before, after in itertools.pairwise(row.token_ns or [])]


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_tokens_are_those_that_the_server_counted(start_llama: StartLlama, tmp_path: Path, api: str) -> None:
    """Replies of random length: together they have as many tokens as the server says that it generated.

    Each token is an event but the end, which has no text; a reply that is nothing but its end is empty.
    """
    server = start_llama(4)
    words = [*made(12, 50, 300, rate="10"), "--no-ignore-eos", "--api", api]
    rows = run(server, tmp_path, *words, "--no-preflight")
    assert len(rows) == 12
    assert sum(row.tokens or 0 for row in rows) == server.counter("tokens_predicted_total")
    assert {row.token_source for row in rows} == {"usage"}
    assert len({row.tokens for row in rows}) > 2
    for row in rows:
        assert row.outcome == ("completed" if row.events else "empty")
        assert row.events == (row.tokens or 0) - (row.finish_reason == "stop")
        assert times(row) == sorted(times(row))
        assert len(times(row)) == 6 or not row.events


def test_its_own_metrics_are_set_beside_the_clients(start_llama: StartLlama, tmp_path: Path) -> None:
    """Both count the same tokens of the run, and who waits for one of two slots is in flight for both."""
    server = start_llama(2)
    run(server, tmp_path, *made(6, 20, 400), "--ignore-eos", "--scrape", "--scrape-interval", "0.2")
    found = json.loads((tmp_path / "run" / "summary.json").read_text())["server"]
    assert found["generation_tokens"] == found["client_generation_tokens"] == 6 * 400
    assert found["waiting_max"] >= 1
    assert found["client_in_flight_mean"] == pytest.approx(
        found["running_mean"] + found["waiting_mean"], abs=1.5
    )


def test_ignore_eos_gives_the_lengths_asked_for(start_llama: StartLlama, tmp_path: Path) -> None:
    """`--ignore-eos`: outputs far longer than a reply would be, and not a token more or less."""
    plan = [*made(8, 20, 400, rate="10"), "--random-range-ratio", "0.5"]
    rows = run(start_llama(4), tmp_path, *plan, "--ignore-eos")
    assert [row.tokens for row in rows] == [row.output_tokens for row in rows]
    assert len({row.output_tokens for row in rows}) > 2
    assert {(row.outcome, row.finish_reason) for row in rows} == {("completed", "length")}


def test_the_queue_of_the_server_is_in_ttft(start_llama: StartLlama, tmp_path: Path) -> None:
    """8 requests, 2 slots: the third stream begins when one of the first two has ended, and so on."""
    rows = run(start_llama(2), tmp_path, *made(8, 20, 200), "--ignore-eos")
    first = sorted(row.first_token_ns or 0 for row in rows)
    last = sorted(row.last_token_ns or 0 for row in rows)
    assert [row.outcome for row in rows] == ["completed"] * 8
    for begins, ended in zip(first[2:], last, strict=False):
        assert begins > ended - 50 * MS


def test_a_server_that_is_killed(start_llama: StartLlama, tmp_path: Path) -> None:
    """After kill -9, what streams is truncated, what waits has no answer, what comes later no server.

    The run goes on to its end, and each request has one row.
    """
    server = start_llama(2)
    plan = planned(tmp_path, [(0, 5), *[(0.5, LONG)] * 4, *[(3, 5)] * 3])
    with running(server, tmp_path, plan, "--ignore-eos") as process:
        until(lambda: server.streaming(50) == 2, process)
        server.process.kill()
    rows = rows_of(tmp_path / "run")
    in_flight = sorted(rows[1:5], key=lambda row: row.events or 0, reverse=True)
    assert process.returncode in (0, 4)
    assert [row.id for row in rows] == [f"r{number}" for number in range(8)]
    assert rows[0].outcome == "completed"
    assert [(row.outcome, row.phase) for row in in_flight[:2]] == [("truncated", "streaming")] * 2
    assert all((row.events or 0) > 0 for row in in_flight[:2])
    assert {row.outcome for row in in_flight[2:]} <= {"truncated", "connect_error"}
    assert [(row.outcome, row.phase) for row in rows[5:]] == [("connect_error", "connect")] * 3
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["scheduled"], summary["completed"], summary["failed"]) == (8, 1, 7)


def test_a_server_that_stands_still(start_llama: StartLlama, tmp_path: Path) -> None:
    """Stopped for 2 s, then continued: every stream has one gap of that length, and completes."""
    server = start_llama(3)
    words = [*made(3, 20, 1000), "--ignore-eos", "--record-tokens"]
    with running(server, tmp_path, *words) as process:
        until(lambda: server.streaming(50) == 3, process)
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(2)
        server.process.send_signal(signal.SIGCONT)
    assert process.returncode in (0, 4)
    for row in rows_of(tmp_path / "run"):
        longest, second = sorted(gaps_ms(row), reverse=True)[:2]
        assert (row.outcome, row.tokens) == ("completed", 1000)
        assert 1900 < longest < 4000
        assert second < 1000


def test_connections_are_kept_for_as_long_as_the_server_keeps_them(
    start_llama: StartLlama, tmp_path: Path
) -> None:
    """Replies that are not streamed: llama-server ends a connection after 100, so 250 take at least three."""
    server = start_llama(2)
    words = [*made(250, 5, 2, rate="100"), "--arrival", "constant", "--ignore-eos"]
    whole = ["--extra-body", '{"stream": false, "stream_options": null}']
    rows = run(server, tmp_path, *words, *whole, "--no-preflight")
    assert {(row.outcome, row.streamed) for row in rows} == {("completed", False)}
    assert 3 <= connections_opened(tmp_path) < 100
    assert server.counter("tokens_predicted_total") == 2 * 250


def test_a_connection_may_end_with_any_reply(start_llama: StartLlama, tmp_path: Path) -> None:
    """llama-server says keep-alive, and hangs up after a stream all the same: nothing is lost or doubled."""
    server = start_llama(4)
    words = [*made(150, 5, 2, rate="75"), "--arrival", "constant", "--ignore-eos"]
    rows = run(server, tmp_path, *words, "--no-preflight")
    assert {(row.outcome, row.streamed) for row in rows} == {("completed", True)}
    assert connections_opened(tmp_path) >= 150
    assert server.counter("tokens_predicted_total") == 2 * 150


def test_a_cancelled_request_leaves_the_server(start_llama: StartLlama, tmp_path: Path) -> None:
    """`--cancel-after 0.3`: the slots, which had work for seconds, are free again while the run goes on."""
    server = start_llama(4)
    plan = planned(tmp_path, [*[(0, LONG)] * 4, (4, LONG)])
    cancel = ["--cancel-rate", "1", "--cancel-after", "0.3"]
    with running(server, tmp_path, plan, *cancel, "--ignore-eos") as process:
        until(lambda: server.streaming() > 0, process)
        until(lambda: server.streaming() == 0, process)
    rows = rows_of(tmp_path / "run")
    assert [row.outcome for row in rows] == ["cancelled"] * 5
    for row in rows:
        assert 300 * MS <= (row.end_ns or 0) - (row.arrival_ns or 0) < 2000 * MS


def test_a_server_that_falls_silent(start_llama: StartLlama, tmp_path: Path) -> None:
    """`--stall-timeout 1`, and the server stopped for good in mid-stream: the requests are given up."""
    server = start_llama(3)
    plan = planned(tmp_path, [(0, 5), *[(0.5, LONG)] * 3])
    with running(server, tmp_path, plan, "--stall-timeout", "1", "--ignore-eos") as process:
        until(lambda: server.streaming(50) == 3, process)
        server.process.send_signal(signal.SIGSTOP)
    finished, *stalled = rows_of(tmp_path / "run")
    assert process.returncode in (0, 4)
    assert finished.outcome == "completed"
    assert [(row.outcome, row.phase) for row in stalled] == [("timeout", "streaming")] * 3
    for row in stalled:
        assert (row.events or 0) > 0
        assert 1000 * MS <= (row.end_ns or 0) - (row.last_token_ns or 0) < 3000 * MS


def test_the_tokenizer_file_is_that_of_the_server(start_llama: StartLlama, tiny_model: TinyModel) -> None:
    """The same text is the same tokens to both, and more of them than words."""
    text = " ".join(WORDS[:200])
    answer = json.loads(start_llama(1).ask("/tokenize", {"content": text}))
    assert answer["tokens"] == Tokenizer.from_file(str(tiny_model.tokenizer)).encode(text).ids
    assert len(answer["tokens"]) > 210


@pytest.mark.parametrize(
    ("api", "flag"),
    [
        ("chat", ""),
        ("chat", "--tokenizer"),
        ("completions", ""),
        ("completions", "--tokenizer"),
        ("completions", "--prompt-ids"),
    ],
)
def test_prompts_are_as_long_as_planned(
    start_llama: StartLlama, tiny_model: TinyModel, tmp_path: Path, api: str, flag: str
) -> None:
    """By the server's own count, although its template adds tokens, and many a word takes two."""
    flags = {"": [], "--tokenizer": ["--tokenizer", str(tiny_model.tokenizer)], "--prompt-ids": [flag]}
    words = [*made(20, 100, 2, rate="20"), "--random-range-ratio", "0.5", "--ignore-eos", "--api", api]
    rows = run(start_llama(4), tmp_path, *words, *flags[flag])
    assert [row.usage_prompt_tokens for row in rows] == [row.prompt_tokens for row in rows]
    assert len({row.prompt_tokens for row in rows}) > 5
