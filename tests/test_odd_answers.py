"""Answers that come in an order nobody expects, and machines that run out: what is left makes sense."""

from __future__ import annotations

import asyncio
import errno
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from ledgers.histograms import read_log
from ledgers.rundir import Run
from tests.conftest import tokentick
from tests.scripted_server import SSE_HEAD, ending, plain, raw_server, token
from tests.test_loadgen_run import ledger, tokentick_run

ONE_AFTER_ANOTHER = ("arrival_ns", "due_ns", "send_start_ns", "sent_ns")
IN_THE_ANSWER = ("headers_ns", "first_token_ns", "first_content_ns", "last_token_ns", "end_ns")
BODY_BYTES = 12 << 20  # more than the kernels on both sides hold, so that the last byte must wait


def once(head: bytes) -> bytes:
    """The beginning of the only answer on its connection."""
    return head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)


async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, asyncio.IncompleteReadError):  # the client left, or never came
        await answer_oddly(reader, writer)
    writer.close()


async def answer_oddly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers by what the prompt begins with; most of them before the request has been read."""
    head = await reader.readuntil(b"\r\n\r\n")
    start = await reader.read(1024)
    if b"early" in start:
        writer.write(once(SSE_HEAD) + token("a"))
        await asyncio.sleep(0.1)
    elif b"refused" in start:
        writer.write(once(plain(413)))
    elif b"whole" in start:
        whole = b'{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}'
        writer.write(once(plain(200, whole)))
    elif b"nothing" in start:
        writer.write(once(SSE_HEAD) + ending(0))
    elif b"pieces" in start:
        for byte in once(SSE_HEAD) + token("a"):
            writer.write(bytes([byte]))
        await asyncio.sleep(0.05)
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    left = int(length.partition(b":")[2]) - len(start)
    while left > 0 and (data := await reader.read(1 << 20)):
        left -= len(data)
    if b"early" in start or b"pieces" in start:
        writer.write(token("b") + ending(2))
    if b"gone" not in start:
        await asyncio.sleep(0.1)


def plan(path: Path) -> Path:
    """One request of each kind, 50 ms apart; those that are answered early are large."""
    kinds = {"early": BODY_BYTES, "refused": BODY_BYTES, "whole": 10, "nothing": 10, "pieces": 10, "gone": 10}
    file = path / "plan.jsonl"
    with file.open("w") as lines:
        for number, (kind, size) in enumerate(kinds.items()):
            prompt = f"{kind} {'able ' * (size // 5)}"
            row = {"id": kind, "output_tokens": 2, "arrival_s": number / 20, "prompt": prompt}
            lines.write(json.dumps(row) + "\n")
    return file


def durations(found: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number below a key in ms, ns or s."""
    for key, value in found.items() if isinstance(found, dict) else ():
        here = f"{path}.{key}"
        if isinstance(value, dict):
            yield from durations(value, here)
        elif isinstance(value, int | float) and any(
            f"{unit}." in f"{here}." for unit in ("_ms", "_ns", "_s")
        ):
            yield here, value


async def test_no_file_of_a_run_holds_a_negative_duration(tmp_path: Path) -> None:
    """Whatever came before what: rows in their order, health, summary and histograms."""
    out = tmp_path / "run"
    async with raw_server(odd) as port:
        words = ["--base-url", f"http://127.0.0.1:{port}", "--no-preflight", "--record-tokens", "--out", out]
        code, printed, err = await tokentick_run(plan(tmp_path), *words)
    assert code in (0, 4), err
    run = Run(out)
    rows = {row.id: row for row in run.rows()}
    assert {id: row.outcome for id, row in rows.items()} == {
        "early": "completed",
        "refused": "http_error",
        "whole": "completed",
        "nothing": "empty",
        "pieces": "completed",
        "gone": "connect_error",
    }
    for row in rows.values():
        for names in (ONE_AFTER_ANOTHER, IN_THE_ANSWER):
            known = [ns for name in names if (ns := getattr(row, name)) is not None]
            assert all(before <= after for before, after in pairwise(known)), row
        assert (row.connect_ns or 0) >= 0
        assert all(before <= after for before, after in pairwise(row.token_ns or []))
    early = rows["early"]
    assert early.first_token_ns is not None
    assert early.sent_ns is None or early.first_token_ns < early.sent_ns
    summary = json.loads((out / "summary.json").read_text())
    found = [
        *durations(summary),
        *(pair for sample in run.health() for pair in durations(msgspec.to_builtins(sample))),
    ]
    assert len(found) > 50
    assert [pair for pair in found if pair[1] < 0] == []
    assert all((histogram.min_ns or 0) >= 0 for histogram in read_log(out / "histograms.hlog").values())
    assert "in 1 requests the first token came before the request was wholly sent" in " ".join(
        printed.split()
    )


def test_no_local_port_left_is_the_clients_limit(tmp_path: Path) -> None:
    """It is named as such, for every request, and the run is inconclusive: nothing is said of the server."""
    script = (
        "import socket, tokentick\n"
        f"socket.socket.connect_ex = lambda self, address: {errno.EADDRNOTAVAIL}\n"
        "tokentick.main()"
    )
    words = ["run", str(ledger(tmp_path, [0, 0, 0])), "--base-url", "http://127.0.0.1:9", "--no-preflight"]
    result = tokentick(*words, "--out", "run", cwd=tmp_path, command=[sys.executable, "-c", script])
    assert result.returncode == 4, result.stderr
    reason = "client limit: no local port left (EADDRNOTAVAIL)"
    assert {(row.outcome, row.error) for row in Run(tmp_path / "run").rows()} == {("connect_error", reason)}
    assert f"CLIENT-LIMITED: 3 requests failed: {reason}" in " ".join(result.stdout.split())
