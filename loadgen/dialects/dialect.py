"""What a dialect must do: write a request's body, and say what one event or one whole answer holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from loadgen.sse import SseEvent

# What reading a server's JSON can raise: it fails that request, never the run. Besides bad JSON and bad UTF-8
# there is nesting without end, and numbers that no integer type holds.
MALFORMED = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)


class Ask(msgspec.Struct, frozen=True):
    """What a request asks for, whatever the dialect.

    `extra` is merged over the dialect's own fields; a null takes a field away.
    """

    model: str
    prompt: str
    output_tokens: int
    ignore_eos: bool = False
    extra: Mapping[str, Any] = {}


class Reading(msgspec.Struct, gc=False):
    """What one event (or one whole answer) says.

    `token`: it carries generated output of any kind. `text` and `reasoning` are of the first choice.
    `seen` and `finished` hold indexes of choices; `usage_tokens` is the count of output tokens so far.
    `error` makes the request a failure; `done` ends the stream.
    """

    token: bool = False
    text: str = ""
    reasoning: str = ""
    seen: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    finish_reason: str | None = None
    usage_tokens: int | None = None
    error: str | None = None
    done: bool = False


class Dialect(Protocol):
    """One way in which a server is asked and answers."""

    path: str

    def body(self, ask: Ask) -> bytes:
        """The JSON body of a streamed request."""

    def read_event(self, event: SseEvent) -> Reading:
        """What an event of the stream says. Raises one of MALFORMED when it cannot be read."""

    def read_body(self, body: bytes) -> Reading:
        """What a whole JSON answer says. Raises one of MALFORMED when it cannot be read."""


def error_text(error: Any) -> str:
    """The message of an error in any of the shapes in which servers send one."""
    if isinstance(error, dict):
        for key in ("message", "detail", "error", "type", "code"):
            if error.get(key):
                return error_text(error[key])
    return error if isinstance(error, str) else msgspec.json.encode(error).decode()


def error_body_text(body: bytes) -> str:
    """The message in the JSON object of an error body; "" where it is none."""
    try:
        content = msgspec.json.decode(body)
        return error_text(content) if isinstance(content, dict) else ""
    except MALFORMED:
        return ""
