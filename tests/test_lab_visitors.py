"""Connections to the lab that want too much: too many of them, too slow, too many questions at once."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from reports.lab import app, visitors
from reports.lab.app import Lab
from reports.lab.cli import listen
from reports.lab.live import LiveRuns
from reports.lab.visitors import Visitors


@asynccontextmanager
async def in_this_process() -> AsyncIterator[int]:
    """A lab in the event loop of the test; its port."""
    listening = listen(0)
    port: int = listening.getsockname()[1]
    lab = Lab(port, LiveRuns())
    runner = web.AppRunner(lab.application(), shutdown_timeout=0.1)
    await runner.setup()
    assert runner.server is not None
    server = await asyncio.get_running_loop().create_server(Visitors(runner.server), sock=listening)
    try:
        yield port
    finally:
        server.close()
        await lab.close()
        await runner.cleanup()


async def answer(port: int, request: bytes) -> bytes:
    """All that comes until the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await asyncio.wait_for(reader.read(), 20)
    except ConnectionError:
        return b""
    finally:
        writer.close()


def request(port: int, path: str = "/static/nothing.js") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n".encode()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: "])
async def test_who_does_not_ask_is_sent_away(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """Half a head holds its connection for the limit, and no longer."""
    monkeypatch.setattr(visitors, "HEAD_LIMIT_S", 0.2)
    async with in_this_process() as port:
        assert await answer(port, sent) == b""


@pytest.mark.parametrize("second", [b"", b"GET / HTTP/1.1\r\nHost: "])
async def test_a_later_head_has_as_long_as_the_first(monkeypatch: pytest.MonkeyPatch, second: bytes) -> None:
    """A whole request earns nobody a longer stay."""
    monkeypatch.setattr(visitors, "HEAD_LIMIT_S", 0.3)
    async with in_this_process() as port:
        first = f"GET /static/nothing.js HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode()
        begun = time.monotonic()
        assert b" 404 " in await answer(port, first + second)
        assert 0.2 < time.monotonic() - begun < 5


async def test_too_many_are_closed_and_others_have_their_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two that stay the third is told so and closed; when they have gone there is room again."""
    monkeypatch.setattr(visitors, "MOST_VISITORS", 2)
    async with in_this_process() as port:
        staying = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await asyncio.sleep(0.1)
        head, _, body = (await answer(port, b"")).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"Content-Security-Policy: default-src 'none'" in head
        assert json.loads(body)["error"]["code"] == "busy"
        for _, writer in staying:
            writer.close()
            await writer.wait_closed()
        await asyncio.sleep(0.1)
        assert b" 404 " in await answer(port, request(port))


async def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "BODY_LIMIT_S", 0.2)
    async with in_this_process() as port:
        head = (
            f"POST /api/runs HTTP/1.1\r\nHost: localhost:{port}\r\nOrigin: http://localhost:{port}\r\n"
            "Content-Type: application/json\r\nContent-Length: 20\r\nConnection: close\r\n\r\n{"
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode())
        assert b" 408 " in await asyncio.wait_for(reader.readline(), 20)
        writer.close()


async def test_one_experiment_is_computed_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """While as many wait as may, the next one is refused; the others have their answers."""
    running = most = 0

    def slow(_: Any) -> dict[str, Any]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.05)
        running -= 1
        return {}

    monkeypatch.setattr(app, "experiment", slow)
    async with in_this_process() as port:
        asked = [answer(port, request(port, f"/api/experiment?batch={n}")) for n in range(1, 31)]
        answers = await asyncio.gather(*asked)
    statuses = [found.split(b" ")[1] for found in answers]
    assert most == 1
    assert statuses.count(b"200") >= app.MOST_WAITING
    busy = [found for found in answers if b'"code":"busy"' in found]
    assert len(busy) == statuses.count(b"503") == 30 - statuses.count(b"200") > 0
