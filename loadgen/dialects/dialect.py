"""What a dialect must do: write a request's body, and say what one event or one whole answer holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import msgspec

from loadgen.sse import SseEvent

# What reading a server's JSON can raise: it fails that request, never the run. Besides bad JSON and bad UTF-8
# there is nesting without end, and numbers that no integer type holds.
MALFORMED = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)
MOST_TOKENS = 1_000_000_000


class Ask(msgspec.Struct, frozen=True):
    """What a request asks for, whatever the dialect.

    `prompt` is a text, or token ids where the dialect takes them. `fields` are those of the dialect's
    `optional` fields that are sent. `extra` is merged over everything; a null takes a field away.
    """

    model: str
    prompt: str | list[int]
    output_tokens: int
    fields: frozenset[str] = frozenset()
    extra: Mapping[str, Any] = {}


class Output(NamedTuple):
    """A piece of generated output, never empty, of one of the answer's choices."""

    choice: int
    kind: Literal["text", "reasoning", "refusal", "tool"]
    text: str


class Usage(msgspec.Struct, gc=False):
    """Token counts as a server says them; None for what it does not say.

    `reasoning_tokens` are a part of `completion_tokens`, `cached_tokens` of `prompt_tokens`.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None

    def update(self, later: Usage) -> None:
        """Field by field, the last that is known wins."""
        for field in self.__struct_fields__:
            value = getattr(later, field)
            if value is not None:
                setattr(self, field, value)


class Reading(msgspec.Struct, gc=False):
    """What one event (or one whole answer) says.

    `output` is what was generated; an event without any is no token. `seen` and `finished` hold indexes of
    choices. `usage` counts the whole request so far, `token_ids` the tokens of this event, and `timed` is the
    server's own count of generated tokens beside its timings. `error` makes the request a failure; `done`
    ends the stream.
    """

    output: tuple[Output, ...] = ()
    seen: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
    token_ids: int | None = None
    timed: Usage | None = None
    error: str | None = None
    done: bool = False


class Dialect(Protocol):
    """One way in which a server is asked and answers.

    `optional` names the fields of the body that not every server takes; `takes_ids` says whether a prompt can
    be token ids.
    """

    path: ClassVar[str]
    optional: ClassVar[tuple[str, ...]]
    takes_ids: ClassVar[bool]

    def headers(self, api_key: str) -> dict[str, str]:
        """The headers that carry the key."""

    def body(self, ask: Ask) -> bytes:
        """The JSON body of a streamed request."""

    def read_event(self, event: SseEvent) -> Reading:
        """What an event of the stream says. Raises one of MALFORMED when it cannot be read."""

    def read_body(self, body: bytes) -> Reading:
        """What a whole JSON answer says. Raises one of MALFORMED when it cannot be read."""


def bearer(api_key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"}


def encode_body(ask: Ask, own: dict[str, Any]) -> bytes:
    """A body with the dialect's `own` fields, `extra` over them, and without what is null."""
    body = {"model": ask.model, **own, "stream": True, **ask.extra}
    return msgspec.json.encode({key: value for key, value in body.items() if value is not None})


def count(value: Any) -> int | None:
    """A number of tokens; None for what cannot be one."""
    whole = isinstance(value, int | float) and 0 <= value <= MOST_TOKENS and value == int(value)
    return int(value) if whole else None


def error_text(error: Any) -> str:
    """The message of an error in any of the shapes in which servers send one."""
    if isinstance(error, dict):
        for key in ("message", "detail", "error", "msg", "type", "code"):
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
