"""Runs of several processes: the same requests at the same times, whoever sends them, and nothing lost."""

from __future__ import annotations

import asyncio
import os
import signal
from fractions import Fraction
from pathlib import Path

import pytest

from ledgers.health import HealthSample, merged
from ledgers.histograms import read_log
from ledgers.ledger import values
from ledgers.load import make_ledger
from ledgers.rows import RequestRow
from ledgers.rundir import Run
from ledgers.summary import summarize
from loadgen.requests import Requests, Share
from loadgen.workers import workers_for
from tests.scripted_server import Request, quick, scripted_server
from tests.test_loadgen_run import finish, ledger, rows_of, start, tokentick_run, url

MS = 1_000_000


def children(pid: int | None) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    """A process that nobody has waited for yet is dead too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def hold(request: Request, writer: object) -> None:
    await asyncio.sleep(60)


async def test_the_same_requests_leave_whoever_sends_them(tmp_path: Path) -> None:
    """One process, two, three: equal ids, prompts and intended arrivals, each sent once; one set of files."""
    seen = []
    async with scripted_server(quick) as server:
        for count in (1, 2, 3):
            server.posts.clear()
            out = tmp_path / str(count)
            words = ("--seed", 7, "--workers", count, "--record-tokens")
            plan = ledger(tmp_path, [i * 20 for i in range(25)])
            code, _, err = await tokentick_run(plan, "--base-url", url(server), "--out", out, *words)
            assert (code in (0, 4), "Traceback" in err) == (True, False)
            prompts = {post.headers["x-request-id"].split("-", 2)[2]: post.prompt for post in server.posts}
            rows = rows_of(out)
            seen.append((prompts, [(row.id, row.arrival_ns, row.tokens) for row in rows.values()]))
            assert (len(server.posts), len(rows)) == (25, 25)
            run = Run(out)
            assert (run.info.config.extra["workers"], run.info.complete) == (count, True)
            assert {sample.processes for sample in run.health()} == {count}
            assert [sample.sent for sample in run.health()][-1] == 25
            assert read_log(out / "histograms.hlog")["ttft"].n == 25
            assert {path.name for path in out.iterdir()} == {
                "run.json", "requests.jsonl", "summary.json", "health.jsonl", "histograms.hlog",
            }  # fmt: skip
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
async def test_a_worker_that_dies_is_reported_and_the_run_goes_on(tmp_path: Path) -> None:
    """Killed with half of its requests sent: every request has a row, the other worker's are complete."""
    out = tmp_path / "run"
    async with scripted_server(quick) as server:
        plan = ledger(tmp_path, [i * 50 for i in range(40)])
        process = await start(plan, "--base-url", url(server), "--out", out, "--workers", 2)
        while len(server.posts) < 10:
            await asyncio.sleep(0.01)
        os.kill(children(process.pid)[1], signal.SIGKILL)
        code, text, err = await finish(process)
    rows = rows_of(out)
    of_first = [rows[f"R{number:02}"] for number in range(1, 41, 2)]
    of_second = [rows[f"R{number:02}"] for number in range(2, 41, 2)]
    assert (code, len(rows)) == (4, 40)
    assert {row.outcome for row in of_first} == {"completed"}
    assert {row.outcome for row in of_second} >= {"completed", "not_sent"}
    lost = [row for row in of_second if row.outcome != "completed"]
    assert {row.error for row in lost} == {"client limit: worker 2 of 2 died (signal 9)"}
    assert "worker 2 of 2 died (signal 9)" in err
    assert "worker 2 of 2 died (signal 9)" in " ".join(text.split())  # it is wrapped
    summary = summarize(Run(out))
    assert (summary["scheduled"], summary["without_row"]) == (40, 0)
    assert summary["client"]["client_limited"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
async def test_no_worker_outlives_a_leader_that_was_killed(tmp_path: Path) -> None:
    """SIGKILL for the leader: its workers are gone in seconds, and what had ended is in the files."""
    out = tmp_path / "run"
    async with scripted_server(hold) as server:
        plan = ledger(tmp_path, [0, 0, 0, 60_000])
        process = await start(plan, "--base-url", url(server), "--out", out, "--workers", 2)
        while len(server.posts) < 3:
            await asyncio.sleep(0.01)
        workers = children(process.pid)
        process.kill()
        await finish(process)
        async with asyncio.timeout(10):
            while any(map(is_alive, workers)):
                await asyncio.sleep(0.02)
    assert len(workers) == 2


async def test_ctrl_c_reaches_every_worker(tmp_path: Path) -> None:
    """Once: what is in flight ends, the rest is not sent. The terminal signals the workers too."""
    out = tmp_path / "run"

    async def slow(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.5)
        await quick(request, writer)

    async with scripted_server(slow) as server:
        plan = ledger(tmp_path, [0, 0, 60_000, 60_000])
        process = await start(plan, "--base-url", url(server), "--out", out, "--workers", 2)
        while len(server.posts) < 2:
            await asyncio.sleep(0.01)
        for pid in (process.pid, *children(process.pid)):
            os.kill(pid, signal.SIGINT)
        code, _, err = await finish(process)
    assert (code, "Traceback" in err) == (130, False)
    assert [row.outcome for row in rows_of(out).values()] == ["completed"] * 2 + ["not_sent"] * 2


async def test_twice_ctrl_c_cuts_what_workers_have_in_flight(tmp_path: Path) -> None:
    out = tmp_path / "run"
    async with scripted_server(hold) as server:
        plan = ledger(tmp_path, [0, 0, 60_000])
        process = await start(plan, "--base-url", url(server), "--out", out, "--workers", 2)
        while len(server.posts) < 2:
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGINT)
        await asyncio.sleep(0.1)
        process.send_signal(signal.SIGINT)
        code, _, _ = await finish(process)
    assert code == 130
    assert sorted(row.outcome or "" for row in rows_of(out).values()) == [
        "cancelled",
        "cancelled",
        "not_sent",
    ]


async def test_one_process_sends_under_a_cap(tmp_path: Path) -> None:
    """Several could not give a free place to whoever has waited longest: refused, and never the default."""
    words = ("--num-prompts", 20, "--random-input-len", 4, "--random-output-len", 100_000)
    async with scripted_server(quick) as server:
        where = ("--base-url", url(server), "--max-concurrency", 3, "--out", tmp_path / "run")
        code, _, err = await tokentick_run(*words, *where, "--workers", 2)
        assert (code, err) == (
            2,
            "tokentick: --workers 2: under --max-concurrency one process sends all\n",
        )
        await tokentick_run(*words, *where)
    assert Run(tmp_path / "run").info.config.extra["workers"] == 1


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
async def test_twice_ctrl_c_ends_a_worker_that_hangs(tmp_path: Path) -> None:
    """A worker that was stopped cannot obey: it is killed, its requests get their rows, health went on."""
    out = tmp_path / "run"
    async with scripted_server(quick) as server:
        plan = ledger(tmp_path, [i * 100 for i in range(100)])
        process = await start(plan, "--base-url", url(server), "--out", out, "--workers", 2)
        while len(server.posts) < 4:
            await asyncio.sleep(0.01)
        os.kill(children(process.pid)[0], signal.SIGSTOP)
        await asyncio.sleep(4.5)
        process.send_signal(signal.SIGINT)
        await asyncio.sleep(0.1)
        process.send_signal(signal.SIGINT)
        code, _, _ = await finish(process)
    samples = list(Run(out).health())
    assert (code, len(rows_of(out))) == (130, 100)
    assert len(samples) > 2
    assert samples[-1].lost_processes == 1
    assert "1 of its processes died" in samples[-1].reasons


async def test_a_full_disk_ends_a_run_of_several_workers(tmp_path: Path) -> None:
    """One line, exit 2, no process left."""
    async with scripted_server(quick) as server:
        plan = ledger(tmp_path, [i * 10 for i in range(200)])
        words = (plan, "--base-url", url(server), "--out", tmp_path / "run", "--workers", 2)
        process = await start(*words, shell="ulimit -f 8")
        code, _, err = await finish(process)
    assert code == 2
    assert len(err.strip().splitlines()[-1]) < 200
    assert "Traceback" not in err
    assert "requests.jsonl: File too large" in err


@pytest.mark.parametrize(("total", "step"), [(10, 1), (10, 3), (2, 4), (0, 2)])
def test_shares_make_up_the_ledger(total: int, step: int) -> None:
    """Every request is in one share; what is divided adds up; numbers are those of the ledger."""
    rows = [RequestRow(id=f"R{n}", prompt_tokens=1, output_tokens=1, arrival_ns=n) for n in range(total)]
    shares = [Requests(rows, Share(first, step), "x", closed=False, before=None) for first in range(step)]
    assert sorted(row.arrival_ns or 0 for share in shares for row in share) == list(range(total))
    assert sum(Share(first, step).of(total) for first in range(step)) == total
    for share in shares:
        assert [share.number(i) for i in range(len(share))] == list(share.arrivals_ns())


def test_a_field_of_all_rows_is_what_the_rows_say() -> None:
    """Of rows held by column and of a list; a field that no row has is None in all."""
    made = make_ledger(50, 10, 20, range_ratio=Fraction(1, 2), request_rate=Fraction(5)).rows
    for rows in (made, list(made), made[3:40:4]):
        for field in ("arrival_ns", "output_tokens", "session"):
            assert list(values(rows, field)) == [getattr(row, field) for row in rows]


def test_health_of_several_processes_is_summed_and_the_worst() -> None:
    samples = [
        HealthSample(t_ns=5, asked=3, sent=3, sends=1, reads=10, loop_lag_max_ns=2, cpu_share=0.5),
        HealthSample(t_ns=7, asked=2, sent=1, in_flight=1, reads=20, send_lag_max_ns=9, cpu_share=0.2),
    ]
    assert merged(samples) == HealthSample(
        t_ns=7,
        processes=2,
        asked=5,
        sent=4,
        sends=1,
        in_flight=1,
        reads=30,
        loop_lag_max_ns=2,
        send_lag_max_ns=9,
        cpu_share=0.5,
    )


def test_a_light_load_takes_one_process_and_a_heavy_one_what_the_cores_give(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many as the busiest ten seconds need: 100 requests of 100,000 tokens in them are 1 M tokens/s."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(8))
    rows = [
        RequestRow(id=str(n), prompt_tokens=1, output_tokens=100_000, arrival_ns=n * 100 * MS)
        for n in range(100)
    ]
    light = [RequestRow(id="a", prompt_tokens=1, output_tokens=100, arrival_ns=0)]
    assert workers_for(light) == 1
    assert workers_for(rows) == 8
    assert workers_for(rows[:15]) == 3
