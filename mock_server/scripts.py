"""Raw byte scripts: answers as any server writes them, byte for byte, with their timing and their ending.

A script is played past the HTTP library, straight to the connection, which it always ends.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ledgers.errors import InputError
from ledgers.rows import Outcome
from mock_server.faults import NAME
from mock_server.sinks import reset

LIMIT_S = 600.0
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class Part(msgspec.Struct, frozen=True):
    """Bytes of the body (base64 in the file), and how long after the part before them they are written."""

    b64: bytes
    delay_ms: Annotated[float, Meta(ge=0)] = 0.0


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. Other fields of the file (what a right reader makes of it) are nothing to a server.

    `close`: `normal` ends the message and closes; `reset` ends the connection by a RST, before the end of a
    chunked message; `hang` leaves it open.
    """

    name: str
    status: Annotated[int, Meta(ge=200, le=599)] = 200
    headers: dict[str, str] = {}
    framing: Literal["chunked", "close", "content-length"] = "chunked"
    parts: list[Part] = []
    close: Literal["normal", "reset", "hang"] = "normal"

    @property
    def head(self) -> bytes:
        framing = {
            "chunked": "Transfer-Encoding: chunked",
            "content-length": f"Content-Length: {sum(len(part.b64) for part in self.parts)}",
            "close": "",
        }[self.framing]
        closing = "" if "connection" in map(str.lower, self.headers) else "Connection: close"
        headers = [f"{name}: {value}" for name, value in self.headers.items()]
        lines = [f"HTTP/1.1 {self.status} {_reason(self.status)}", *headers, framing, closing]
        return "".join(f"{line}\r\n" for line in [*filter(None, lines), ""]).encode("latin-1")

    def framed(self, part: Part) -> bytes:
        if self.framing == "chunked" and part.b64:
            return b"%x\r\n%b\r\n" % (len(part.b64), part.b64)
        return part.b64

    @property
    def end(self) -> bytes:
        return b"0\r\n\r\n" if self.framing == "chunked" and self.close == "normal" else b""


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


async def play(transport: asyncio.Transport, script: Script, limit_s: float = LIMIT_S) -> Outcome:
    """Write a script and end the connection; what the client saw, as far as a server can tell.

    One that hangs is ended by its client, by the shutdown, or by the limit.
    """
    whole: Outcome = "completed" if script.close == "normal" else "truncated"
    outcome: Outcome = whole if script.status < 300 else "http_error"
    try:
        async with asyncio.timeout(limit_s):
            await _write(transport, script)
            if script.close == "hang":
                await asyncio.Event().wait()
    except TimeoutError:
        await reset(transport)
        return outcome
    if script.close == "reset":
        await reset(transport)
    else:
        transport.close()
    return outcome


async def _write(transport: asyncio.Transport, script: Script) -> None:
    transport.write(script.head)
    for part in script.parts:
        await asyncio.sleep(part.delay_ms / 1000)  # even 0 sends what was written on its way
        transport.write(script.framed(part))
    transport.write(script.end)


def load_scripts(paths: Sequence[Path]) -> dict[str, Script]:
    """The scripts in these files, and in the `*.json` files of these directories, by name."""
    scripts: dict[str, Script] = {}
    for given in paths:
        files = sorted(given.glob("*.json")) if given.is_dir() else [given]
        if not files:
            raise InputError(f"--script {given}: no *.json file in this directory")
        for file in files:
            script = _load(file)
            if script.name in scripts:
                raise InputError(f"--script {file}: there is another script called {script.name}")
            scripts[script.name] = script
    return scripts


def _load(file: Path) -> Script:
    try:
        script = msgspec.json.decode(file.read_bytes(), type=Script)
        _check(script)
        return script
    except OSError as error:
        raise InputError(f"--script {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # msgspec's errors and those of the decoder are ValueErrors
        raise InputError(f"--script {file}: {error}") from None


def _check(script: Script) -> None:
    if not NAME.fullmatch(script.name):
        raise ValueError(f"the name {script.name[:40]!r} has other characters than letters, digits, . _ -")
    for name, value in script.headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise ValueError(f"{name[:40]!r} cannot be a header")
        if name.lower() in ("content-length", "transfer-encoding"):
            raise ValueError(f"{name}: framing says how the body is framed")
    if sum(part.delay_ms for part in script.parts) > LIMIT_S * 1000:
        raise ValueError(f"it would take more than {LIMIT_S:g} s")
