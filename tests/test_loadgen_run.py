"""`tokentick run` as a process against scripted servers: what a user sees, and what is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ledgers.rows import OUTCOMES, RequestRow
from ledgers.rundir import Run
from ledgers.summary import write_summary
from ledgers.vocabulary import count_tokens
from tests.scripted_server import (
    SSE_HEAD,
    Request,
    ScriptedServer,
    chunk,
    ending,
    plain,
    quick,
    raw_server,
    scripted_server,
    token,
)

MS = 1_000_000
FRONT_DOOR = Path(__file__).parent.parent / "tokentick.py"


def ledger(path: Path, arrivals_ms: list[float], prompt_tokens: int = 5) -> Path:
    lines = [f"{at / 1000},{prompt_tokens},2" for at in arrivals_ms]
    file = path / "plan.csv"
    file.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *lines]) + "\n")
    return file


async def start(
    *words: object, env: dict[str, str] | None = None, shell: str = ""
) -> asyncio.subprocess.Process:
    command = [sys.executable, FRONT_DOOR, "run", *words]
    text = [str(word) for word in command]
    if shell:
        text = ["/bin/sh", "-c", f'{shell}; exec "$0" "$@"', *text]
    pipe = asyncio.subprocess.PIPE
    environment = {key: value for key, value in os.environ.items() if key != "OPENAI_API_KEY"}
    return await asyncio.create_subprocess_exec(
        *text, stdout=pipe, stderr=pipe, env={**environment, **(env or {})}
    )


async def finish(process: asyncio.subprocess.Process) -> tuple[int, str, str]:
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def tokentick_run(*words: object, **options: Any) -> tuple[int, str, str]:
    return await finish(await start(*words, **options))


def rows_of(out: Path) -> dict[str, RequestRow]:
    """The rows by id, in order of arrival."""
    return {row.id: row for row in sorted(Run(out).rows(), key=lambda row: row.arrival_ns or 0)}


def url(server: ScriptedServer) -> str:
    return f"http://127.0.0.1:{server.port}"


def ttft_ms(row: RequestRow) -> tuple[float, float]:
    """TTFT from the intended arrival and from the send."""
    assert row.first_token_ns is not None
    assert row.arrival_ns is not None
    assert row.sent_ns is not None
    return (row.first_token_ns - row.arrival_ns) / MS, (row.first_token_ns - row.sent_ns) / MS


async def test_a_stalled_server_makes_every_request_in_the_stall_late(tmp_path: Path) -> None:
    """Stalled 600 ms with arrivals every 100 ms: TTFT is 600, 500, … in both columns, not one outlier."""
    opens: list[float] = []

    async def stalled(request: Request, writer: asyncio.StreamWriter) -> None:
        if not opens:
            opens.append(time.monotonic() + 0.6)
        await asyncio.sleep(opens[0] - time.monotonic())
        await quick(request, writer)

    plan = ledger(tmp_path, [0, 100, 200, 300, 400, 500, 900])
    async with scripted_server(stalled) as server:
        code, _, _ = await tokentick_run(plan, "--base-url", url(server), "--out", tmp_path / "run")
    assert code == 0
    for row, expected in zip(
        rows_of(tmp_path / "run").values(), [600, 500, 400, 300, 200, 100, 0], strict=True
    ):
        assert ttft_ms(row) == pytest.approx((expected, expected), abs=60)


async def test_a_stalled_client_shows_in_ttft_and_not_in_ttft_from_send(tmp_path: Path) -> None:
    """The client stands still for 400 ms: what was due leaves at once, and only TTFT counts the wait."""
    stopped: list[int] = []
    process: asyncio.subprocess.Process

    async def stop_the_client(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.number == 0:
            stopped.append(time.monotonic_ns())
            process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(0.4)
            process.send_signal(signal.SIGCONT)
        await quick(request, writer)

    plan = ledger(tmp_path, [0, 100, 200, 300, 700])
    async with scripted_server(stop_the_client) as server:
        process = await start(plan, "--base-url", url(server), "--out", tmp_path / "run")
        await finish(process)
    for row, expected in zip(list(rows_of(tmp_path / "run").values())[1:], [300, 200, 100, 0], strict=True):
        assert ttft_ms(row) == pytest.approx((expected, 0), abs=60)


async def test_sends_are_on_time_and_never_early(tmp_path: Path) -> None:
    """300 requests at 300 per second: none before its time, the last as punctual as the first."""
    out = tmp_path / "run"
    async with scripted_server(quick) as server:
        code, text, _ = await tokentick_run(
            ledger(tmp_path, [i / 0.3 for i in range(300)]), "--base-url", url(server), "--out", out, "--json"
        )
    summary = json.loads(text)
    lags = [(row.sent_ns or 0) - (row.arrival_ns or 0) for row in rows_of(out).values()]
    assert code in (0, 4)
    assert (summary["completed"], len(server.posts)) == (300, 300)
    assert (summary["itl_ms"]["n"], summary["itl_partial"]) == (300, False)
    assert min(lags) >= 0
    assert sorted(lags)[150] < 5 * MS
    assert sorted(lags[-100:])[50] < 5 * MS


async def test_what_goes_over_the_wire(tmp_path: Path) -> None:
    """Path, headers and body are what servers expect, and lengths are real prompts."""
    out = tmp_path / "run"
    async with scripted_server(quick) as server:
        words = ["--base-url", f"{url(server)}/gateway/v1/", "--out", out, "--ignore-eos"]
        words += ["--header", "X-Team: blue", "--extra-body", '{"temperature": 0, "stream_options": null}']
        plan = ledger(tmp_path, [0, 10], prompt_tokens=1234)
        await tokentick_run(plan, *words, env={"OPENAI_API_KEY": "sk-canary"})
    first = server.posts[0]
    assert first.path == "/gateway/v1/chat/completions"
    wanted = {
        "host": f"127.0.0.1:{server.port}",
        "accept": "text/event-stream",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "x-team": "blue",
        "authorization": "Bearer sk-canary",
    }
    assert {name: first.headers.get(name) for name in wanted} == wanted
    body = json.loads(first.body)
    message = body.pop("messages")[0]
    assert (message["role"], count_tokens(message["content"])) == ("user", 1234)
    assert body == {
        "model": "scripted", "max_completion_tokens": 2, "stream": True, "ignore_eos": True, "min_tokens": 2,
        "temperature": 0,
    }  # fmt: skip
    sent_ids = [request.headers["x-request-id"] for request in server.posts]
    assert sent_ids == [row.request_id for row in rows_of(out).values()]
    assert len(set(sent_ids)) == 2


async def test_localhost_is_the_address_that_answers(tmp_path: Path) -> None:
    """`localhost` can be ::1 and 127.0.0.1; the server listens on one, and every request goes there."""
    out = tmp_path / "run"
    async with scripted_server(quick) as server:
        code, _, _ = await tokentick_run(
            ledger(tmp_path, [0, 10]), "--base-url", f"http://localhost:{server.port}", "--out", out
        )
    assert code == 0
    assert server.posts[0].headers["host"] == f"localhost:{server.port}"
    assert (Run(out).info.target or {})["address"] == f"127.0.0.1:{server.port}"


async def test_completions_take_a_prompt(tmp_path: Path) -> None:
    """`--api completions` posts to its path with its field names; a given text is sent as it is."""
    file = tmp_path / "plan.jsonl"
    file.write_text('{"arrival_s": 0, "prompt_tokens": 2, "output_tokens": 3, "prompt": "é \\u2028 so"}\n')
    async with scripted_server(quick) as server:
        await tokentick_run(
            file, "--api", "completions", "--model", "m", "--base-url", url(server), "--out", tmp_path / "run"
        )
    assert server.posts[0].path == "/v1/completions"
    assert json.loads(server.posts[0].body) == {
        "model": "m", "prompt": "é \u2028 so", "max_tokens": 3, "stream": True,
        "stream_options": {"include_usage": True}, "ignore_eos": True, "min_tokens": 3,
    }  # fmt: skip


async def test_the_api_key_is_nowhere(tmp_path: Path) -> None:
    """A server that throws the key back in errors, texts and reasons does not get it into any output."""
    canary = "sk-canary-8c1f0a"

    async def echo(request: Request, writer: asyncio.StreamWriter) -> None:
        key = request.headers["authorization"].removeprefix("Bearer ")
        if request.number == 0:
            writer.write(plain(401, json.dumps({"error": {"message": f"Incorrect API key: {key}"}}).encode()))
        elif request.number == 1:
            writer.write(SSE_HEAD + token(f"your key is {key}") + ending(1))
        else:
            event = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": key}]}
            writer.write(SSE_HEAD + chunk(f"data: {json.dumps(event)}\n\n".encode()) + chunk(b""))

    out, key_file = tmp_path / "run", tmp_path / "key"
    key_file.write_text(canary)
    async with scripted_server(echo) as server:
        _, text, err = await tokentick_run(
            ledger(tmp_path, [0, 50, 100]), "--base-url", f"http://user:pass-canary@127.0.0.1:{server.port}",
            "--header", "X-Api-Key=header-canary", "--record-text", "--out", out, "--api-key-file", key_file,
        )  # fmt: skip
    assert server.posts[0].headers["authorization"] == f"Bearer {canary}"
    written = text + err + "".join(file.read_text() for file in out.iterdir())
    assert "Incorrect API key: ***" in written
    for secret in (canary, "pass-canary", "header-canary"):
        assert secret not in written


async def test_a_login_in_the_url_is_not_replaced_by_a_key_from_the_environment(tmp_path: Path) -> None:
    """A key that lies around for one server is not sent to another. A user name alone is a key as well."""
    out = tmp_path / "run"
    async with scripted_server(quick) as server:
        words = ["--base-url", f"http://name-canary@127.0.0.1:{server.port}", "--out", out]
        await tokentick_run(ledger(tmp_path, [0]), *words, env={"OPENAI_API_KEY": "sk-other"})
    assert server.posts[0].headers["authorization"].startswith("Basic ")
    assert all("canary" not in file.read_text() for file in out.iterdir())


@pytest.mark.parametrize("status", [200, 401])
async def test_the_api_key_is_not_shown_by_the_preflight(tmp_path: Path, status: int) -> None:
    """A server that echoes the key in its name, models or refusal, however long: the key is nowhere."""
    canary = "sk-canary-8c1f0a"
    echo = f"{'x' * 190} {canary}"
    body = json.dumps({"data": [{"id": canary, "owned_by": echo}], "error": {"message": echo}}).encode()
    out = tmp_path / "run"

    async def refuse(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(plain(401, body))

    async with scripted_server(quick) as server:
        server.models = plain(status, body).replace(b"\r\n", b"\r\nServer: %s \xff\r\n" % canary.encode(), 1)
        if status == 401:
            server.on_probe = refuse
        code, text, err = await tokentick_run(
            ledger(tmp_path, [0]), "--base-url", url(server), "--out", out, env={"OPENAI_API_KEY": canary}
        )
    assert code == (0 if status == 200 else 3)
    written = text + err + "".join(file.read_text() for file in out.glob("*"))
    assert "***" in written
    assert "sk-canary" not in written


async def test_a_password_is_scrubbed_as_it_is_and_as_the_url_spells_it(tmp_path: Path) -> None:
    """`p%40ss` in the URL is `p@ss` to the server, and neither is written down."""

    async def echo(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(plain(401, b'{"error":{"message":"bad p@ssword-canary, given as p%40ssword-canary"}}'))

    out = tmp_path / "run"
    async with scripted_server(echo) as server:
        _, text, err = await tokentick_run(
            ledger(tmp_path, [0]),
            "--base-url",
            f"http://user:p%40ssword-canary@127.0.0.1:{server.port}",
            "--out",
            out,
        )
    written = text + err + "".join(file.read_text() for file in out.iterdir())
    assert "bad ***, given as ***" in written
    assert "ssword-canary" not in written


async def test_a_base_path_is_percent_encoded(tmp_path: Path) -> None:
    """A blank or an umlaut in the path goes over the wire as HTTP writes it; escapes stay what they are."""
    async with scripted_server(quick) as server:
        code, _, _ = await tokentick_run(
            ledger(tmp_path, [0]), "--base-url", f"{url(server)}/my gäteway%2F/v1", "--out", tmp_path / "run"
        )
    assert code == 0
    assert server.posts[0].path == "/my%20g%C3%A4teway%2F/v1/chat/completions"


@pytest.mark.parametrize(("flags", "itl"), [([], None), (["--record-tokens"], 5)])
async def test_kill_keeps_every_finished_row(tmp_path: Path, flags: list[str], itl: int | None) -> None:
    """After kill -9 the rows that had ended are there, and a summary can be built that says it is cut.

    Histograms of the last seconds are lost: ITL says so, unless the rows have the times of their tokens.
    """

    async def first_five(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.number >= 5:
            await asyncio.sleep(60)
        await quick(request, writer)

    out = tmp_path / "run"
    async with scripted_server(first_five) as server:
        process = await start(
            ledger(tmp_path, [20 * i for i in range(500)]), "--base-url", url(server), "--out", out, *flags
        )
        while len(server.posts) < 8:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        process.kill()
        await finish(process)
    assert [row.outcome for row in rows_of(out).values()] == ["completed"] * 5
    assert not Run(out).info.complete
    summary = write_summary(out)
    assert (summary["scheduled"], summary["completed"], summary["unfinished"]) == (500, 5, 495)
    assert summary["itl_partial"] is (itl is None)
    assert (summary["itl_ms"] or {"n": None})["n"] == itl


@pytest.mark.parametrize("interrupts", [1, 2])
async def test_ctrl_c_leaves_a_whole_directory(tmp_path: Path, interrupts: int) -> None:
    """Once: nothing more is sent, what is in flight ends. Twice: it is cut. Either way 130, and all rows."""

    async def slow(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + token("a"))
        await asyncio.sleep(0.8)
        writer.write(token("b") + ending(2))

    out = tmp_path / "run"
    async with scripted_server(slow) as server:
        process = await start(
            ledger(tmp_path, [50 * i for i in range(400)]), "--base-url", url(server), "--out", out
        )
        while len(server.posts) < 5:
            await asyncio.sleep(0.01)
        for _ in range(interrupts):
            process.send_signal(signal.SIGINT)
            await asyncio.sleep(0.2)
        code, _, err = await finish(process)
    sent = len(server.posts)
    in_flight = "completed" if interrupts == 1 else "cancelled"
    outcomes = Counter(row.outcome for row in rows_of(out).values())
    assert code == 130
    assert outcomes == {in_flight: sent, "not_sent": 400 - sent}
    assert 5 <= sent < 20
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["scheduled"], summary["not_sent"], summary["interrupted"]) == (400, 400 - sent, True)
    assert err.splitlines()[-1].startswith("interrupted: ")


async def test_ctrl_c_before_t0_ends_at_once(tmp_path: Path) -> None:
    """While the first connections still open (here: TLS without an answer): 130, and a row for each."""
    opening = asyncio.Event()

    async def no_handshake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(1):  # the probe for an address closes without a byte
            opening.set()
            await asyncio.sleep(60)

    out = tmp_path / "run"
    async with raw_server(no_handshake) as port:
        process = await start(
            ledger(tmp_path, [0, 10]),
            "--base-url",
            f"https://127.0.0.1:{port}",
            "--no-preflight",
            "--out",
            out,
        )
        await asyncio.wait_for(opening.wait(), 30)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(10):
            code, _, _ = await finish(process)
    assert code == 130
    assert [row.outcome for row in rows_of(out).values()] == ["not_sent", "not_sent"]
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["scheduled"], summary["not_sent"], summary["interrupted"]) == (2, 2, True)


async def test_a_tail_cuts_what_is_in_flight(tmp_path: Path) -> None:
    """`--tail 0.3`: what has not ended 300 ms after the last arrival is unfinished, with what came of it."""

    async def endless(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + token("a"))
        await asyncio.sleep(0 if request.number == 0 else 60)
        writer.write(token("b") + ending(2))

    out = tmp_path / "run"
    async with scripted_server(endless) as server:
        code, text, _ = await tokentick_run(
            ledger(tmp_path, [0, 200]), "--base-url", url(server), "--tail", "0.3", "--out", out
        )
    first, second = rows_of(out).values()
    assert (code, first.outcome, second.outcome) == (0, "completed", "unfinished")
    assert (second.tokens, second.phase) == (1, "streaming")
    assert second.end_ns == pytest.approx(500 * MS, abs=50 * MS)
    assert "†" in text


async def test_a_request_timeout_is_a_timeout(tmp_path: Path) -> None:
    """Only when asked for, never before its time, and the request is counted as failed."""

    async def silent(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    out = tmp_path / "run"
    async with scripted_server(silent) as server:
        code, _, _ = await tokentick_run(
            ledger(tmp_path, [0]), "--base-url", url(server), "--request-timeout", "0.25", "--out", out
        )
    (row,) = rows_of(out).values()
    assert (code, row.outcome, row.phase) == (1, "timeout", "headers")
    assert row.end_ns is not None
    assert row.sent_ns is not None
    assert 250 * MS <= row.end_ns - row.sent_ns < 400 * MS


async def test_failures_are_rows_and_the_counts_add_up(tmp_path: Path) -> None:
    """Every way to fail at once: each request has one row with an end, and none is retried."""

    async def various(request: Request, writer: asyncio.StreamWriter) -> None:
        answers = [
            SSE_HEAD + token("a") + ending(1),
            plain(503, b'{"error":"overloaded"}'),
            SSE_HEAD + chunk(b'data: {"error":{"message":"engine died"}}\n\n') + chunk(b""),
            SSE_HEAD + chunk(b""),
            SSE_HEAD + token("a"),
            b"",
        ]
        writer.write(answers[request.number])
        if request.number >= 4:
            await writer.drain()
            writer.close()

    out = tmp_path / "run"
    async with scripted_server(various) as server:
        code, text, _ = await tokentick_run(
            ledger(tmp_path, [60 * i for i in range(6)]), "--base-url", url(server), "--out", out, "--json"
        )
    rows = rows_of(out)
    summary = json.loads(text)
    assert code == 0
    assert (
        len(server.posts) - json.loads((out / "run.json").read_text())["target"]["resent_on_dead_connection"]
        == 6
    )
    assert Counter(row.outcome for row in rows.values()) == Counter(
        ["completed", "http_error", "stream_error", "empty", "truncated", "connect_error"]
    )
    assert all(row.end_ns is not None and row.end_ns >= (row.sent_ns or 0) for row in rows.values())
    named = ("completed", "failed", "cancelled", "rejected", "unfinished", "not_sent")
    assert sum(summary[name] for name in named) == summary["scheduled"] == 6
    assert set(summary["by_outcome"]) <= set(OUTCOMES)


async def test_a_request_sent_twice_is_noted(tmp_path: Path) -> None:
    """A kept connection that was dead costs a second send; the run says how often that happened."""

    async def hang_up_on_second(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.number == 1:
            writer.transport.abort()
        else:
            await quick(request, writer)

    out = tmp_path / "run"
    async with scripted_server(hang_up_on_second) as server:
        words = ["--base-url", url(server), "--num-warmups", "1"]  # leaves one kept connection
        await tokentick_run(ledger(tmp_path, [0]), *words, "--out", out)
    # On a busy machine the news of the dead connection can be too late for a second try.
    sent_twice = len(server.posts) == 3
    note = "requests sent twice, because a kept connection turned out dead: 1"
    assert (note in Run(out).info.notes) is sent_twice


async def test_nothing_listens(tmp_path: Path) -> None:
    """Exit 3, one line that says why, and no directory that could be taken for a run."""
    code, out, err = await tokentick_run("toy", "--base-url", "http://127.0.0.1:1", "--out", tmp_path / "run")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "refused" in err
    assert not (tmp_path / "run").exists()


async def test_nothing_listens_and_no_preflight(tmp_path: Path) -> None:
    """Without a preflight every request is a connect_error row, and the exit code is still 3."""
    out = tmp_path / "run"
    code, _, _ = await tokentick_run(
        ledger(tmp_path, [0, 10]), "--base-url", "http://127.0.0.1:1", "--no-preflight", "--out", out
    )
    assert code == 3
    assert [(row.outcome, row.phase) for row in rows_of(out).values()] == [("connect_error", "connect")] * 2


async def test_warm_ups_and_reset_come_before_the_run(tmp_path: Path) -> None:
    """Warm-ups are not recorded; a mock that is busy is asked again until it starts over; then t0."""

    async def mock(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.path == "/mock/reset":
            writer.write(plain(409 if request.number < 4 else 200))
        else:
            await quick(request, writer)

    out = tmp_path / "run"
    async with scripted_server(mock) as server:
        code, _, _ = await tokentick_run(
            ledger(tmp_path, [0, 10]),
            "--base-url",
            url(server),
            "--num-warmups",
            "2",
            "--reset-mock",
            "--out",
            out,
        )
    paths = [request.path.rpartition("/")[2] for request in server.posts]
    assert code == 0
    assert paths == ["completions"] * 2 + ["reset"] * 3 + ["completions"] * 2
    assert len(rows_of(out)) == 2
    assert Run(out).info.clock.t0_monotonic_ns is not None
    assert server.posts[4].received_ns < (Run(out).info.clock.t0_monotonic_ns or 0)


@pytest.mark.parametrize("answer", ["silence", "error"])
async def test_a_warm_up_that_fails_or_hangs_ends_the_run(tmp_path: Path, answer: str) -> None:
    """One line, exit 3, nothing written: --request-timeout holds for warm-ups too."""

    async def bad(request: Request, writer: asyncio.StreamWriter) -> None:
        if answer == "silence":
            await asyncio.sleep(60)
        writer.write(SSE_HEAD + chunk(b'data: {"error":"two\\nlines"}\n\n') + chunk(b""))

    async with scripted_server(bad) as server:
        words = ["--base-url", url(server), "--num-warmups", "1", "--request-timeout", "0.3"]
        code, _, err = await tokentick_run(ledger(tmp_path, [0]), *words, "--out", tmp_path / "run")
    assert (code, err.count("\n")) == (3, 1)
    why = "no end within --request-timeout 0.3 s" if answer == "silence" else "two lines"
    assert f"warm-up request 1: {why}" in err
    assert not (tmp_path / "run").exists()


async def test_a_client_out_of_files_says_so(tmp_path: Path) -> None:
    """With 40 open files allowed and 100 requests at once, the client names its own limit; exit 4."""

    async def hold(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1)
        await quick(request, writer)

    out = tmp_path / "run"
    async with scripted_server(hold) as server:
        code, _, _ = await tokentick_run(
            ledger(tmp_path, [0] * 100), "--base-url", url(server), "--out", out, shell="ulimit -n 40"
        )
    rows = rows_of(out).values()
    errors = {row.error for row in rows if row.outcome == "connect_error"}
    assert code == 4
    assert errors == {"client limit: too many open files (EMFILE)"}
    assert len(rows) == 100


async def test_a_client_out_of_files_is_inconclusive_even_if_nothing_completed(tmp_path: Path) -> None:
    """A server that refuses all cannot be judged by a client that ran out of files: 4, not 1."""

    async def refuse(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1)
        writer.write(plain(500))

    async with scripted_server(refuse) as server:
        code, _, _ = await tokentick_run(
            ledger(tmp_path, [0] * 100),
            "--base-url",
            url(server),
            "--out",
            tmp_path / "run",
            shell="ulimit -n 40",
        )
    outcomes = Counter(row.outcome for row in rows_of(tmp_path / "run").values())
    assert code == 4
    assert set(outcomes) == {"http_error", "connect_error"}


async def test_a_server_cannot_blame_the_client(tmp_path: Path) -> None:
    """The words of a client's limit in a server's error are the server's: the run is not inconclusive."""

    async def blame(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.number:
            await quick(request, writer)
        else:
            writer.write(
                SSE_HEAD + chunk(b'data: {"error":"client limit: too many open files"}\n\n') + chunk(b"")
            )

    out = tmp_path / "run"
    async with scripted_server(blame) as server:
        code, _, _ = await tokentick_run(ledger(tmp_path, [0, 50]), "--base-url", url(server), "--out", out)
    assert [row.outcome for row in rows_of(out).values()] == ["stream_error", "completed"]
    assert code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--extra-body", "[1]"], "--extra-body"),
        (["--header", "no-value"], "--header"),
        (["--header", "Host=x"], "--header Host"),
        (["--header", "X=a\r\nY: b"], "--header X"),
        (["--endpoint", "completions"], "--endpoint"),
        (["--api-key-file", "/does/not/exist"], "--api-key-file"),
        (["--base-url", "ftp://x"], "--base-url"),
        (["--base-url", "http://user:pass-canary@"], "--base-url"),
        (["--base-url", "http://x:99999"], "--base-url"),
        (["--base-url", "http://x:0"], "--base-url"),
        (["--request-timeout", "0"], "--request-timeout"),
        (["--metadata", "k"], "--metadata"),
    ],
)
async def test_bad_flags_are_one_line_and_exit_2(words: list[str], said: str) -> None:
    """Which flag, in one line, and no secret in it."""
    code, out, err = await tokentick_run("toy", "--base-url", "http://127.0.0.1:1", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert "pass-canary" not in err


async def test_an_occupied_directory_is_left_alone(tmp_path: Path) -> None:
    """A run never mixes into another: exit 2, and nothing is sent."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").write_text("keep")
    async with scripted_server(quick) as server:
        code, _, err = await tokentick_run("toy", "--base-url", url(server), "--out", tmp_path / "old")
    assert (code, server.posts) == (2, [])
    assert "not empty" in err


async def test_the_text_at_the_end_fits_80_columns(tmp_path: Path) -> None:
    """Counts, a table of latencies, the directory, and what to look at next."""
    out = tmp_path / "run"
    async with scripted_server(quick) as server:
        _, text, _ = await tokentick_run(ledger(tmp_path, [0, 10]), "--base-url", url(server), "--out", out)
    lines = text.splitlines()
    assert "2 scheduled = 2 completed" in lines
    assert f"files: {out}" in lines
    assert f"tokentick report {out} --diagnose" in text
    assert max(len(line) for line in lines if str(out) not in line) <= 80
    for name in ("TTFT", "TPOT", "ITL", "E2E", "send lag"):
        assert name in text
