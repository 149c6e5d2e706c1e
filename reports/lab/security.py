"""What the lab lets in, and what it says to browsers about itself.

Any page that a browser has open can send requests to this machine, and a name of somebody else's can come to
mean this machine: so the host that is asked for, and the origin of what changes anything, must be our own.
"""

from __future__ import annotations

from aiohttp import web
from multidict import CIMultiDictProxy

CHANGING = ("POST", "DELETE")
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def own_hosts(port: int) -> frozenset[str]:
    return frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost"))


def refusal(method: str, target: str, headers: CIMultiDictProxy[str], port: int) -> tuple[int, str] | None:
    """The status and the reason, if the request is none of our own page's; None if it may pass.

    A target may name a host itself, which then counts as much as the header.
    """
    hosts = headers.getall("Host", [])
    named = [] if target.startswith("/") else [target.partition("//")[2].partition("/")[0]]
    if len(hosts) != 1 or not {host.lower() for host in hosts + named} <= own_hosts(port):
        return 421, f"the lab answers to 127.0.0.1:{port} and localhost:{port} only"
    if method not in CHANGING:
        return None
    origin = headers.getall("Origin", [])
    if origin != [f"http://{hosts[0].lower()}"]:
        return 403, f"{method} needs an Origin header that names this page"
    return None


def harden(response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")
