"""What an answer says before its content is read: what its body is, and how long to wait. Pure."""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime

BOM = b"\xef\xbb\xbf"
_SSE_FIELD = re.compile(rb"(?:data|event|id|retry|error)?(?::|[\r\n]|$)")
_LONGEST_FIELD = len("retry:")


def is_stream(start: bytes, label: str, *, last: bool) -> bool | None:
    """Whether a body that begins so is an event stream: by the content first, then by its Content-Type.

    None while what came says nothing, as blanks do; `last` says that nothing more will come.
    """
    begun = BOM.startswith(start) and not last
    start = start.removeprefix(BOM).lstrip()
    if begun or not start:
        return None
    if start[:1] in b"{[<":
        return False
    if label.lower().startswith("text/event-stream"):
        return True
    if len(start) < _LONGEST_FIELD and b"\n" not in start and not last:
        return None
    return _SSE_FIELD.match(start) is not None


def condensed(start: bytes) -> bytes:
    """A blank beginning, however long, in the few bytes that are all it means to any reader."""
    blank = start.removeprefix(BOM)
    if blank.strip():
        return start
    bom = start[: len(start) - len(blank)]
    lines = b"\n" if b"\n" in blank or b"\r" in blank else b""
    return bom + lines + (b"" if not blank or blank[-1:] in b"\r\n" else b" ")


def retry_after_s(headers: dict[str, str]) -> float | None:
    """How long the server asks us to wait: `Retry-After` in seconds or as a date (RFC 9110, 10.2.3).

    `retry-after-ms` is an extension of OpenAI's and Azure's. A date counts from the server's own `Date`.
    """
    try:
        if "retry-after-ms" in headers:
            seconds = float(headers["retry-after-ms"]) / 1000
        elif "retry-after" not in headers:
            return None
        elif "date" in headers and not headers["retry-after"][:1].isdigit():
            wait = parsedate_to_datetime(headers["retry-after"]) - parsedate_to_datetime(headers["date"])
            seconds = max(0.0, wait.total_seconds())
        else:
            seconds = float(headers["retry-after"])
    except (ValueError, TypeError, OverflowError):
        return None
    return seconds if 0 <= seconds < float("inf") else None
