"""OpenAI's request and response shapes, as pure functions: bytes in, a request or an error out.

A prompt's tokens are counted from what was sent: text by `ledgers.vocabulary.count_tokens`, an array of
token ids by its length. Nothing about a length travels outside the prompt and `max_tokens`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ledgers.rows import encode
from ledgers.vocabulary import count_tokens
from mock_server.unsupported import Unsupported, stopping, unsupported_field

Api = Literal["chat", "completions"]
MAX_OUTPUT_TOKENS = 1_000_000_000
FINGERPRINT = "fp_tokentick"
TokenLimit = Annotated[int, Meta(ge=1, le=MAX_OUTPUT_TOKENS)]
StopString = Annotated[str, Meta(min_length=1, max_length=1000)]


class ApiError(Exception):
    """An answer in OpenAI's error shape."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s
        self.body = encode({"error": {"message": message, "type": type, "param": param, "code": code}})


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    """vLLM's: usage so far in every event, if there is usage at all."""


class _Common(Unsupported, frozen=True, kw_only=True):
    """The fields both endpoints share. Unknown fields are ignored, as servers of this API do."""

    model: str = ""
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: TokenLimit | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_OUTPUT_TOKENS)] | None = None
    ignore_eos: bool | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=16)] | None = None
    stop_token_ids: Annotated[list[int], Meta(max_length=1000)] | None = None


_TEXT_PARTS = ("text", "input_text")


class TextPart(msgspec.Struct, frozen=True):
    """A part of a message. Only text has tokens here."""

    type: str
    text: str = ""


class Message(msgspec.Struct, frozen=True):
    """A chat message; `content` may be missing, as in an assistant's tool call."""

    role: str
    content: str | list[TextPart] | None = None

    def texts(self) -> list[str]:
        """What counts. ApiError for a part of which nobody here can say how many tokens it has."""
        if not isinstance(self.content, list):
            return [self.content or ""]
        for part in self.content:
            if part.type not in _TEXT_PARTS:
                message = f"a part of type {part.type!r} is not supported: only text has tokens here"
                raise ApiError(message, param="messages")
        return [part.text for part in self.content]

    def count_tokens(self) -> int:
        return sum(map(count_tokens, self.texts()))


class ChatRequest(_Common, frozen=True, kw_only=True):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: TokenLimit | None = None
    reasoning_effort: str | None = None

    def count_tokens(self) -> int:
        return sum(message.count_tokens() for message in self.messages)

    @property
    def output_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(_Common, frozen=True, kw_only=True):
    """The body of `POST /v1/completions`. Only one prompt at a time, in any of its four forms."""

    prompt: str | list[str | int | list[int]]

    def count_tokens(self) -> int:
        prompt: str | Sequence[object] = self.prompt
        if len(prompt) == 1 and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return count_tokens(prompt)
        if all(isinstance(token, int) and token >= 0 for token in prompt):
            return len(prompt)
        raise ApiError("prompt must be one string or one array of token ids", param="prompt")

    @property
    def output_limit(self) -> int | None:
        return self.max_tokens


class Generation(msgspec.Struct, frozen=True):
    """What a valid request asks of the scheduler, and how it wants the answer."""

    api: Api
    model: str
    prompt_tokens: int
    output_tokens: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    reasoning_tokens: int
    """How many of the output tokens, from the first on, are reasoning. None in completions."""


_DECODERS: dict[Api, msgspec.json.Decoder[Any]] = {
    "chat": msgspec.json.Decoder(ChatRequest),
    "completions": msgspec.json.Decoder(CompletionRequest),
}
_PATH = re.compile(r" - at `\$\.([^`]*)`")
_FIELD = re.compile(r"field `([^`]*)`")


def parse(
    api: Api,
    body: bytes,
    default_output_tokens: int,
    default_reasoning_tokens: int = 0,
    default_model: str = "",
) -> Generation:
    """A request body as a Generation. ApiError in OpenAI's words for anything that is not right."""
    request = decoded(_DECODERS[api], body)
    prompt_tokens = request.count_tokens()
    if prompt_tokens < 1:
        param = "messages" if api == "chat" else "prompt"
        raise ApiError(f"{param} has no tokens: the prompt is empty", param=param)
    output_tokens = _output_tokens(request, default_output_tokens)
    _refuse_what_cannot_be(request, output_tokens)
    thinks = api == "chat" and request.reasoning_effort != "none"
    options = request.stream_options or StreamOptions()
    return Generation(
        api=api,
        model=request.model or default_model,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        stream=bool(request.stream),
        include_usage=options.include_usage,
        continuous_usage=options.include_usage and options.continuous_usage_stats,
        reasoning_tokens=min(default_reasoning_tokens, output_tokens) if thinks else 0,
    )


def _output_tokens(request: Any, default: int) -> int:
    """All of the limit, for nothing else ends an output; without one the default, or more if it must be."""
    limit: int | None = request.output_limit
    at_least: int = request.min_tokens or 0
    if limit is None:
        return max(default, at_least)
    if at_least > limit:
        message = f"min_tokens must be less than or equal to max_tokens={limit}, got {at_least}"
        raise ApiError(message, param="min_tokens")
    return limit


def _refuse_what_cannot_be(request: Any, output_tokens: int) -> None:
    """Nothing that would change the answer is passed over in silence."""
    refused = unsupported_field(request)
    if refused:
        raise ApiError(" ".join(refused), param=refused[0])
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    found = stopping(stops, request.stop_token_ids or [], output_tokens)
    if found:
        field, what = found
        message = f"{field}: {what} is in the output, and this server ends by length only"
        raise ApiError(message, param=field)


def decoded(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """A body by its decoder. ApiError for what is not JSON, or not of its types."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        match = _PATH.search(str(error)) or _FIELD.search(str(error))
        raise ApiError(f"Invalid request: {error}", param=match[1] if match else None) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(f"We could not parse the JSON body of your request: {error}") from None


def too_long(generation: Generation, max_model_len: int) -> ApiError:
    """The request can never be admitted: prompt and output together are longer than may be."""
    total = generation.prompt_tokens + generation.output_tokens
    return ApiError(
        f"This model's maximum context length is {max_model_len} tokens. However, you requested "
        f"{total} tokens ({generation.prompt_tokens} in the prompt, "
        f"{generation.output_tokens} in the completion).",
        param="messages" if generation.api == "chat" else "prompt",
        code="context_length_exceeded",
    )


def queue_full(max_queue: int, retry_after_s: int) -> ApiError:
    """Too many wait already."""
    return ApiError(
        f"The queue is full: {max_queue} requests are waiting. Please try again later.",
        status=429,
        type="rate_limit_error",
        code="queue_full",
        retry_after_s=retry_after_s,
    )


def usage(generation: Generation, emitted: int | None = None) -> dict[str, Any]:
    """The counts of the whole answer, or of what has been emitted so far."""
    completion_tokens = generation.output_tokens if emitted is None else emitted
    counts: dict[str, Any] = {
        "prompt_tokens": generation.prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": generation.prompt_tokens + completion_tokens,
    }
    if generation.reasoning_tokens:
        reasoning_tokens = min(generation.reasoning_tokens, completion_tokens)
        counts["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
    return counts


def whole_response(generation: Generation, id: str, created: int, reasoning: str, text: str) -> bytes:
    """The JSON body of an answer that was not streamed."""
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": "length"}
    if generation.api == "chat":
        choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        if reasoning:
            choice["message"] |= {"reasoning": reasoning, "content": text or None}
    else:
        choice["text"] = text
    kind = "chat.completion" if generation.api == "chat" else "text_completion"
    return encode(
        {
            "id": id,
            "object": kind,
            "created": created,
            "model": generation.model,
            "choices": [choice],
            "usage": usage(generation),
            "system_fingerprint": FINGERPRINT,
        }
    )
