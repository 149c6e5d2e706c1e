"""What comes with a request: its body, whole and in time, and what its headers say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import unquote

from aiohttp import web

from mock_server.openai import ApiError

_Result = TypeVar("_Result")
_BACKSLASH = ord("\\")
MAX_BODY_BYTES = 16 * 2**20
LARGE_BODY_BYTES = 2**16
MOST_ITEMS = 2**18
"""In all lists and objects of a body: no other thread runs while they are made, some 20 ms at most."""


def too_large(most_bytes: int = MAX_BODY_BYTES) -> ApiError:
    """Made anew each time: one that is raised again and again would keep every request that it refused."""
    most = f"{most_bytes // 2**20} MiB" if most_bytes >= 2**20 else f"{most_bytes // 2**10} KiB"
    return ApiError(f"The request body is larger than {most}", status=413)


def too_slow() -> ApiError:
    return ApiError(
        "the request did not come in time", status=408, type="timeout_error", code="request_timeout"
    )


async def whole_body(request: web.Request, timeout_s: float, most_bytes: int = MAX_BODY_BYTES) -> bytes:
    """The body of a request. ApiError if it is too large, or does not come in time."""
    if (request.content_length or 0) > most_bytes:
        raise too_large(most_bytes)
    try:
        async with asyncio.timeout(None if request.content.is_eof() else timeout_s):
            body = await request.read()
    except TimeoutError:
        request.protocol.keep_alive(False)
        raise too_slow() from None
    if len(body) > most_bytes:
        raise too_large(most_bytes)
    return body


async def read_beside(body: bytes, read: Callable[[bytes], _Result]) -> _Result:
    """What a body says; a large one is read beside the ticks, so that they go on.

    ApiError if it has too many items.
    """
    if len(body) <= LARGE_BODY_BYTES:
        return read(body)

    def bounded() -> _Result:
        refuse_too_many_items(body)
        return read(body)

    return await asyncio.to_thread(bounded)


def refuse_too_many_items(body: bytes) -> None:
    """ApiError if the lists and objects of a JSON text have more items than can be made at once.

    Each but the first has a comma before it, which is none of those in strings.
    """
    commas = at = 0
    while commas < MOST_ITEMS and (quote := body.find(b'"', at)) >= 0:
        commas += body.count(b",", at, quote)
        at = _string_end(body, quote)
    if commas + body.count(b",", at) >= MOST_ITEMS:
        message = f"The request body has more than {MOST_ITEMS:,} items in its arrays: send text instead"
        raise ApiError(message, status=413, code="too_many_items")


def _string_end(body: bytes, quote: int) -> int:
    """Behind the string that begins there: an odd number of backslashes makes a quote part of it."""
    end = quote
    while (end := body.find(b'"', end + 1)) >= 0:
        before = end
        while body[before - 1] == _BACKSLASH:
            before -= 1
        if (end - before) % 2 == 0:
            return end + 1
    return len(body)


def request_id(request: web.Request) -> str | None:
    """ApiError if it is not UTF-8: it could be neither echoed nor written down."""
    text = request.headers.get("X-Request-Id")
    try:
        return text if text and text.encode() else None
    except UnicodeEncodeError:
        raise ApiError("the X-Request-Id is not UTF-8", code="invalid_request_id") from None


def traffic_class(request: web.Request) -> str | None:
    text = header(request, "X-Request-Class")
    return unquote(text) if text else None


def header(request: web.Request, name: str) -> str | None:
    """What the client says there; bytes that are no text are replaced, for rows are JSON."""
    text = request.headers.get(name)
    return text.encode("utf-8", "replace").decode() if text else None
