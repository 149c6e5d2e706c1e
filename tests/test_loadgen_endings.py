"""How requests and runs end when not by an answer: clients that give up or try again, caps, and time."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ledgers.rows import RequestRow
from ledgers.rundir import Run
from tests.scripted_server import SSE_HEAD, Request, ending, plain, quick, scripted_server, token
from tests.test_loadgen_run import MS, finish, ledger, rows_of, start, tokentick_run, url


async def silent(request: Request, writer: asyncio.StreamWriter) -> None:
    """Takes the request and says nothing."""
    await asyncio.sleep(30)


async def headers_only(request: Request, writer: asyncio.StreamWriter) -> None:
    """Opens the stream, pings, and never says a token."""
    writer.write(SSE_HEAD)
    for _ in range(300):
        writer.write(b"8\r\n: ping\n\n\r\n")
        await asyncio.sleep(0.1)


async def stalls(request: Request, writer: asyncio.StreamWriter) -> None:
    """Three tokens in time, then none."""
    writer.write(SSE_HEAD)
    for text in "abc":
        writer.write(token(text))
        await asyncio.sleep(0.15)
    await asyncio.sleep(30)


async def trickles(request: Request, writer: asyncio.StreamWriter) -> None:
    """A token every 150 ms, for ever."""
    writer.write(SSE_HEAD)
    for _ in range(300):
        writer.write(token("a"))
        await asyncio.sleep(0.15)


async def slow(request: Request, writer: asyncio.StreamWriter) -> None:
    """300 ms of service."""
    await asyncio.sleep(0.3)
    writer.write(SSE_HEAD + token("a") + token("b") + ending(2))


@contextmanager
def nobody_accepts() -> Iterator[int]:
    """The port of a listener whose backlog is full: it lets nobody in, and refuses nobody either."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port: int = listener.getsockname()[1]
        for _ in range(4):  # what fits into the backlog, and more
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
        yield port


def ms(row: RequestRow, name: str) -> float:
    value = getattr(row, name)
    assert value is not None
    return float(value / MS)


@pytest.mark.parametrize(
    ("answer", "words", "phase", "events", "why"),
    [
        (
            silent,
            ["--first-token-timeout", 0.4],
            "headers",
            None,
            "no token within --first-token-timeout 0.4",
        ),
        (headers_only, ["--first-token-timeout", 0.4], "first_token", 0, "--first-token-timeout"),
        (stalls, ["--stall-timeout", 0.5], "streaming", 3, "no further token within --stall-timeout 0.5"),
        (trickles, ["--request-timeout", 0.5], "streaming", None, "no end within --request-timeout 0.5"),
    ],
    ids=["silent", "pings", "stalls", "trickles"],
)
async def test_each_timeout_has_its_phase(
    tmp_path: Path, answer: object, words: list[object], phase: str, events: int | None, why: str
) -> None:
    """A row says in which phase the patience ended, and which limit it was; never earlier than that."""
    out = tmp_path / "run"
    async with scripted_server(answer) as server:  # type: ignore[arg-type]
        code, _, _ = await tokentick_run(
            ledger(tmp_path, [0]), "--base-url", url(server), "--out", out, *words
        )
    row = rows_of(out)["R01"]
    assert (code, row.outcome, row.phase) == (1, "timeout", phase)
    assert why in (row.error or "")
    assert events is None or row.events == events
    base = ms(row, "last_token_ns") if phase == "streaming" and answer is stalls else ms(row, "sent_ns")
    assert ms(row, "end_ns") - base >= float(str(words[1])) * 1000


async def test_a_slow_stream_outlives_a_stall_timeout_longer_than_its_gaps(tmp_path: Path) -> None:
    """Gaps of 150 ms under a limit of 600 ms: the stream of a second and more is complete."""

    async def ten(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        for _ in range(8):
            writer.write(token("a"))
            await asyncio.sleep(0.15)
        writer.write(ending(8))

    out = tmp_path / "run"
    async with scripted_server(ten) as server:
        words = ["--stall-timeout", 0.6, "--first-token-timeout", 0.6]
        code, _, _ = await tokentick_run(
            ledger(tmp_path, [0, 10]), "--base-url", url(server), "--out", out, *words
        )
    assert (code, [row.tokens for row in rows_of(out).values()]) == (0, [8, 8])


async def test_a_standstill_of_ours_is_no_timeout_of_the_server(tmp_path: Path) -> None:
    """Stopped for longer than the limit while the answer came: what has come is read before judging."""

    async def stop_client(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + token("a"))
        await asyncio.sleep(0.1)
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(0.1)
        writer.write(token("b") + ending(2))
        await asyncio.sleep(1.0)
        process.send_signal(signal.SIGCONT)

    out = tmp_path / "run"
    async with scripted_server(stop_client) as server:
        words = ["--stall-timeout", 0.5, "--request-timeout", 0.8]
        process = await start(ledger(tmp_path, [0]), "--base-url", url(server), "--out", out, *words)
        await finish(process)
    assert rows_of(out)["R01"].outcome == "completed"


async def test_a_connection_that_does_not_open_is_a_timeout_in_connect(tmp_path: Path) -> None:
    """A listener with a full backlog lets nobody in, and refuses nobody either."""
    with nobody_accepts() as port:
        out = tmp_path / "run"
        words = ["--base-url", f"http://127.0.0.1:{port}", "--connect-timeout", 0.5, "--no-preflight"]
        code, _, _ = await tokentick_run(ledger(tmp_path, [0, 10]), "--out", out, *words)
    assert code == 3
    assert [(row.outcome, row.phase) for row in rows_of(out).values()] == [("timeout", "connect")] * 2


async def test_clients_that_give_up_are_cancelled_and_hang_up(tmp_path: Path) -> None:
    """The server sees the connection close; the row is no failure; the others are served."""
    hung_up = []

    async def serve(request: Request, writer: asyncio.StreamWriter) -> None:
        if b'"max_completion_tokens":2' in request.body:
            writer.write(SSE_HEAD + token("a"))
            while not writer.is_closing() and len(hung_up) < 4:
                await asyncio.sleep(0.02)
                writer.write(b"8\r\n: ping\n\n\r\n")
            hung_up.append(request.number)

    out = tmp_path / "run"
    async with scripted_server(serve) as server:
        code, text, _ = await tokentick_run(
            ledger(tmp_path, [0, 20, 40]),
            "--base-url",
            url(server),
            "--out",
            out,
            "--json",
            "--cancel-after",
            0.3,
        )
        await asyncio.sleep(0.1)
    rows = list(rows_of(out).values())
    assert [(row.outcome, row.phase) for row in rows] == [("cancelled", "streaming")] * 3
    assert all(ms(row, "end_ns") - ms(row, "sent_ns") >= 300 for row in rows)
    assert (json.loads(text)["cancelled"], json.loads(text)["failed"], code) == (3, 0, 1)
    assert len(hung_up) == 3


async def test_a_share_of_the_clients_gives_up(tmp_path: Path) -> None:
    """About half, the same ones in each run of a seed; without a time to wait the flag means nothing."""
    outcomes = []
    async with scripted_server(slow) as server:
        for name in ("one", "two"):
            words = ["--cancel-rate", 0.5, "--cancel-after", 0.05, "--seed", 3]
            plan = ledger(tmp_path, [i * 5 for i in range(40)])
            await tokentick_run(plan, "--base-url", url(server), "--out", tmp_path / name, *words)
            outcomes.append([row.outcome for row in rows_of(tmp_path / name).values()])
        code, _, err = await tokentick_run("toy", "--base-url", url(server), "--cancel-rate", 0.5)
    assert outcomes[0] == outcomes[1]
    assert 10 <= outcomes[0].count("cancelled") <= 30
    assert outcomes[0].count("cancelled") + outcomes[0].count("completed") == 40
    assert (code, "--cancel-after" in err) == (2, True)


# Caps and closed loops


async def test_waiting_under_a_cap_is_part_of_the_latency_and_not_of_the_send_lag(tmp_path: Path) -> None:
    """Six arrivals at once, two places, 300 ms of service: they leave at 0, 300 and 600 ms."""
    out = tmp_path / "run"
    most = 0
    now = 0

    async def counting(request: Request, writer: asyncio.StreamWriter) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.3)
        now -= 1  # before the answer: the next request may come at once
        writer.write(SSE_HEAD + token("a") + token("b") + ending(2))

    async with scripted_server(counting) as server:
        words = ["--max-concurrency", 2, "--request-rate", 1000]
        code, text, _ = await tokentick_run(
            ledger(tmp_path, [0, 1, 2, 3, 4, 5]), "--base-url", url(server), "--out", out, "--json", *words
        )
    assert (code, most) == (0, 2)
    rows = list(rows_of(out).values())
    for row, expected in zip(rows, [0, 0, 300, 300, 600, 600], strict=True):
        assert ms(row, "sent_ns") == pytest.approx(expected, abs=120)
        assert ms(row, "sent_ns") - ms(row, "due_ns") < 60
        assert ms(row, "first_token_ns") - ms(row, "arrival_ns") >= expected + 280
    summary = json.loads(text)
    assert summary["send_lag_ms"]["max"] < 60
    assert summary["held_ms"]["max"] == pytest.approx(600, abs=120)
    assert not summary["client"]["client_limited"]


async def test_a_closed_loop_keeps_its_places_full(tmp_path: Path) -> None:
    """Three at a time, each leaves when another has ended; latency counts from the send (a = z)."""
    out = tmp_path / "run"
    async with scripted_server(slow) as server:
        words = [
            "--num-prompts",
            9,
            "--random-input-len",
            5,
            "--random-output-len",
            2,
            "--max-concurrency",
            3,
        ]
        code, text, _ = await tokentick_run("--base-url", url(server), "--out", out, "--json", *words)
    rows = list(Run(out).rows())
    assert (code, len(rows), len(server.posts)) == (0, 9, 9)
    assert all(row.arrival_ns == row.sent_ns for row in rows)
    sends = sorted(ms(row, "sent_ns") for row in rows)
    for sent, expected in zip(sends, [0, 0, 0, 300, 300, 300, 600, 600, 600], strict=True):
        assert sent == pytest.approx(expected, abs=120)
    summary = json.loads(text)
    assert summary["concurrency_peak"] == 3
    assert summary["held_ms"] is None
    assert 290 < summary["ttft_ms"]["p50"] < 450
    assert Run(out).info.config.extra["closed_loop"] is True


async def test_a_closed_loop_ends_with_its_duration(tmp_path: Path) -> None:
    """What was not begun then was never on offer; what was in flight ends in peace."""
    out = tmp_path / "run"
    async with scripted_server(slow) as server:
        words = ["--num-prompts", 500, "--random-input-len", 5, "--random-output-len", 2]
        words += ["--max-concurrency", 2, "--duration", 0.5]
        code, text, _ = await tokentick_run("--base-url", url(server), "--out", out, "--json", *words)
    summary = json.loads(text)
    assert (code, summary["scheduled"], summary["completed"], summary["not_sent"]) == (0, 4, 4, 0)
    assert Run(out).info.ledger.requests == 4
    assert any("496" in note for note in Run(out).info.notes)


async def test_an_open_loop_takes_what_arrives_within_the_duration(tmp_path: Path) -> None:
    """The rest of the ledger is left out before the run, and that is said."""
    out = tmp_path / "run"
    async with scripted_server(quick) as server:
        plan = ledger(tmp_path, [0, 50, 100, 5_000, 9_000])
        code, text, err = await tokentick_run(
            plan, "--base-url", url(server), "--out", out, "--json", "--duration", 1
        )
    assert (code, json.loads(text)["scheduled"], len(server.posts)) == (0, 3, 3)
    assert "2" in err


async def test_a_cap_of_nothing_is_refused(tmp_path: Path) -> None:
    """No cap is the absence of the flag, not a zero."""
    code, _, err = await tokentick_run("toy", "--base-url", "http://127.0.0.1:1", "--max-concurrency", 0)
    assert (code, err.count("\n")) == (2, 1)


# Trying again


async def test_clients_that_try_again_are_traffic(tmp_path: Path) -> None:
    """Each attempt is a row with its own id, linked to the first, whose arrival its latency counts from."""

    async def second_time_lucky(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.headers["x-request-id"].endswith(("R01", "R02", "R02~1")):
            writer.write(b"HTTP/1.1 503 Busy\r\nRetry-After: 0.2\r\nContent-Length: 0\r\n\r\n")
        else:
            await quick(request, writer)

    out = tmp_path / "run"
    async with scripted_server(second_time_lucky) as server:
        words = ["--base-url", url(server), "--out", out, "--json", "--client-retries", 2]
        code, text, _ = await tokentick_run(ledger(tmp_path, [0, 10, 20]), *words)
    rows = {row.id: row for row in Run(out).rows()}
    assert {id: (row.retry_of, row.outcome) for id, row in rows.items()} == {
        "R01": (None, "http_error"),
        "R01~1": ("R01", "completed"),
        "R02": (None, "http_error"),
        "R02~1": ("R02", "http_error"),
        "R02~2": ("R02", "completed"),
        "R03": (None, "completed"),
    }
    assert rows["R01"].retry_after_s == 0.2
    again = rows["R02~2"]
    assert again.arrival_ns == rows["R02"].arrival_ns
    assert ms(again, "due_ns") - ms(rows["R02~1"], "end_ns") == pytest.approx(200, abs=1)
    assert ms(again, "sent_ns") >= ms(again, "due_ns")
    summary = json.loads(text)
    assert (code, summary["scheduled"], summary["completed"], summary["failed"]) == (0, 6, 3, 3)
    assert summary["retries"] == 3
    assert len({post.headers["x-request-id"] for post in server.posts}) == 6
    bodies = {post.headers["x-request-id"][-5:]: post.body for post in server.posts}
    assert bodies["R01~1"] == next(p.body for p in server.posts if p.headers["x-request-id"].endswith("R01"))


async def test_nothing_is_tried_again_unless_asked_for(tmp_path: Path) -> None:
    """Every second request is refused, with a wait asked for: half are failures, arrivals stay as planned."""

    async def every_second(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.number % 2:
            writer.write(b"HTTP/1.1 429 No\r\nRetry-After: 2\r\nContent-Length: 0\r\n\r\n")
        else:
            await quick(request, writer)

    out = tmp_path / "run"
    async with scripted_server(every_second) as server:
        code, text, _ = await tokentick_run(
            ledger(tmp_path, [i * 20 for i in range(10)]), "--base-url", url(server), "--out", out, "--json"
        )
    summary = json.loads(text)
    assert (code, len(server.posts), summary["completed"], summary["by_outcome"]["http_error"]) == (
        0,
        10,
        5,
        5,
    )
    failed = [row for row in rows_of(out).values() if row.outcome == "http_error"]
    assert {row.retry_after_s for row in failed} == {2.0}
    assert all(row.end_ns is not None and row.end_ns >= (row.sent_ns or 0) for row in failed)
    assert max(ms(row, "sent_ns") - ms(row, "arrival_ns") for row in rows_of(out).values()) < 100


# Interrupts


async def test_a_terminal_that_closes_interrupts_like_ctrl_c(tmp_path: Path) -> None:
    """SIGHUP: nothing more is sent, what is in flight ends, the summary is written."""
    out = tmp_path / "run"
    async with scripted_server(slow) as server:
        plan = ledger(tmp_path, [0, 10, 60_000])
        process = await start(plan, "--base-url", url(server), "--out", out, "--json")
        while not server.posts:
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGHUP)
        code, text, _ = await finish(process)
    summary = json.loads(text)
    assert (code, summary["scheduled"]) == (130, 3)
    assert summary["completed"] >= 1
    assert summary["completed"] + summary["not_sent"] == 3


async def test_twice_ctrl_c_ends_a_run_with_a_hung_server_at_once(tmp_path: Path) -> None:
    """In two seconds, with a row for every request."""
    out = tmp_path / "run"
    async with scripted_server(silent) as server:
        plan = ledger(tmp_path, [0, 10, 60_000])
        process = await start(plan, "--base-url", url(server), "--out", out, "--json", "--client-retries", 3)
        while len(server.posts) < 2:
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGINT)
        await asyncio.sleep(0.1)
        process.send_signal(signal.SIGINT)
        before = time.monotonic()
        code, text, _ = await finish(process)
    summary = json.loads(text)
    assert (code, summary["cancelled"], summary["not_sent"]) == (130, 2, 1)
    assert time.monotonic() - before < 5
    assert Run(out).info.interrupted


# Connections


async def test_connections_can_be_opened_ahead(tmp_path: Path) -> None:
    """As many as asked for are there before the first request."""
    seen = []

    async def note(request: Request, writer: asyncio.StreamWriter) -> None:
        seen.append(server.connections)
        await quick(request, writer)

    async with scripted_server(note) as server:
        words = ["--base-url", url(server), "--out", tmp_path / "run", "--connections", 7, "--no-preflight"]
        await tokentick_run(ledger(tmp_path, [0]), *words)
    assert seen[0] >= 7


async def test_a_server_that_closes_each_connection_after_three_requests_loses_nothing(
    tmp_path: Path,
) -> None:
    """Announced or not, before any byte of an answer it is sent again on another connection."""
    served: dict[int, int] = {}

    async def short_lived(request: Request, writer: asyncio.StreamWriter) -> None:
        served[request.connection] = served.get(request.connection, 0) + 1
        await quick(request, writer)
        if served[request.connection] == 3:
            await writer.drain()
            writer.close()

    out = tmp_path / "run"
    async with scripted_server(short_lived) as server:
        plan = ledger(tmp_path, [i * 8 for i in range(60)])
        code, text, _ = await tokentick_run(plan, "--base-url", url(server), "--out", out, "--json")
    assert (code, json.loads(text)["completed"]) == (0, 60)


async def test_plain_refusals_are_rows_with_their_cause(tmp_path: Path) -> None:
    """A server that refuses fast does not look fast: no latency is shown but of those that were served."""

    async def refuse(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.number:
            writer.write(plain(500, b'{"detail":"engine is dead"}'))
        else:
            await slow(request, writer)

    out = tmp_path / "run"
    async with scripted_server(refuse) as server:
        plan = ledger(tmp_path, [i * 10 for i in range(10)])
        code, text, _ = await tokentick_run(plan, "--base-url", url(server), "--out", out)
    assert code == 0
    assert "10 scheduled = 1 completed + 9 failed" in text
    assert "9 http_error" in text
    assert "HTTP 500: engine is dead" in " ".join(text.split())
    assert Run(out).info.complete


async def test_a_stream_that_finished_and_stays_open_is_not_waited_for(tmp_path: Path) -> None:
    """A finish reason, then pings but no end mark: complete with its last event, in a second or two."""

    async def finishes(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + token("a") + token("b"))
        finish = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n'
        writer.write(b"%x\r\n%s\r\n" % (len(finish), finish))
        for _ in range(100):
            writer.write(b"8\r\n: ping\n\n\r\n")
            await asyncio.sleep(0.2)

    out = tmp_path / "run"
    async with scripted_server(finishes) as server:
        before = time.monotonic()
        code, text, _ = await tokentick_run(
            ledger(tmp_path, [0, 10]), "--base-url", url(server), "--out", out, "--json"
        )
        assert time.monotonic() - before < 10
    rows = list(rows_of(out).values())
    assert (code, [row.outcome for row in rows]) == (0, ["completed"] * 2)
    assert all(ms(row, "end_ns") - ms(row, "last_token_ns") < 500 for row in rows)
    assert json.loads(text)["window_s"] < 1


async def test_nothing_is_sent_after_the_duration(tmp_path: Path) -> None:
    """What waits for a place then is not sent, and no attempt follows a failure; what is in flight ends."""

    async def busy(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.3)
        writer.write(b"HTTP/1.1 503 Busy\r\nRetry-After: 0.4\r\nContent-Length: 0\r\n\r\n")

    out = tmp_path / "run"
    async with scripted_server(busy) as server:
        words = ["--base-url", url(server), "--out", out, "--max-concurrency", 1, "--request-rate", 20]
        words += ["--client-retries", 3, "--duration", 0.5, "--json"]
        _, text, _ = await tokentick_run(ledger(tmp_path, [i * 50 for i in range(10)]), *words)
    rows = list(Run(out).rows())
    assert max(ms(row, "sent_ns") for row in rows if row.sent_ns is not None) < 600
    summary = json.loads(text)
    assert summary["scheduled"] == len(rows) == summary["failed"] + summary["not_sent"]
    assert summary["not_sent"] >= 7


async def test_a_key_in_a_path_or_a_body_is_not_written_down(tmp_path: Path) -> None:
    """As some APIs want it; what is no secret stays readable."""
    out = tmp_path / "run"
    async with scripted_server(quick) as server:
        words = ["--endpoint", "/v1/chat/completions?key=canary%2Fone&version=2026-01", "--out", out]
        words += ["--header", "X-Api-Key=can"]
        words += [
            "--extra-body",
            '{"api_key": "canary-two", "user": "somebody", "in": {"secrets": ["canary\\/four"]}}',
            "--metadata",
            "token=canary-three",
        ]
        code, text, err = await tokentick_run(ledger(tmp_path, [0]), "--base-url", url(server), *words)
        assert server.posts[0].path == "/v1/chat/completions?key=canary%2Fone&version=2026-01"
        assert json.loads(server.posts[0].body)["api_key"] == "canary-two"
    written = text + err + "".join(file.read_text() for file in out.glob("*"))
    assert code in (0, 4)
    assert "canary" not in written
    assert "version=2026-01" in written
    assert "somebody" in written


async def test_prompts_are_new_in_each_run_unless_a_seed_is_given(tmp_path: Path) -> None:
    """A prefix cache that knows the last run must not make this one faster."""
    async with scripted_server(quick) as server:
        for number, words in enumerate([[], [], ["--seed", 7], ["--seed", 7]]):
            out = tmp_path / str(number)
            await tokentick_run(ledger(tmp_path, [0]), "--base-url", url(server), "--out", out, *words)
        prompts = [post.prompt for post in server.posts]
    assert prompts[0] != prompts[1]
    assert prompts[2] == prompts[3]


async def test_ctrl_c_in_the_preflight_says_that_nothing_was_measured(tmp_path: Path) -> None:
    """One line, exit 130, no directory."""
    async with scripted_server(quick) as server:
        server.on_probe = silent
        process = await start(ledger(tmp_path, [0]), "--base-url", url(server), "--out", tmp_path / "run")
        while not server.probes:
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGINT)
        code, _, err = await finish(process)
    assert (code, len(err.split("\n\n")[0].splitlines())) == (130, 1), err
    assert "nothing was measured" in err
    assert not (tmp_path / "run").exists()


async def test_a_tail_cuts_a_closed_loop_too(tmp_path: Path) -> None:
    """The last send fills the last place, and nobody ends: the tail does."""
    out = tmp_path / "run"
    async with scripted_server(silent) as server:
        words = [
            "--num-prompts",
            2,
            "--random-input-len",
            5,
            "--random-output-len",
            2,
            "--max-concurrency",
            2,
        ]
        _, text, _ = await tokentick_run(
            "--base-url", url(server), "--out", out, "--json", "--tail", 0.5, *words
        )
    assert (json.loads(text)["unfinished"], json.loads(text)["scheduled"]) == (2, 2)


async def test_a_made_ledger_is_saved_with_the_run(tmp_path: Path) -> None:
    """What was drawn can be replayed as it was, arrivals and all."""
    made = [
        "--num-prompts",
        5,
        "--random-input-len",
        50,
        "--random-output-len",
        9,
        "--random-range-ratio",
        0.5,
    ]
    async with scripted_server(quick) as server:
        words = ["--base-url", url(server), "--out", tmp_path / "one", "--request-rate", 50]
        await tokentick_run(*made, *words)
        words = ["--base-url", url(server), "--out", tmp_path / "two"]
        await tokentick_run(tmp_path / "one" / "ledger.jsonl", *words)
    one, two = (
        [(row.prompt_tokens, row.output_tokens, row.arrival_ns) for row in rows_of(tmp_path / name).values()]
        for name in ("one", "two")
    )
    assert one == two
    assert Run(tmp_path / "one").info.ledger.sha256 == Run(tmp_path / "two").info.ledger.sha256


async def test_a_choice_that_begins_late_is_waited_for(tmp_path: Path) -> None:
    """Two asked for: the first finishes long before the second begins; both are in the row."""

    async def one_after_the_other(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        for index in (0, 1):
            for event in (
                {"choices": [{"index": index, "delta": {"content": "a"}, "finish_reason": None}]},
                {"choices": [{"index": index, "delta": {}, "finish_reason": "stop"}]},
            ):
                data = f"data: {json.dumps(event)}\n\n".encode()
                writer.write(b"%x\r\n%s\r\n" % (len(data), data))
            await asyncio.sleep(2.5 * (1 - index))
        writer.write(ending(2))

    out = tmp_path / "run"
    async with scripted_server(one_after_the_other) as server:
        words = ["--base-url", url(server), "--out", out, "--extra-body", '{"n": 2}']
        await tokentick_run(ledger(tmp_path, [0]), *words)
    row = rows_of(out)["R01"]
    assert (row.outcome, row.choices, row.events) == ("completed", 2, 2)


async def test_attempts_that_fail_at_once_do_not_keep_a_run_open(tmp_path: Path) -> None:
    """No wait, no answer: three attempts each, then the end."""

    async def refuse(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n")

    out = tmp_path / "run"
    async with scripted_server(refuse) as server:
        words = ["--base-url", url(server), "--out", out, "--json", "--client-retries", 2]
        code, text, _ = await tokentick_run(ledger(tmp_path, [0, 10]), *words)
    assert (code, json.loads(text)["failed"], json.loads(text)["retries"]) == (1, 6, 4)


async def test_what_nohup_ignores_stays_ignored(tmp_path: Path) -> None:
    """A run started to outlive its terminal does so."""
    out = tmp_path / "run"
    async with scripted_server(slow) as server:
        plan = ledger(tmp_path, [0, 10, 500])
        words = ["--base-url", url(server), "--out", out, "--json"]
        process = await start(plan, *words, shell="trap '' HUP")
        while not server.posts:
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGHUP)
        code, text, _ = await finish(process)
    assert code in (0, 4)
    assert json.loads(text)["completed"] == 3


# Counting here


async def test_a_tokenizer_counts_what_the_server_does_not(tmp_path: Path) -> None:
    """A stream without usage, and a whole answer without: the tokens of the text, not the events."""
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: number for number, word in enumerate(["[UNK]", "one", "two", "three", "four"])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    file = tmp_path / "tokenizer.json"
    model.save(str(file))

    async def without_usage(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.number:
            choice = {"index": 0, "message": {"content": "one two"}, "finish_reason": "stop"}
            writer.write(plain(200, json.dumps({"choices": [choice]}).encode()))
            return
        finish = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        writer.write(SSE_HEAD + token("one two th") + token("ree four"))
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(finish), finish))

    out = tmp_path / "run"
    async with scripted_server(without_usage) as server:
        flags = ["--base-url", url(server), "--out", out, "--tokenizer", file]
        await tokentick_run(ledger(tmp_path, [0, 300]), *flags)
    rows = rows_of(out).values()
    assert [(row.tokens, row.token_source, row.events) for row in rows] == [
        (4, "tokenizer", 2),
        (2, "tokenizer", 1),
    ]


async def test_a_warm_up_is_given_up_like_any_request(tmp_path: Path) -> None:
    """One line, exit 3, nothing written."""
    async with scripted_server(silent) as server:
        flags = ["--base-url", url(server), "--out", tmp_path / "run", "--num-warmups", 1]
        code, out, err = await tokentick_run(ledger(tmp_path, [0]), *flags, "--first-token-timeout", 0.4)
    assert (code, out) == (3, "")
    assert "warm-up request 1: no token within --first-token-timeout 0.4 s" in err
    assert not (tmp_path / "run").exists()


# What a stress test found


async def test_a_closed_loop_does_not_starve_those_who_try_again(tmp_path: Path) -> None:
    """An attempt that is due goes before requests of the ledger, which have no times."""

    async def every_third(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.02)
        if request.number % 3 == 0:
            writer.write(b"HTTP/1.1 503 Busy\r\nRetry-After: 0.1\r\nContent-Length: 0\r\n\r\n")
        else:
            writer.write(SSE_HEAD + token("a") + token("b") + ending(2))

    out = tmp_path / "run"
    async with scripted_server(every_third) as server:
        words = ["--num-prompts", 200, "--random-input-len", 5, "--random-output-len", 2]
        words += ["--max-concurrency", 4, "--client-retries", 1, "--base-url", url(server), "--out", out]
        await tokentick_run(*words)
    again = [row for row in Run(out).rows() if row.retry_of is not None]
    assert len(again) > 40
    assert sorted(ms(row, "sent_ns") - ms(row, "due_ns") for row in again)[len(again) // 2] < 60


async def test_what_waits_for_its_connection_does_not_leave_after_the_duration(tmp_path: Path) -> None:
    """Nor does it keep the run open: it is not sent, and that is its row."""
    with nobody_accepts() as port:
        out = tmp_path / "run"
        flags = ["--no-preflight", "--duration", 0.4, "--connect-timeout", 20, "--json"]
        began = time.monotonic()
        _, text, _ = await tokentick_run(
            ledger(tmp_path, [0, 10]), "--base-url", f"http://127.0.0.1:{port}", "--out", out, *flags
        )
        assert time.monotonic() - began < 10
    assert (json.loads(text)["not_sent"], json.loads(text)["scheduled"]) == (2, 2)
    assert {row.error for row in Run(out).rows()} == {"still connecting when the sending was over"}


async def test_streams_that_ended_while_we_stood_still_are_no_timeouts(tmp_path: Path) -> None:
    """Cut off after a token in time; we look after the limit: truncated is what they were."""

    async def cut_off(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD + token("a"))
        await writer.drain()
        if request.number == 19:
            await asyncio.sleep(0.1)
            process.send_signal(signal.SIGSTOP)
            asyncio.get_running_loop().call_later(1.3, process.send_signal, signal.SIGCONT)
        await asyncio.sleep(0.4)
        writer.close()

    out = tmp_path / "run"
    async with scripted_server(cut_off) as server:
        flags = ["--base-url", url(server), "--out", out, "--request-timeout", 1]
        process = await start(ledger(tmp_path, list(range(20))), *flags)
        await finish(process)
    assert {row.outcome for row in Run(out).rows()} == {"truncated"}


async def test_the_time_to_connect_counts_from_the_request(tmp_path: Path) -> None:
    """It takes over a connection that has been opening for a while: it waits its full time nevertheless."""
    with nobody_accepts() as port:
        out = tmp_path / "run"
        flags = ["--no-preflight", "--connect-timeout", 0.3]
        await tokentick_run(
            ledger(tmp_path, [0, 400]), "--base-url", f"http://127.0.0.1:{port}", "--out", out, *flags
        )
    for row in Run(out).rows():
        assert (row.outcome, row.phase) == ("timeout", "connect")
        assert ms(row, "end_ns") - ms(row, "arrival_ns") >= 299


async def test_ids_that_a_retry_would_have_are_refused(tmp_path: Path) -> None:
    """One line, before anything is sent."""
    file = tmp_path / "plan.csv"
    file.write_text("id,arrival_s,prompt_tokens,output_tokens\na,0,5,2\na~1,1,5,2\n")
    code, _, err = await tokentick_run(file, "--base-url", "http://127.0.0.1:1", "--client-retries", 1)
    assert (code, err.count("\n")) == (2, 1)
    assert "a~1" in err
