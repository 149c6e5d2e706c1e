"""Whether a load generator was itself the limit: second by second, and what of that shows in the verdict."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from ledgers.health import HealthSample, spoiled
from ledgers.rows import RequestRow
from ledgers.rundir import LedgerInfo, Run, RunConfig, RunInfo, RunWriter
from ledgers.summary import summarize
from tests.scripted_server import SSE_HEAD, Request, ending, quick, scripted_server, token
from tests.test_loadgen_run import finish, ledger, start, url

MS = 1_000_000


def judged(**figures: float) -> HealthSample:
    sample = HealthSample(t_ns=1_000 * MS, **figures)  # type: ignore[arg-type]
    sample.judge()
    return sample


@pytest.mark.parametrize(
    ("figures", "reason"),
    [
        ({"cpu_share": 0.7, "reads": 100, "loop_lag_max_ns": 40 * MS, "sends": 50}, None),
        ({"cpu_share": 0.95}, "it used 95% of a core"),
        ({"starved_share": 0.4}, "it waited for a core 40% of the time"),
        ({"loop_lag_max_ns": 900 * MS}, None),  # nothing came, and nothing was to be sent
        (
            {"loop_lag_max_ns": 300 * MS, "reads": 9, "reads_with_several_events": 1},
            "it did not run for 300 ms",
        ),
        ({"loop_lag_max_ns": 300 * MS, "sends": 500, "late_sends": 1}, "it did not run for 300 ms"),
        ({"loop_lag_max_ns": 60 * MS, "reads": 100, "reads_with_several_events": 4}, None),
        (
            {"loop_lag_max_ns": 60 * MS, "reads": 100, "reads_with_several_events": 40},
            "it ran up to 60 ms late, and read tokens together",
        ),
        ({"sends": 100, "late_sends": 1}, None),
        ({"sends": 100, "late_sends": 2}, "2 of 100 requests left more than 10 ms late"),
        ({"reads": 100, "reads_with_several_events": 100}, None),  # a fast server's doing
    ],
)
def test_a_second_is_the_client_s_fault_for_a_reason(figures: dict[str, float], reason: str | None) -> None:
    sample = judged(**figures)
    assert sample.reasons == ([] if reason is None else [reason])
    assert sample.verdict == ("ok" if reason is None else "client-limited")


def test_one_bad_second_is_a_hiccup_and_one_in_ten_is_a_verdict() -> None:
    good, bad = judged(cpu_share=0.5), judged(cpu_share=0.95)
    assert spoiled([good] * 9 + [bad]) == []
    assert spoiled([good] * 98 + [bad] * 2) == []
    assert spoiled([good] * 18 + [bad] * 2) == [bad, bad]


def summary_of(path: Path, samples: list[HealthSample]) -> dict[str, object]:
    writer = RunWriter(path, RunInfo(kind="measured", config=RunConfig(), ledger=LedgerInfo("test")))
    writer.add(
        RequestRow(
            id="A",
            prompt_tokens=1,
            output_tokens=1,
            arrival_ns=0,
            sent_ns=0,
            end_ns=1_000 * MS,
            outcome="completed",
        )
    )
    for sample in samples:
        writer.add_health(sample)
    writer.close(complete=True)
    client: dict[str, object] = summarize(Run(path))["client"]
    return client


def test_a_single_standstill_marks_the_run(tmp_path: Path) -> None:
    """312 ms in one of twenty seconds, with tokens read together: the run is client-limited, and says why."""
    stall = judged(loop_lag_max_ns=312 * MS, reads=100, reads_with_several_events=20)
    client = summary_of(tmp_path / "run", [judged(cpu_share=0.1)] * 19 + [stall])
    assert client["client_limited"]
    assert client["reasons"] == ["the client did not run for 312 ms, while there was work"]
    assert (client["limited_samples"], client["samples"]) == (1, 20)


async def test_a_client_that_was_stopped_for_300_ms_says_so(tmp_path: Path) -> None:
    """SIGSTOP while tokens come every 20 ms: exit code 4, the reason in the report and in that second."""

    async def steady(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        for number in range(60):
            writer.write(token(f" {number}"))
            await asyncio.sleep(0.02)
        writer.write(ending(60))

    out = tmp_path / "run"
    async with scripted_server(steady) as server:
        process = await start(ledger(tmp_path, [0, 0, 0]), "--base-url", url(server), "--out", out)
        while len(server.posts) < 3:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(0.3)
        process.send_signal(signal.SIGCONT)
        code, text, _ = await finish(process)
    assert code == 4
    assert "CLIENT-LIMITED" in text
    assert "did not run for" in " ".join(text.split())
    assert any(sample.verdict == "client-limited" for sample in Run(out).health())


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="puts processes on one core")
async def test_a_client_that_shares_its_core_with_busy_loops_says_so(tmp_path: Path) -> None:
    """One core for it and eight others that never rest: it waited for a core, and figures carry the mark."""
    core = min(os.sched_getaffinity(0))
    hogs = [
        await asyncio.create_subprocess_exec("taskset", "-c", str(core), "sh", "-c", "while :; do :; done")
        for _ in range(8)
    ]
    try:
        async with scripted_server(quick) as server:
            plan = ledger(tmp_path, [i * 4 for i in range(600)])  # more than a ninth of a core can do
            words = (plan, "--base-url", url(server), "--out", tmp_path / "run")
            process = await start(*words, shell=f"taskset -cp {core} $$ >/dev/null")
            code, text, _ = await finish(process)
    finally:
        for hog in hogs:
            hog.kill()
            await hog.wait()
    assert (code, "CLIENT-LIMITED" in text) == (4, True)
