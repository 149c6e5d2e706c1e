"""Every recorded shape of a stream comes out right: over TCP, and however its bytes are cut."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from contextlib import suppress
from itertools import pairwise

import pytest

from ledgers.rows import RequestRow
from loadgen.dialects import DIALECTS
from loadgen.dialects.dialect import Ask
from loadgen.recorder import Recorder
from loadgen.target import find_address, parse_target
from loadgen.transport import Transport
from tests.scripted_server import raw_server
from tests.transcripts import Transcript, differences, load_all

MS = 1_000_000
NEVER_MS = 1_000_000
ALL = load_all()
HUNG_S = 0.3
every = pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)


def recorder(case: Transcript) -> Recorder:
    planned = RequestRow(id=case.name, prompt_tokens=1, output_tokens=1, arrival_ns=0)
    return Recorder(planned, DIALECTS[case.api](), record_text=True)


def replay(case: Transcript, segments: list[bytes]) -> tuple[Recorder, RequestRow]:
    """The segments a millisecond apart, the head at 1 ms, and then what became of the connection."""
    made = recorder(case)
    made.connected()
    made.sent(0)
    for number, segment in enumerate(segments, 1):
        made.feed(segment, number * MS)
    if case.close == "hang":
        made.stop("timeout", NEVER_MS * MS, "no end")
    else:
        made.lost((len(segments) + 1) * MS, case.broken)
    return made, made.row(0, record_tokens=True)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    borders = sorted({0, len(data), *at})
    return [data[start:end] for start, end in pairwise(borders)]


@every
def test_part_by_part(case: Transcript) -> None:
    """Outcome, texts, counts and messages are right, and the stamps are those of the right parts."""
    made, row = replay(case, [case.head, *case.framed(case.parts), *filter(None, [case.end])])
    assert differences(case, row, made.output) == {}
    if row.streamed:
        parts = case.expect["first_token_part"], case.expect["last_token_part"]
        assert [row.first_token_ns, row.last_token_ns] == [
            None if part is None else (part + 2) * MS for part in parts
        ]
    else:
        assert row.first_token_ns is None
    assert row.end_ns is not None
    assert (row.end_ns == NEVER_MS * MS) == (case.expect["outcome"] == "timeout")


@every
def test_however_it_is_cut(case: Transcript) -> None:
    """Neither the borders of HTTP chunks nor those of TCP segments change what a stream says."""
    shuffled = random.Random(case.name)
    body = b"".join(case.parts)
    for chunks in ([body], cut(body, [shuffled.randrange(len(body) + 1) for _ in range(9)])):
        wire = case.head + b"".join(case.framed(filter(None, chunks))) + case.end
        few = [shuffled.randrange(len(wire)) for _ in range(20)]
        singly = list(range(len(wire))) if len(wire) < 20_000 else few
        for at in ([], few, singly):
            made, row = replay(case, cut(wire, at))
            assert differences(case, row, made.output) == {}


class Played:
    """A server that plays the transcript which the path names, and notes when it wrote which part."""

    def __init__(self) -> None:
        self.written: dict[str, list[int]] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            name = head.split()[1].decode().rpartition("/")[2]
            case = next((case for case in ALL if case.name == name), None)
            if case is not None:
                await self.play(case, writer)
        writer.close()

    async def play(self, case: Transcript, writer: asyncio.StreamWriter) -> None:
        pause_s = 0.002 if len(case.parts) < 100 else 0
        written = self.written.setdefault(case.name, [])
        writer.write(case.head)
        for part in case.framed(case.parts):
            await asyncio.sleep(pause_s)
            written.append(time.monotonic_ns())
            writer.write(part)
            await writer.drain()
        writer.write(case.end)
        if case.close == "hang":
            await asyncio.sleep(60)
        if case.broken:
            await asyncio.sleep(0.05)
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a RST
            writer.transport.abort()


def request(case: Transcript) -> bytes:
    body = DIALECTS[case.api]().body(Ask("m", "hi", 1))
    return b"POST /%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (
        case.name.encode(),
        len(body),
        body,
    )


Waiting = dict[object, asyncio.Event]


async def played(transport: Transport, case: Transcript, waiting: Waiting) -> tuple[Recorder, RequestRow]:
    """Send a request for the transcript; one that hangs is cut off after a while."""
    made = recorder(case)
    waiting[made] = over = asyncio.Event()
    transport.send((made, request(case)))
    try:
        async with asyncio.timeout(HUNG_S if case.expect["outcome"] == "timeout" else 20):
            await over.wait()
    except TimeoutError:
        transport.forget(made)
        made.stop("timeout", time.monotonic_ns(), "no end")
    return made, made.row(0)


async def test_all_of_them_at_once_over_tcp() -> None:
    """The same on real connections; a stream that says it is over never waits for the connection's end."""
    server, waiting = Played(), Waiting()
    async with raw_server(server.serve) as port:
        target = parse_target(f"http://127.0.0.1:{port}")
        transport = Transport(target, await find_address(target, 5))
        transport.on_finished = lambda exchange: waiting.pop(exchange).set()
        try:
            results = await asyncio.gather(*(played(transport, case, waiting) for case in ALL))
        finally:
            transport.close()
    wrong = {
        case.name: differences(case, row, made.output) for case, (made, row) in zip(ALL, results, strict=True)
    }
    assert {name: what for name, what in wrong.items() if what} == {}
    for case, (_, row) in zip(ALL, results, strict=True):
        if row.first_token_ns is not None:
            begun = server.written[case.name][case.expect["first_token_part"]]
            assert row.first_token_ns > begun - MS, case.name
