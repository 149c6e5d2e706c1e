"""The one row type: a request as planned, simulated, served or measured.

Times are integer nanoseconds from the run's t0. None means not known or did not happen, never 0.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import msgspec

Outcome = Literal[
    "completed",
    "http_error",
    "stream_error",
    "empty",
    "truncated",
    "timeout",
    "connect_error",
    "cancelled",
    "rejected",
    "unfinished",
    "not_sent",
]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
FAILURES = frozenset({"http_error", "stream_error", "empty", "truncated", "timeout", "connect_error"})

CLIENT_LIMIT = "client limit: "  # how the error of a request begins that failed for want of something here

Phase = Literal["connect", "send", "headers", "first_token", "streaming"]
TokenSource = Literal["usage", "token_ids", "timings", "tokenizer", "events", "schedule"]


Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""What columns can hold; a row that has more is damaged."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Ticks(msgspec.Struct, forbid_unknown_fields=True):
    """The ticks at which a scheduler did something for a request."""

    received: Int64 | None = None
    prefill_start: Int64 | None = None
    prefill_end: Int64 | None = None
    first_token: Int64 | None = None
    last_token: Int64 | None = None
    cancel: Int64 | None = None


class RequestRow(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename={"class_": "class"}):
    """A request. A planned row has the fields down to `arrival_ns`; the rest is filled in as it happens.

    A planned ledger's own, which results do not repeat: `prompt`, the text to send; `prefix`, a label that
    says which prompts begin alike, for `prefix_tokens` of their tokens; `hash_ids`, labels for the prompt's
    consecutive blocks of `block_tokens` tokens, equal where the content is. With `think_ns` a turn waits for
    the end of its session's turn before, and so much longer; its planned arrival is the earliest possible.

    `retry_of` is the id of the request of which this row is a further attempt. `due_ns` is when the run let
    the request go, where that was not at its intended arrival: a place under a cap had to come free, or a
    retry had to wait. `connect_ns` is how long it then waited for a connection to open. `send_start_ns` is
    when its first byte went to the kernel, `sent_ns` when its last did: what passes between them is the
    server's or the link's doing. `tokens` is what the server delivered, by `token_source`;
    `usage_prompt_tokens`, `cached_tokens` and `reasoning_tokens` (a part of `tokens`) are what it said beside
    that. `first_content_ns` is the first output that is no reasoning. `shared_reads` counts events that came
    in the same read as the one before them: their times are upper bounds. Where a request had several
    choices, `choices` counts them, `decode_ns` sums first to last token of each, and `token_choices` says to
    which of them each of `token_ns` belongs. `fault` is what the mock server did to the answer on demand.
    """

    id: str
    retry_of: str | None = None
    request_id: str | None = None
    class_: str | None = None
    session: str | None = None
    turn: Int64 | None = None
    think_ns: Int64 | None = None
    prompt_tokens: Count
    output_tokens: Count
    prompt: str | None = None
    prefix: str | None = None
    prefix_tokens: Int64 | None = None
    hash_ids: list[Int64] | None = None
    block_tokens: Int64 | None = None
    arrival_ns: Int64 | None = None
    due_ns: Int64 | None = None
    connect_ns: Int64 | None = None
    send_start_ns: Int64 | None = None
    sent_ns: Int64 | None = None
    received_ns: Int64 | None = None
    headers_ns: Int64 | None = None
    prefill_start_ns: Int64 | None = None
    prefill_end_ns: Int64 | None = None
    first_token_ns: Int64 | None = None
    first_content_ns: Int64 | None = None
    last_token_ns: Int64 | None = None
    end_ns: Int64 | None = None
    decode_ns: Int64 | None = None
    tokens: Count | None = None
    token_source: TokenSource | None = None
    usage_prompt_tokens: Count | None = None
    cached_tokens: Count | None = None
    reasoning_tokens: Count | None = None
    events: Count | None = None
    shared_reads: Count | None = None
    choices: Count | None = None
    streamed: bool | None = None
    outcome: Outcome | None = None
    phase: Phase | None = None
    http_status: Int64 | None = None
    retry_after_s: float | None = None
    error: str | None = None
    fault: str | None = None
    finish_reason: str | None = None
    ticks: Ticks | None = None
    token_ns: list[Int64] | None = None
    token_choices: list[Int64] | None = None
    text: str | None = None
    reasoning_text: str | None = None


PLAN_ONLY = ("prompt", "prefix", "prefix_tokens", "hash_ids", "block_tokens")


def without_plan(row: RequestRow, **changes: Any) -> RequestRow:
    """A copy that repeats nothing of what only a planned ledger has."""
    return msgspec.structs.replace(row, **dict.fromkeys(PLAN_ONLY), **changes)


class TickRow(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The state after one tick, as scheduler tables show it.

    `starved` counts sequences that held a slot for prefill and got no tokens; it is left out when 0.
    `late_ns` is how late the tick ran (served only); `events` are `[kind, request id]` pairs in the order
    in which they happened, where they were recorded.
    """

    tick: int
    queue: int
    prefill: int
    ready: int
    emitted: int
    kv_reserved: int
    kv_cached: int
    starved: int = 0
    late_ns: int | None = None
    events: list[tuple[str, str]] | None = None

    @property
    def idle(self) -> bool:
        return not (self.queue or self.prefill or self.ready or self.emitted)


_encoder = msgspec.json.Encoder()
row_decoder = msgspec.json.Decoder(RequestRow)
tick_decoder = msgspec.json.Decoder(TickRow)


def encode(value: Any) -> bytes:
    """One JSON line without its newline. What is no Unicode, as in the name of a file, is escaped."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_as_unicode(msgspec.to_builtins(value)))


def _as_unicode(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_as_unicode(key): _as_unicode(each) for key, each in value.items()}
    return [_as_unicode(each) for each in value] if isinstance(value, list | tuple) else value


def decode_row(line: bytes) -> RequestRow:
    return row_decoder.decode(line)
