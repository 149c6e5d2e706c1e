"""What comes with a request: its body, whole and in time, and what its headers say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import unquote

from aiohttp import web

from mock_server.openai import ApiError

_Read = TypeVar("_Read")
MAX_BODY_BYTES = 16 * 2**20
LARGE_BODY_BYTES = 2**16


def too_large() -> ApiError:
    """Made anew each time: one that is raised again and again would keep every request that it refused."""
    return ApiError(f"The request body is larger than {MAX_BODY_BYTES // 2**20} MiB", status=413)


def too_slow() -> ApiError:
    return ApiError(
        "the request did not come in time", status=408, type="timeout_error", code="request_timeout"
    )


async def whole_body(request: web.Request, timeout_s: float) -> bytes:
    """The body of a request. ApiError if it is too large, or does not come in time."""
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise too_large()
    if request.content.is_eof():
        return await request.read()
    try:
        async with asyncio.timeout(timeout_s):
            return await request.read()
    except TimeoutError:
        request.protocol.keep_alive(False)
        raise too_slow() from None


async def read_beside(body: bytes, read: Callable[[bytes], _Read]) -> _Read:
    """What a body says; a large one is read beside the ticks, so that they go on."""
    return read(body) if len(body) <= LARGE_BODY_BYTES else await asyncio.to_thread(read, body)


def request_id(request: web.Request) -> str | None:
    return header(request, "X-Request-Id")


def traffic_class(request: web.Request) -> str | None:
    text = header(request, "X-Request-Class")
    return unquote(text) if text else None


def header(request: web.Request, name: str) -> str | None:
    """What the client says there; bytes that are no text are replaced, for rows are JSON."""
    text = request.headers.get(name)
    return text.encode("utf-8", "replace").decode() if text else None
