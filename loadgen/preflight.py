"""What happens before the clock starts: is the server there, what does it serve, is it idle."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import aiohttp
import msgspec

from ledgers.errors import TargetError
from loadgen.dialects.dialect import MALFORMED, error_body_text
from loadgen.target import Target

IDLE_WITHIN_S = 30.0
MOST_SAID = 200  # characters of what a server or a library says
_RETRY_S = 0.1
_FROM_MODEL = (("model", "id"), ("owned_by", "owned_by"))


class Preflight(NamedTuple):
    """Whom to ask and how. `scrub` takes secrets out of what the server says."""

    target: Target
    headers: Mapping[str, str]
    insecure: bool
    timeout_s: float
    scrub: Callable[[str], str]


async def look(preflight: Preflight) -> dict[str, str]:
    """Ask for /v1/models and say what is known of the server: `url`, `server`, `model`, `owned_by`.

    A server without that path is fine. TargetError when it cannot be reached, refuses us, or is failing. What
    is found is as the server said it; a TargetError is fit to be shown.
    """
    target = preflight.target
    path = target.path("/v1/models")
    status, server, body = await _ask("GET", preflight, path)
    if status in (401, 403) or status >= 500:
        raise TargetError(f"{target.url}: GET {path} answers {_reason(status, body, preflight.scrub)}")
    return {"url": target.url, **server, **(_first_model(body) if status == 200 else {})}


async def reset_mock(preflight: Preflight) -> None:
    """Wait until the mock server is idle, and have it start over. TargetError if it does not in 30 s."""
    target = preflight.target
    path = f"{target.base_path}/mock/reset"
    until = time.monotonic() + IDLE_WITHIN_S
    while True:
        status, _, body = await _ask("POST", preflight, path)
        if status < 300:
            return
        if status != 409 or time.monotonic() > until:
            raise TargetError(f"{target.url}: POST {path} answers {_reason(status, body, preflight.scrub)}")
        await asyncio.sleep(_RETRY_S)


async def _ask(method: str, preflight: Preflight, path: str) -> tuple[int, dict[str, str], bytes]:
    target, headers, insecure, timeout_s, scrub = preflight
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeout_s, sock_read=timeout_s)
    url = f"{target.scheme}://{target.host_header}{path}"
    connector = aiohttp.TCPConnector(ssl=target.tls(insecure=insecure) or True)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.request(method, url, headers=headers, allow_redirects=False) as response,
        ):
            server = response.headers.get("Server")
            known = {} if server is None else {"server": _clean(server)}
            return response.status, known, await response.read()
    except aiohttp.ClientConnectorCertificateError as error:
        why = getattr(error.certificate_error, "verify_message", None) or str(error.certificate_error)
        raise TargetError(
            f"{target.url}: certificate not accepted: {why} (--insecure skips the check)"
        ) from None
    except TimeoutError:
        raise TargetError(f"{target.url}: no answer to {method} {path} within {timeout_s:g} s") from None
    except aiohttp.ClientConnectorSSLError:
        raise TargetError(f"{target.url}: no TLS on this port") from None
    except (aiohttp.ClientError, OSError) as error:
        raise TargetError(f"{target.url}: cannot be used: {_cause(error, scrub)}") from None


def _clean(header: str) -> str:
    """A header's bytes that are no UTF-8 come as lone surrogates, which no file can hold."""
    return header.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _cause(error: BaseException, scrub: Callable[[str], str]) -> str:
    number = getattr(getattr(error, "os_error", error), "errno", None)
    text = os.strerror(number) if number else _clean(str(error))
    return _short(text, scrub) or type(error).__name__


def _reason(status: int, body: bytes, scrub: Callable[[str], str]) -> str:
    text = _short(error_body_text(body), scrub)
    hint = " (is the API key right?)" if status in (401, 403) else ""
    return f"HTTP {status}{': ' if text else ''}{text}{hint}"


def _short(text: str, scrub: Callable[[str], str]) -> str:
    """On one line; scrubbed before it is cut, which could leave half a secret behind."""
    return " ".join(scrub(text).split())[:MOST_SAID]


def _first_model(body: bytes) -> dict[str, str]:
    try:
        model = msgspec.json.decode(body)["data"][0]
        return {name: str(model[key]) for name, key in _FROM_MODEL if model.get(key) is not None}
    except (*MALFORMED, KeyError, IndexError, TypeError, AttributeError):
        return {}
