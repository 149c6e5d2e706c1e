"""A stand-in for the C server of the benchmarks: the same flags and log, as exact as Python is."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import time
from array import array
from typing import IO, Any

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(event: Any) -> bytes:
    data = event if isinstance(event, str) else json.dumps(event)
    return f"{len(data) + 8:x}\r\ndata: {data}\n\n\r\n".encode()


def models() -> bytes:
    body = b'{"object":"list","data":[{"id":"fake"}]}'
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


async def answer(
    body: dict[str, Any], name: str, writer: asyncio.StreamWriter, flags: argparse.Namespace, log: IO[str]
) -> None:
    received = time.monotonic_ns()
    asked = body["max_completion_tokens"]
    stamps = []
    writer.write(HEAD)
    await asyncio.sleep(flags.ttft / 1000)
    for _ in range(asked):
        stamps.append(time.monotonic_ns())
        writer.write(chunk({"choices": [{"index": 0, "delta": {"content": " a"}, "finish_reason": None}]}))
        await asyncio.sleep(flags.itl / 1000)
    words = len(body["messages"][0]["content"].split())
    usage = {"prompt_tokens": words, "completion_tokens": asked, "total_tokens": words + asked}
    writer.write(chunk({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}))
    writer.write(chunk({"choices": [], "usage": usage}) + chunk("[DONE]") + b"0\r\n\r\n")
    print(flags.answered, received, stamps[0], stamps[-1], asked, "ok", name, sep=",", file=log)
    if flags.chunks:
        with open(flags.chunks, "ab") as chunks:
            chunks.write(array("Q", [flags.answered, asked, *stamps]).tobytes())
    flags.answered += 1


async def serve(flags: argparse.Namespace, log: IO[str]) -> None:
    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            headers = {}
            while (header := (await reader.readline()).decode().strip()) != "":
                name, _, value = header.partition(": ")
                headers[name.lower()] = value
            if line.startswith(b"GET"):
                writer.write(models())
                continue
            body = json.loads(await reader.readexactly(int(headers["content-length"])))
            await answer(body, headers["x-request-id"], writer, flags, log)
        writer.close()

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with await asyncio.start_server(on_connection, "127.0.0.1", flags.port):
        await stop.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--ttft", type=float)
    parser.add_argument("--itl", type=float)
    parser.add_argument("--log")
    parser.add_argument("--chunks")
    parser.set_defaults(answered=0)
    options = parser.parse_args()
    with open(options.log, "w") as file:
        print("req,recv_ns,first_ns,last_ns,sent,status,x_request_id", file=file)
        asyncio.run(serve(options, file))
