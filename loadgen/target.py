"""The server to be measured: its URL, taken apart, and the address that answers."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import socket
import ssl
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import msgspec

from ledgers.errors import InputError, TargetError

_LOOK_S = 1.0
_ENDPOINTS = ("/chat/completions", "/completions", "/responses", "/messages")
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Address(msgspec.Struct, frozen=True):
    """One resolved address, ready for connect(). `connect_ns`: how long connecting took, if it was tried."""

    family: socket.AddressFamily
    sockaddr: tuple[Any, ...]
    connect_ns: int | None = None


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests go.

    `base_path`: what the URL has before `/v1`; `basic_auth`: its userinfo, encoded; `secrets`: the password,
    as the URL spells it and as it is.
    """

    scheme: str
    host: str
    port: int
    base_path: str = ""
    basic_auth: str | None = None
    secrets: tuple[str, ...] = ()

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The base URL without userinfo, fit to be shown."""
        return f"{self.scheme}://{self.host_header}{self.base_path}"

    def path(self, endpoint: str) -> str:
        return f"{self.base_path}{endpoint}"

    def tls(self, *, insecure: bool, ca_file: Path | None = None) -> ssl.SSLContext | None:
        """A context for https, None for http.

        `insecure` skips the verification of the certificate; `ca_file` is trusted in the system's place.
        InputError if it cannot be read.
        """
        if self.scheme != "https" and ca_file is None:  # to read the system's certificates takes 20 ms
            return None
        context = _context(ca_file)
        if self.scheme != "https":
            return None
        context.set_alpn_protocols(["http/1.1"])
        if insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def parse_target(base_url: str, flag: str = "--base-url") -> Target:
    """A base URL; a path that ends in /v1 is accepted, not doubled. InputError if it is no http(s) URL."""
    text = base_url if "://" in base_url else f"http://{base_url}"
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:  # its text can hold a part of the password
        raise InputError(
            f"{flag}: not a URL (is the port a number up to 65535? a user name or password must be "
            "percent-encoded)"
        ) from None
    if url.scheme not in _DEFAULT_PORTS or not url.hostname or port == 0 or url.query or url.fragment:
        shown = re.split("[?#]", text.rpartition("@")[2])[0]  # a query can hold a key
        raise InputError(f"{flag} {shown}: expected http://HOST[:PORT][/PATH] or https://…")
    auth = None
    if url.username is not None:
        pair = f"{unquote(url.username)}:{unquote(url.password or '')}"
        auth = base64.b64encode(pair.encode("utf-8", "surrogateescape")).decode()
    return Target(
        scheme=url.scheme,
        host=_ascii_host(url.hostname),
        port=port or _DEFAULT_PORTS[url.scheme],
        base_path=_base_path(_ascii_path(url.path)),
        basic_auth=auth,
        secrets=_spellings(url.password or url.username),
    )


def _context(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError:
        raise InputError(f"--ca-file {ca_file}: no certificates in PEM form") from None
    except OSError as error:
        raise InputError(f"--ca-file {ca_file}: {error.strerror}") from None


def _spellings(secret: str | None) -> tuple[str, ...]:
    """As the URL spells it and as it is. A user name without a password is a key."""
    return (secret, unquote(secret)) if secret else ()


def _base_path(path: str) -> str:
    """What comes before /v1, also where a whole endpoint was given."""
    path = path.rstrip("/")
    for endpoint in _ENDPOINTS:
        path = path.removesuffix(f"/v1{endpoint}")
    return path.removesuffix("/v1").rstrip("/")


def _ascii_path(path: str) -> str:
    """The path with everything percent-encoded that a request line cannot carry; escapes in it stay."""
    return quote(path, safe="/%:@!$&'()*+,;=~", errors="surrogateescape")


def _ascii_host(host: str) -> str:
    try:
        return host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError:
        raise InputError(f"--base-url: {host!r} is no host name") from None


async def find_address(target: Target, connect_timeout_s: float, *, probe: bool = True) -> Address:
    """The first of the host's addresses that accepts a connection, so that a run uses that one throughout.

    `localhost` often has two, of which a server listens on one. TargetError when none accepts; without
    `probe` it is then the first, and the run will tell.
    """
    addresses = await _resolve(target)
    last: OSError | None = None
    for address in addresses:
        try:
            return await _try(address, connect_timeout_s if probe else min(connect_timeout_s, _LOOK_S))
        except OSError as error:
            last = error
    if not probe:
        return addresses[0]
    number = last.errno if last else None  # a timeout has none
    why = os.strerror(number) if number else f"no answer within {connect_timeout_s:g} s"
    raise TargetError(f"{target.url}: cannot connect: {why}")


async def _resolve(target: Target) -> list[Address]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise TargetError(f"{target.url}: cannot resolve {target.host}: {error}") from None
    return [Address(family, sockaddr) for family, _, _, _, sockaddr in found]


async def _try(address: Address, timeout_s: float) -> Address:
    sock = socket.socket(address.family, socket.SOCK_STREAM)
    sock.setblocking(False)
    started = time.monotonic_ns()
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.get_running_loop().sock_connect(sock, address.sockaddr)
        return msgspec.structs.replace(address, connect_ns=time.monotonic_ns() - started)
    finally:
        sock.close()
