"""Encodes a streamed answer: an event for each token, or for each few, framed and ready for one write.

Everything that is the same for all tokens of a stream is encoded once, at its start: a token is then three
pieces put together. What each event says anew (the role, usage so far) is encoded event by event.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import msgspec

from ledgers.rows import encode
from ledgers.vocabulary import WORDS
from mock_server.openai import FINGERPRINT, Generation, usage

Content = Mapping[str, object]
MARK = "\0"  # where a token's text goes
_TEXTS = tuple(f" {word}".encode() for word in WORDS)
_COUNT = len(_TEXTS)
_LONGEST = max(map(len, _TEXTS))
_TWICE_ROUND = b"".join(_TEXTS * 2).decode()
_PLACES = (0, *accumulate(map(len, _TEXTS * 2)))  # where each word begins there


class Style(msgspec.Struct, frozen=True):
    """How answers come, by the server's own switches. None of them reaches the scheduler."""

    reasoning_tokens: int = 0
    tokens_per_chunk: int = 1
    early_role: bool = False


PLAIN = Style()


def words(first: int, end: int) -> str:
    """The text of output tokens `first` to `end`. Every one but the very first begins with a blank."""
    start, (rounds, rest) = first % _COUNT, divmod(end - first, _COUNT)
    at, once_round, text_end = (_PLACES[start + count] for count in (0, _COUNT, rest))
    text = _TWICE_ROUND[at:once_round] * rounds + _TWICE_ROUND[at:text_end]
    return text if first else text[1:]


class StreamEncoder:
    """The bytes of one stream. `chunked`: framed as HTTP/1.1 chunks; else bare, for HTTP/1.0."""

    def __init__(
        self,
        generation: Generation,
        id: str,
        created: int,
        style: Style = PLAIN,
        *,
        chunked: bool = True,
    ) -> None:
        self._chat = generation.api == "chat"
        self._generation = generation
        self._chunked = chunked
        self._per_event = style.tokens_per_chunk
        self._break = 0  # an event ends with this many tokens, full or not
        self._early_role = style.early_role and self._chat
        self._reasoning_tokens = generation.reasoning_tokens
        self._head = {
            "id": id,
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": created,
            "model": generation.model,
            "system_fingerprint": FINGERPRINT,
        }
        self._last = generation.output_tokens - 1
        if self._per_event > 1 or generation.continuous_usage:
            self._alike_from = generation.output_tokens
            return
        self._alike_from = 1
        self._text = self._frames({"delta": {"content": MARK}} if self._chat else {"text": MARK})
        self._reasoning = (
            self._frames({"delta": {"reasoning": MARK}}) if self._reasoning_tokens else self._text
        )

    def start(self) -> bytes:
        """What comes with the headers, before any token."""
        if not self._early_role:
            return b""
        return self._frame(self._event({"delta": {"role": "assistant", "content": ""}}, emitted=0))

    def token(self, index: int) -> bytes | None:
        """Output token `index`; None if its event is not full yet and more tokens will come."""
        if index < self._alike_from or index == self._last:
            return self._singular(index)
        befores, after = self._text if index >= self._reasoning_tokens else self._reasoning
        text = _TEXTS[index % _COUNT]
        return befores[len(text)] + text + after

    def end(self) -> bytes:
        """What follows the last token: usage if asked for, and the end mark."""
        mark = self._frame(b"data: [DONE]\n\n")
        if not self._generation.include_usage:
            return mark
        counts = self._usage(self._generation.output_tokens)
        return self._frame(self._data({**self._head, "choices": [], "usage": counts})) + mark

    def _singular(self, index: int) -> bytes | None:
        """An event that is not like the others around it: encoded as a whole."""
        first, end = index - index % self._per_event, index + 1
        if end % self._per_event and end != self._break and index < self._last:
            return None
        if first < self._break < end:
            first = self._break
        # As vLLM has it, the finish reason comes with the last token and not in an event of its own.
        reason = "length" if index == self._last else None
        return self._frame(self._event(self._content(first, end), emitted=end, finish_reason=reason))

    def _content(self, first: int, end: int) -> Content:
        if not self._chat:
            return {"text": words(first, end)}
        turn = min(max(first, self._reasoning_tokens), end)  # from here on it is content
        delta: dict[str, Any] = {}
        if first == 0 and not self._early_role:
            delta["role"] = "assistant"
        if first < turn:
            delta["reasoning"] = words(first, turn)
        if turn < end:
            delta["content"] = words(turn, end)
        return {"delta": delta}

    def _event(self, content: Content, *, emitted: int, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}
        chunk: dict[str, object] = {**self._head, "choices": [choice]}
        if self._generation.continuous_usage:
            chunk["usage"] = self._usage(emitted)
        elif self._generation.include_usage:
            chunk["usage"] = None
        return self._data(chunk)

    def _usage(self, emitted: int) -> dict[str, Any]:
        return usage(self._generation, emitted)

    def _frames(self, content: Content) -> tuple[list[bytes], bytes]:
        """What comes before a token's text, by the length of that text, and what comes behind it."""
        # The last mark is ours: a client may name its model as it likes, but the name comes before the text.
        before, after = self._event(content, emitted=0).rsplit(encode(MARK)[1:-1], 1)
        if not self._chunked:
            return [before] * (_LONGEST + 1), after
        around = len(before) + len(after)
        sizes = [b"%x\r\n" % (around + length) for length in range(_LONGEST + 1)]
        return [size + before for size in sizes], after + b"\r\n"

    @staticmethod
    def _data(chunk: dict[str, object]) -> bytes:
        return b"data: " + encode(chunk) + b"\n\n"

    def _frame(self, event: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(event), event) if self._chunked else event
