"""What a dialect must do: write a request's body, and say what one event or one whole answer holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import msgspec

from loadgen.sse import SseEvent

# What reading a server's JSON can raise: it fails that request, never the run. Besides bad JSON and bad UTF-8
# there is nesting without end, and numbers that no integer type holds.
MALFORMED = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)
_SAYING = ("message", "detail", "error", "msg", "type", "code")


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
        """Field by field, the last that is known wins; no 0 takes back what was counted before."""
        for field in self.__struct_fields__:
            value = getattr(later, field)
            if value or (value is not None and getattr(self, field) is None):
                setattr(self, field, value)


class Reading(msgspec.Struct, gc=False):
    """What one event (or one whole answer) says.

    `output` is what was generated; an event without any is no token. `seen` and `finished` hold indexes of
    choices. `usage` counts the whole request so far, `token_ids` the tokens of this event, and `timed` is the
    server's own count of generated tokens beside its timings. `error` makes the request a failure; `done`
    ends the stream. `whole` says that the output is the answer from its beginning, which is news only where
    nothing has come before.
    """

    output: Sequence[Output] = ()
    whole: bool = False
    seen: Sequence[int] = ()
    finished: Sequence[int] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
    token_ids: int | None = None
    timed: Usage | None = None
    error: str | None = None
    done: bool = False

    @property
    def only_first_choice(self) -> bool:
        """Whether it is a piece of the first choice's output, and says nothing else."""
        beside = self.whole or self.finished or self.usage or self.timed or self.error or self.done
        alone = len(self.output) == 1 and not self.output[0].choice
        return alone and not beside and self.token_ids is None


class Dialect(Protocol):
    """One way in which a server is asked and answers.

    `optional` names the fields of the body that not every server takes; `takes_ids` says whether a prompt can
    be token ids.
    """

    path: ClassVar[str]
    optional: ClassVar[tuple[str, ...]]
    takes_ids: ClassVar[bool]

    def headers(self, api_key: str) -> dict[str, str]:
        """The headers that the dialect needs, and those that carry the key; "" where there is none."""

    def body(self, ask: Ask) -> bytes:
        """The JSON body of a streamed request."""

    def read_event(self, event: SseEvent) -> Reading:
        """What an event of the stream says. Raises one of MALFORMED when it cannot be read."""

    def read_body(self, body: bytes) -> Reading:
        """What a whole JSON answer says. Raises one of MALFORMED when it cannot be read."""


def error_text(error: Any) -> str:
    """The message of an error in any of the shapes in which servers send one."""
    if isinstance(error, list) and error:  # one per field, or one that a gateway wrapped
        return "; ".join(dict.fromkeys(map(error_text, error)))
    if isinstance(error, dict):
        for key in _SAYING:
            if error.get(key):
                return f"{_place(error.get('loc'))}{error_text(error[key])}"
    return error if isinstance(error, str) else msgspec.json.encode(error).decode()


def _place(loc: Any) -> str:
    """Where in the request a validation error is, as FastAPI says it."""
    return f"{'.'.join(map(str, loc))}: " if isinstance(loc, list) and loc else ""


def error_body_text(body: bytes) -> str:
    """The message in the JSON of an error body; "" where it is none."""
    try:
        content = msgspec.json.decode(body)
        return error_text(content) if isinstance(content, dict | list) else ""
    except MALFORMED:
        return ""
