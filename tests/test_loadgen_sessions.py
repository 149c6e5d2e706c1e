"""`tokentick run` with sessions against scripted servers, and `agree` on a small one: real clocks, short."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from ledgers.rows import RequestRow
from ledgers.rundir import Run
from ledgers.summary import summarize
from tests.conftest import tokentick
from tests.scripted_server import SSE_HEAD, Request, ending, plain, quick, scripted_server, token
from tests.test_loadgen_run import MS, finish, rows_of, start, tokentick_run, url

HEADER = "id,session,arrival_s,think_s,prompt_tokens,output_tokens\n"
TWO_SESSIONS = HEADER + "A1,A,0,,5,2\nA2,A,,0.2,9,2\nA3,A,,0,12,2\nB1,B,0.05,,5,2\nB2,B,,0.1,8,2\n"
BEFORE = {"A2": "A1", "A3": "A2", "B2": "B1"}


def plan(path: Path, text: str = TWO_SESSIONS) -> Path:
    file = path / "plan.csv"
    file.write_text(text)
    return file


def id_of(request: Request) -> str:
    return request.headers["x-request-id"].rpartition("-")[2]


async def slow(request: Request, writer: asyncio.StreamWriter) -> None:
    """150 ms of service."""
    writer.write(SSE_HEAD + token("a"))
    await asyncio.sleep(0.15)
    writer.write(token("b") + ending(2))


def check_releases(rows: dict[str, RequestRow], thinks_ms: dict[str, float]) -> None:
    """Each turn is intended exactly its think time after the end before it, and left then."""
    for id, before in BEFORE.items():
        row, earlier = rows[id], rows[before]
        assert row.arrival_ns is not None
        assert earlier.end_ns is not None
        assert row.sent_ns is not None
        assert row.arrival_ns == earlier.end_ns + thinks_ms[id] * MS
        assert row.sent_ns >= row.arrival_ns
        assert row.sent_ns - row.arrival_ns < 200 * MS


async def test_a_turn_waits_for_the_answer_and_thinks(tmp_path: Path) -> None:
    """Two sessions beside each other, each in its order; metrics count from the real intended arrival."""
    out = tmp_path / "run"
    async with scripted_server(slow) as server:
        code, text, err = await tokentick_run(plan(tmp_path), "--base-url", url(server), "--out", out)
    rows = rows_of(out)
    assert "of 2 sessions every turn completed in 2" in text
    assert (code, {row.outcome for row in rows.values()}) == (0, {"completed"}), err
    check_releases(rows, {"A2": 200, "A3": 0, "B2": 100})
    order = [id_of(post) for post in server.posts]
    assert [id for id in order if id[0] == "A"] == ["A1", "A2", "A3"]
    assert [id for id in order if id[0] == "B"] == ["B1", "B2"]
    prompts = {id_of(post): str(post.prompt) for post in server.posts}
    assert prompts["A3"].startswith(prompts["A2"] + " ")
    assert prompts["A2"].startswith(prompts["A1"] + " ")
    assert "2 sessions: 3 turns wait for the answer before them" in err
    assert "labels" not in err
    summary = summarize(Run(out))
    assert (summary["scheduled"], summary["completed"], summary["retries"]) == (5, 5, 0)
    assert [sample.asked for sample in Run(out).health()][-1] == 5


async def test_replayed_sessions_do_not_wait(tmp_path: Path) -> None:
    """`--sessions replay`: the second turn leaves at its own time, while the first is answered."""
    text = HEADER + "A1,A,0,,5,2\nA2,A,0.1,5,5,2\n"
    out = tmp_path / "run"
    async with scripted_server(slow) as server:
        words = ["--out", out, "--sessions", "replay", "--speed", 2]
        code, _, err = await tokentick_run(plan(tmp_path, text), "--base-url", url(server), *words)
    rows = rows_of(out)
    assert (code, rows["A2"].arrival_ns) == (0, 50 * MS)
    assert (rows["A2"].sent_ns or 0) < (rows["A1"].end_ns or 0)
    assert "sessions are labels here" in err


async def test_a_session_ends_with_a_turn_that_failed(tmp_path: Path) -> None:
    """A2 is refused: A3 is not sent and says why; the other session is whole; every request has its row."""

    async def refuses(request: Request, writer: asyncio.StreamWriter) -> None:
        if id_of(request) == "A2":
            writer.write(plain(503))
        else:
            await quick(request, writer)

    out = tmp_path / "run"
    async with scripted_server(refuses) as server:
        words = ["--out", out, "--tail", 0.3, "--json"]
        code, text, _ = await tokentick_run(plan(tmp_path), "--base-url", url(server), *words)
    rows = {row.id: row for row in Run(out).rows()}
    assert code == 0
    assert {id: row.outcome for id, row in rows.items()} == {
        "A1": "completed",
        "A2": "http_error",
        "A3": "not_sent",
        "B1": "completed",
        "B2": "completed",
    }
    assert (rows["A3"].arrival_ns, rows["A3"].error) == (None, "its session ended with A2: http_error")
    assert "A3" not in [id_of(post) for post in server.posts]
    summary = json.loads(text)
    assert (summary["scheduled"], summary["failed"], summary["not_sent"]) == (5, 1, 1)
    assert summary["sessions"] == {"count": 2, "whole": 1}


async def test_a_turn_that_a_retry_saved_goes_on(tmp_path: Path) -> None:
    """Who tries again has not given up the session: the next turn follows the attempt that worked."""
    seen: list[str] = []

    async def refuses_once(request: Request, writer: asyncio.StreamWriter) -> None:
        seen.append(id_of(request))
        writer.write(plain(503)) if seen == ["A1"] else await quick(request, writer)

    out = tmp_path / "run"
    text = HEADER + "A1,A,0,,5,2\nA2,A,,0.1,5,2\n"
    async with scripted_server(refuses_once) as server:
        words = ["--out", out, "--client-retries", 1]
        await tokentick_run(plan(tmp_path, text), "--base-url", url(server), *words)
    rows = {row.id: row for row in Run(out).rows()}
    assert seen == ["A1", "A1~1", "A2"]
    assert rows["A2"].arrival_ns == (rows["A1~1"].end_ns or 0) + 100 * MS
    assert summarize(Run(out))["sessions"] == {"count": 1, "whole": 1}


async def test_workers_keep_sessions_whole(tmp_path: Path) -> None:
    """Two processes: the same order and the same waits as from one, and the same prompts."""
    prompts = []
    for count in (1, 2):
        out = tmp_path / str(count)
        async with scripted_server(slow) as server:
            words = ["--out", out, "--workers", count, "--seed", 3]
            code, _, _ = await tokentick_run(plan(tmp_path), "--base-url", url(server), *words)
        assert code in (0, 4)
        assert len(rows_of(out)) == 5
        check_releases(rows_of(out), {"A2": 200, "A3": 0, "B2": 100})
        prompts.append({id_of(post): post.prompt for post in server.posts})
    assert prompts[0] == prompts[1]


async def test_under_a_cap_a_turn_waits_for_a_place_as_well(tmp_path: Path) -> None:
    """One place: never two in flight, and a closed loop takes no time from the trace."""
    out = tmp_path / "run"
    most = now = 0

    async def counting(request: Request, writer: asyncio.StreamWriter) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.1)
        now -= 1
        await quick(request, writer)

    text = TWO_SESSIONS.replace("B1,B,0.05", "B1,B,60")
    async with scripted_server(counting) as server:
        words = ["--out", out, "--max-concurrency", 1]
        code, _, _ = await tokentick_run(plan(tmp_path, text), "--base-url", url(server), *words)
    rows = rows_of(out)
    assert (code, most, len(rows)) == (0, 1, 5)
    assert all(row.arrival_ns == row.sent_ns for row in rows.values())
    for id, before in BEFORE.items():
        assert (rows[id].sent_ns or 0) >= (rows[before].end_ns or 0)


async def test_the_tail_begins_with_the_last_turn(tmp_path: Path) -> None:
    """In an open and in a closed loop: the last turn comes later than the tail, and is served."""
    text = HEADER + "A1,A,0,,5,2\nA2,A,,0.4,5,2\n"
    for words in ([], ["--max-concurrency", 2]):
        out = tmp_path / f"run{len(words)}"
        async with scripted_server(quick) as server:
            words = ["--base-url", url(server), "--out", out, "--tail", 0.3, *words]
            await tokentick_run(plan(tmp_path, text), *words)
        assert [row.outcome for row in Run(out).rows()] == ["completed", "completed"]


async def never(request: Request, writer: asyncio.StreamWriter) -> None:
    """An answer that begins, and never goes on."""
    writer.write(SSE_HEAD + token("a"))
    await asyncio.sleep(60)


@pytest.mark.parametrize("words", [["--duration", 0.6], [], ["--max-concurrency", 2]])
async def test_a_tail_ends_a_run_whose_turns_wait_for_ever(tmp_path: Path, words: list[object]) -> None:
    """A1 is never answered: it is cut, and neither A2 nor A3 is waited for, however the sending ends."""
    text = HEADER + "A1,A,0,,5,2\nA2,A,,0.1,5,2\nA3,A,,0.1,5,2\n"
    out = tmp_path / "run"
    async with scripted_server(never) as server:
        words = ["--base-url", url(server), "--out", out, "--tail", 0.5, *words]
        async with asyncio.timeout(15):
            await tokentick_run(plan(tmp_path, text), *words)
    rows = {row.id: row for row in Run(out).rows()}
    assert {id: row.outcome for id, row in rows.items()} == {
        "A1": "unfinished",
        "A2": "not_sent",
        "A3": "not_sent",
    }
    assert 500 * MS <= (rows["A1"].end_ns or 0) < 4_000 * MS


async def test_a_turn_that_is_still_thought_over_does_not_delay_the_cut(tmp_path: Path) -> None:
    """A2 would come after 30 s and is not sent: B1 is cut a tail after the last that was."""
    out = tmp_path / "run"

    async def one_hangs(request: Request, writer: asyncio.StreamWriter) -> None:
        await (never if id_of(request) == "B1" else quick)(request, writer)

    text = HEADER + "A1,A,0,,5,2\nA2,A,,0.4,5,2\nA3,A,,30,5,2\nB1,,0,,5,2\n"
    async with scripted_server(one_hangs) as server:
        words = ["--base-url", url(server), "--out", out, "--tail", 0.5]
        process = await start(plan(tmp_path, text), *words)
        while len(server.posts) < 3:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(15):
            await finish(process)
    rows = {row.id: row for row in Run(out).rows()}
    assert (rows["A3"].outcome, rows["B1"].outcome) == ("not_sent", "unfinished")
    assert (rows["B1"].end_ns or 0) < 5_000 * MS


@pytest.mark.parametrize("words", [[], ["--max-concurrency", 1]])
async def test_an_answer_longer_than_the_tail_is_waited_for_as_long_as_it_comes(
    tmp_path: Path, words: list[object]
) -> None:
    """A token every 0.2 s, for 1.2 s in all: a tail of 0.7 s does not end the session."""

    async def drips(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        for _ in range(6):
            writer.write(token("a"))
            await asyncio.sleep(0.2)
        writer.write(ending(6))

    text = HEADER + "A1,A,0,,5,6\nA2,A,,0.1,5,6\n"
    out = tmp_path / "run"

    async def answers(request: Request, writer: asyncio.StreamWriter) -> None:
        await (drips if id_of(request) == "A1" else quick)(request, writer)

    async with scripted_server(answers) as server:
        words = ["--base-url", url(server), "--out", out, "--tail", 0.7, *words]
        await tokentick_run(plan(tmp_path, text), *words)
    assert {row.id: row.outcome for row in Run(out).rows()} == {"A1": "completed", "A2": "completed"}


async def test_a_closed_loop_leaves_out_turns_behind_its_duration(tmp_path: Path) -> None:
    """What was not begun then was never on offer: a turn that is far off, and the one behind it."""
    text = HEADER + "A1,A,0,,5,2\nA2,A,,0,5,2\nA3,A,,30,5,2\nA4,A,,0,5,2\nB1,B,1,,5,2\nB2,B,,0,5,2\n"
    out = tmp_path / "run"

    async def slower(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.4)
        await quick(request, writer)

    async with scripted_server(slower) as server:
        words = ["--base-url", url(server), "--out", out, "--max-concurrency", 2, "--duration", 1.5]
        code, _, _ = await tokentick_run(plan(tmp_path, text), *words)
    rows = {row.id: row.outcome for row in Run(out).rows()}
    assert (code, rows) == (0, dict.fromkeys(("A1", "B1", "A2", "B2"), "completed"))
    assert Run(out).info.ledger.requests == 4


async def test_an_interrupt_leaves_rows_for_turns_that_wait(tmp_path: Path) -> None:
    """Ctrl-C while A1 is answered: it ends, A2 and A3 were never let go, and B1 had not come."""
    out = tmp_path / "run"
    text = HEADER + "A1,A,0,,5,2\nA2,A,,0.2,5,2\nA3,A,,0,5,2\nB1,B,60,,5,2\nB2,B,,1,5,2\n"
    async with scripted_server(slow) as server:
        process = await start(plan(tmp_path, text), "--base-url", url(server), "--out", out)
        while not server.posts:
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGINT)
        code, _, _ = await finish(process)
    rows = {row.id: row for row in Run(out).rows()}
    assert (code, len(rows), rows["A1"].outcome) == (130, 5, "completed")
    assert {rows[id].outcome for id in ("A2", "A3", "B1", "B2")} == {"not_sent"}
    assert [rows[id].arrival_ns for id in ("A2", "A3", "B1", "B2")] == [None, None, 60_000 * MS, None]
    assert summarize(Run(out))["not_sent"] == 4


async def test_an_interrupt_while_a_client_thinks(tmp_path: Path) -> None:
    """A2 had been let go and was not yet due: its row has the arrival that it would have had."""
    out = tmp_path / "run"
    text = HEADER + "A1,A,0,,5,2\nA2,A,,30,5,2\n"
    async with scripted_server(quick) as server:
        process = await start(plan(tmp_path, text), "--base-url", url(server), "--out", out)
        while not (out / "requests.jsonl").exists() or not (out / "requests.jsonl").stat().st_size:
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGINT)
        code, _, _ = await finish(process)
    rows = {row.id: row for row in Run(out).rows()}
    assert (code, rows["A2"].outcome) == (130, "not_sent")
    assert rows["A2"].arrival_ns == (rows["A1"].end_ns or 0) + 30_000 * MS


async def test_a_turn_behind_the_duration_does_not_make_the_window_longer(tmp_path: Path) -> None:
    """A2, planned for 0.45 s, would come at 0.6: it is not sent, and the run is observed for A1 alone."""
    out = tmp_path / "run"
    async with scripted_server(slow) as server:
        words = ["--out", out, "--duration", 0.5, "--tail", 1]
        text = HEADER + "A1,A,0,,5,2\nA2,A,,0.45,5,2\n"
        await tokentick_run(plan(tmp_path, text), "--base-url", url(server), *words)
    rows = {row.id: row for row in Run(out).rows()}
    assert (rows["A2"].outcome, rows["A2"].arrival_ns) == ("not_sent", None)
    assert summarize(Run(out))["window_s"] == 1.0


async def test_a_duration_ends_the_waiting(tmp_path: Path) -> None:
    """Nothing leaves after 0.3 s: the turn that was planned for then, and did not come, has its row."""
    out = tmp_path / "run"
    text = HEADER + "A1,A,0,,5,2\nA2,A,,0.2,5,2\nA3,A,,0.05,5,2\n"

    async def slower(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.5)
        await quick(request, writer)

    async with scripted_server(slower) as server:
        words = ["--out", out, "--duration", 0.3]
        await tokentick_run(plan(tmp_path, text), "--base-url", url(server), *words)
    rows = {row.id: row for row in Run(out).rows()}
    assert {id: row.outcome for id, row in rows.items()} == {
        "A1": "completed",
        "A2": "not_sent",
        "A3": "not_sent",
    }
    assert len(server.posts) == 1


def test_a_session_agrees_on_the_real_clock(tmp_path: Path) -> None:
    """Served, simulated and measured: the same ticks for the same inputs, and turns in their order.

    Think times lie well between two ticks, so that the plan holds as well unless the machine stalls.
    """
    ledger = HEADER + "A1,A,0,,10,3\nA2,A,,0.06,20,2\nA3,A,,0.16,24,2\nB1,B,0.05,,5,2\nB2,B,,0.06,9,2\n"
    (tmp_path / "plan.csv").write_text(ledger)
    words = ["--tick", "0.1", "--policy", "chunked", "--out", "out", "--json"]
    result = tokentick("agree", "plan.csv", *words, cwd=tmp_path)
    answer = json.loads(result.stdout)
    found = answer["policies"]["chunked"]
    assert found["schedule"]["requests_equal"] == found["schedule"]["requests"] == 5
    assert found["schedule"]["ticks_equal"] == found["schedule"]["ticks"] > 0
    assert found["plan"]["differ_before"] == []
    assert found["timing"]["outcome_different"] == []
    rows = rows_of(tmp_path / "out" / "chunked" / "measured")
    check_releases(rows, {"A2": 60, "A3": 160, "B2": 60})
    if answer["verdict"] == "agree":
        assert not any("behind it in the ledger" in why for row in found["requests"] for why in row["moved"])


def test_a_session_that_ends_early_is_no_disagreement(tmp_path: Path) -> None:
    """A2 can never fit: rejected on all sides, and A3 is sent on none, as planned."""
    (tmp_path / "plan.csv").write_text(HEADER + "A1,A,0,,10,2\nA2,A,,0.03,90,2\nA3,A,,0.03,5,2\n")
    words = ["--tick", "0.05", "--policy", "chunked", "--out", "out", "--json"]
    answer = json.loads(tokentick("agree", "plan.csv", *words, cwd=tmp_path).stdout)
    found = answer["policies"]["chunked"]
    assert (found["schedule"]["requests_equal"], found["schedule"]["agrees"]) == (2, True)
    assert not any("did not reach the server" in reason for reason in found["reasons"])
    outcomes = {
        name: {row.id: row.outcome for row in Run(tmp_path / "out" / "chunked" / name).rows()}
        for name in ("measured", "simulated")
    }
    assert outcomes["simulated"] == {"A1": "completed", "A2": "rejected", "A3": "not_sent"}
    assert outcomes["measured"] == {"A1": "completed", "A2": "http_error", "A3": "not_sent"}
