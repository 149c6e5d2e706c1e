"""Encodes a streamed answer: one token, one event, one HTTP chunk, ready for one write.

Everything that is the same for all tokens of a stream is encoded once, at its start.
"""

from __future__ import annotations

from collections.abc import Mapping

from ledgers.rows import encode
from ledgers.vocabulary import WORDS
from mock_server.openai import FINGERPRINT, Generation, usage

Content = Mapping[str, object]
MARK = "\0"  # where a token's text goes


def word(index: int) -> str:
    """The text of output token `index`. Every one but the first begins with a blank."""
    text = WORDS[index % len(WORDS)]
    return f" {text}" if index else text


class StreamEncoder:
    """The bytes of one stream. `chunked`: framed as HTTP/1.1 chunks; else bare, for HTTP/1.0."""

    def __init__(self, generation: Generation, id: str, created: int, *, chunked: bool = True) -> None:
        self._chat = generation.api == "chat"
        self._generation = generation
        self._chunked = chunked
        self._head = {
            "id": id,
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": created,
            "model": generation.model,
            "system_fingerprint": FINGERPRINT,
        }
        # The last mark is ours: a client may name its model as it likes, but the name comes before the text.
        self._before, self._after = self._event(self._content(MARK)).rsplit(encode(MARK)[1:-1], 1)

    def token(self, index: int) -> bytes:
        """Output token `index`, with the role beside the first one in a chat."""
        if index == 0 and self._chat:
            return self._frame(self._event({"delta": {"role": "assistant", "content": word(0)}}))
        return self._frame(self._before + word(index).encode() + self._after)

    def end(self) -> bytes:
        """What follows the last token: finish reason, usage if asked for, and the end mark."""
        finish: Content = {"delta": {}} if self._chat else {"text": ""}
        parts = [self._event(finish, finish_reason="length")]
        if self._generation.include_usage:
            parts.append(self._data({**self._head, "choices": [], "usage": usage(self._generation)}))
        parts.append(b"data: [DONE]\n\n")
        return b"".join(map(self._frame, parts))

    def _content(self, text: str) -> Content:
        return {"delta": {"content": text}} if self._chat else {"text": text}

    def _event(self, content: Content, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}
        chunk: dict[str, object] = {**self._head, "choices": [choice]}
        if self._generation.include_usage:
            chunk["usage"] = None
        return self._data(chunk)

    @staticmethod
    def _data(chunk: dict[str, object]) -> bytes:
        return b"data: " + encode(chunk) + b"\n\n"

    def _frame(self, event: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(event), event) if self._chunked else event
