"""A small HTTP server whose answers a test writes by hand, byte for byte and wait for wait."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from ledgers.vocabulary import count_tokens

SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def token(text: str) -> bytes:
    event = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
    return chunk(f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode())


def ending(tokens: int) -> bytes:
    finish = '{"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}'
    usage = json.dumps({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": tokens}})
    return chunk(f"data: {finish}\n\ndata: {usage}\n\ndata: [DONE]\n\n".encode()) + chunk(b"")


def answered(prompt_tokens: int | None, output_tokens: int, chat: bool = True) -> bytes:
    """A whole streamed answer, a token per event; None for a server that says no usage."""
    events: list[object] = []
    for number in range(output_tokens):
        said = {"delta": {"content": f" {number}"}} if chat else {"text": f" {number}"}
        last = "length" if number == output_tokens - 1 else None
        events.append({"choices": [{"index": 0, "finish_reason": last, **said}]})
    if prompt_tokens is not None:
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens}
        events.append({"choices": [], "usage": usage})
    lines = [f"data: {event}\n\n" for event in (*map(json.dumps, events), "[DONE]")]
    return SSE_HEAD + chunk("".join(lines).encode()) + chunk(b"")


def plain(status: int, body: bytes = b"{}") -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


@dataclass
class Request:
    """A request as the server read it; `received_ns` is when its last byte had been read."""

    path: str
    headers: dict[str, str]
    body: bytes
    received_ns: int
    number: int
    connection: int
    method: str = "POST"

    @property
    def is_probe(self) -> bool:
        return "-probe-" in self.headers.get("x-request-id", "")

    @property
    def prompt(self) -> str | list[int]:
        body = json.loads(self.body)
        prompt: str | list[int] = body["messages"][0]["content"] if "messages" in body else body["prompt"]
        return prompt


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]
Answer = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


async def plain_probe(request: Request, writer: asyncio.StreamWriter) -> None:
    """As a server that takes everything and counts a word as a token; it has no /tokenize."""
    if request.path.endswith("/tokenize"):
        writer.write(plain(404))
        return
    body = json.loads(request.body)
    asked = body.get("max_completion_tokens") or body.get("max_tokens") or 1
    prompt = request.prompt if "messages" in body or "prompt" in body else ""
    tokens = count_tokens(prompt) if isinstance(prompt, str) else len(prompt)
    writer.write(answered(tokens, asked, "messages" in body))


@dataclass
class ScriptedServer:
    """What it saw. `answer` writes the response; closing the writer in it ends the connection.

    Requests of the preflight are not for `answer`: `models` and `pages` are what is there to be read, and
    `on_probe` answers probes.
    """

    answer: Answer
    port: int = 0
    connections: int = 0
    posts: list[Request] = field(default_factory=list)
    models: bytes = plain(200, b'{"data":[{"id":"scripted"}]}')
    pages: dict[str, bytes] = field(default_factory=dict)
    on_probe: Answer = plain_probe
    probes: list[Request] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection = self.connections
        try:
            while not writer.is_closing():
                request = await self._read(reader, connection)
                if request.path.endswith("/v1/models"):
                    writer.write(self.models)
                elif request.method == "GET":
                    writer.write(self.pages.get(request.path, plain(404)))
                elif request.is_probe:
                    self.probes.append(request)
                    await self.on_probe(request, writer)
                else:
                    self.posts.append(request)
                    await self.answer(request, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, connection: int) -> Request:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, _ = head[0].split(" ")
        return Request(path, headers, body, time.monotonic_ns(), len(self.posts), connection, method)


@asynccontextmanager
async def raw_server(
    handle: Handler, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[int]:
    """Serve connections on a free port of this machine, which is yielded, for as long as the block lasts."""
    tasks: set[asyncio.Task[None]] = set()
    writers: set[asyncio.StreamWriter] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(handle(reader, writer))
        tasks.add(task)
        writers.add(writer)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, host, 0, ssl=tls, backlog=1024)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0.01)  # transports close in later rounds of the loop


@asynccontextmanager
async def scripted_server(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[ScriptedServer]:
    """Serve a script for as long as the block lasts."""
    script = ScriptedServer(answer)
    async with raw_server(script.serve, tls) as script.port:
        yield script


async def quick(request: Request, writer: asyncio.StreamWriter) -> None:
    """Two tokens at once."""
    writer.write(SSE_HEAD + token("a") + token("b") + ending(2))
