"""What happens before the clock starts: is the server there, what does it serve, is it idle."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec

from ledgers.errors import TargetError
from loadgen.dialects.dialect import error_text
from loadgen.target import Target

IDLE_WITHIN_S = 30.0
MOST_SAID = 200  # characters of what a server or a library says
_RETRY_S = 0.1


async def look(
    target: Target, headers: Mapping[str, str], *, insecure: bool, timeout_s: float
) -> dict[str, Any]:
    """Ask for /v1/models and say what is known of the server: `server`, `model`, `owned_by`.

    A server without that path is fine. TargetError when it cannot be reached, refuses us, or is failing.
    """
    path = target.path("/v1/models")
    status, server, body = await _ask("GET", target, path, headers, insecure, timeout_s)
    if status in (401, 403) or status >= 500:
        raise TargetError(f"{target.url}: GET {path} answers {_reason(status, body)}")
    return {"url": target.url, "server": server, **(_first_model(body) if status == 200 else {})}


async def reset_mock(target: Target, headers: Mapping[str, str], *, insecure: bool, timeout_s: float) -> None:
    """Wait until the mock server is idle, and have it start over. TargetError if it does not in 30 s."""
    path = f"{target.base_path}/mock/reset"
    until = time.monotonic() + IDLE_WITHIN_S
    while True:
        status, _, body = await _ask("POST", target, path, headers, insecure, timeout_s)
        if status < 300:
            return
        if status != 409 or time.monotonic() > until:
            raise TargetError(f"{target.url}: POST {path} answers {_reason(status, body)}")
        await asyncio.sleep(_RETRY_S)


async def _ask(
    method: str, target: Target, path: str, headers: Mapping[str, str], insecure: bool, timeout_s: float
) -> tuple[int, str | None, bytes]:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeout_s, sock_read=timeout_s)
    url = f"{target.scheme}://{target.host_header}{path}"
    connector = aiohttp.TCPConnector(ssl=target.tls(insecure=insecure) or True)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.request(method, url, headers=headers, allow_redirects=False) as response,
        ):
            return response.status, response.headers.get("Server"), await response.read()
    except aiohttp.ClientConnectorCertificateError as error:
        why = getattr(error.certificate_error, "verify_message", None) or str(error.certificate_error)
        raise TargetError(
            f"{target.url}: certificate not accepted: {why} (--insecure skips the check)"
        ) from None
    except TimeoutError:
        raise TargetError(f"{target.url}: no answer to {method} {path} within {timeout_s:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise TargetError(f"{target.url}: cannot be used: {_cause(error)}") from None


def _cause(error: BaseException) -> str:
    number = getattr(getattr(error, "os_error", error), "errno", None)
    text = os.strerror(number) if number else " ".join(str(error).split())
    return text[:MOST_SAID] or type(error).__name__


def _reason(status: int, body: bytes) -> str:
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        content = None
    text = error_text(content) if isinstance(content, dict) else ""
    hint = " (is the API key right?)" if status in (401, 403) else ""
    return f"HTTP {status}{': ' if text else ''}{' '.join(text.split())[:MOST_SAID]}{hint}"


def _first_model(body: bytes) -> dict[str, Any]:
    try:
        models = msgspec.json.decode(body)["data"]
        return {"model": str(models[0]["id"]), "owned_by": models[0].get("owned_by")}
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, IndexError, TypeError, AttributeError):
        return {}
