"""OpenAI's request and response shapes, as pure functions: bytes in, a request or an error out.

A prompt's tokens are counted from what was sent: text by `ledgers.vocabulary.count_tokens`, an array of
token ids by its length. Nothing about a length travels outside the prompt and `max_tokens`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import ceil
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ledgers.rows import encode
from ledgers.vocabulary import count_tokens

Api = Literal["chat", "completions"]
MAX_OUTPUT_TOKENS = 1_000_000_000
FINGERPRINT = "fp_tokentick"
TokenLimit = Annotated[int, Meta(ge=1, le=MAX_OUTPUT_TOKENS)]


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


class _Common(msgspec.Struct, frozen=True, kw_only=True):
    """The fields both endpoints share. Unknown fields are ignored, as servers of this API do."""

    model: str = "tokentick-mock"
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: TokenLimit | None = None
    n: Annotated[int, Meta(ge=1)] | None = 1


class TextPart(msgspec.Struct, frozen=True):
    """A part of a message. Only text has tokens here."""

    type: str
    text: str = ""


class Message(msgspec.Struct, frozen=True):
    """A chat message; `content` may be missing, as in an assistant's tool call."""

    role: str
    content: str | list[TextPart] | None = None

    def count_tokens(self) -> int:
        if isinstance(self.content, list):
            return sum(count_tokens(part.text) for part in self.content)
        return count_tokens(self.content or "")


class ChatRequest(_Common, frozen=True, kw_only=True):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: TokenLimit | None = None

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


_DECODERS: dict[Api, msgspec.json.Decoder[Any]] = {
    "chat": msgspec.json.Decoder(ChatRequest),
    "completions": msgspec.json.Decoder(CompletionRequest),
}
_PATH = re.compile(r" - at `\$\.([^`]*)`")
_FIELD = re.compile(r"field `([^`]*)`")


def parse(api: Api, body: bytes, default_output_tokens: int) -> Generation:
    """A request body as a Generation. ApiError in OpenAI's words for anything that is not right."""
    request = _decode(api, body)
    if (request.n or 1) != 1:
        raise ApiError("n must be 1: this server answers with one choice", param="n")
    prompt_tokens = request.count_tokens()
    if prompt_tokens < 1:
        param = "messages" if api == "chat" else "prompt"
        raise ApiError(f"{param} has no tokens: the prompt is empty", param=param)
    return Generation(
        api=api,
        model=request.model,
        prompt_tokens=prompt_tokens,
        output_tokens=request.output_limit or default_output_tokens,
        stream=bool(request.stream),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
    )


def _decode(api: Api, body: bytes) -> Any:
    try:
        return _DECODERS[api].decode(body)
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


def queue_full(max_queue: int, tick_s: float) -> ApiError:
    """Too many wait already. Nothing comes free before the next tick."""
    return ApiError(
        f"The queue is full: {max_queue} requests are waiting. Please try again later.",
        status=429,
        type="rate_limit_error",
        code="queue_full",
        retry_after_s=max(1, ceil(tick_s)),
    )


def usage(generation: Generation) -> dict[str, int]:
    return {
        "prompt_tokens": generation.prompt_tokens,
        "completion_tokens": generation.output_tokens,
        "total_tokens": generation.prompt_tokens + generation.output_tokens,
    }


def whole_response(generation: Generation, id: str, created: int, text: str) -> bytes:
    """The JSON body of an answer that was not streamed."""
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": "length"}
    if generation.api == "chat":
        choice["message"] = {"role": "assistant", "content": text, "refusal": None}
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
