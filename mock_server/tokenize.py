"""`/tokenize` and `/detokenize` in vLLM's shapes, over the built-in vocabulary. Pure.

The id of a word of the vocabulary is its place there. Any other word is cut into pieces of four bytes, whose
ids spell out the bytes, so that ids alone lead back to the text; blanks between words come back as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ledgers.rows import encode
from ledgers.vocabulary import BYTES_PER_UNKNOWN_TOKEN, WORDS, pieces
from mock_server.openai import ApiError, Message, decoded

_IDS = {word: id for id, word in enumerate(WORDS)}
# A piece is told by a leading byte, which also keeps its own leading zeros: 1 within a word, 2 at its start.
_WITHIN, _START = b"\1", b"\2"
_END = len(WORDS) + (3 << 8 * BYTES_PER_UNKNOWN_TOKEN)  # behind the last id there is


class TokenizeRequest(msgspec.Struct, frozen=True):
    """Either a prompt or messages. What else vLLM takes concerns special tokens and templates: none here."""

    prompt: str | None = None
    messages: list[Message] | None = None
    return_token_strs: bool | None = False

    def texts(self) -> Iterator[str]:
        if (self.prompt is None) is (self.messages is None):
            raise ApiError("give either prompt or messages", param="prompt")
        if self.prompt is not None:
            yield self.prompt
        for message in self.messages or ():
            yield from message.texts()


class DetokenizeRequest(msgspec.Struct, frozen=True):
    tokens: list[Annotated[int, Meta(ge=0)]]


_TOKENIZE: msgspec.json.Decoder[TokenizeRequest] = msgspec.json.Decoder(TokenizeRequest)
_DETOKENIZE: msgspec.json.Decoder[DetokenizeRequest] = msgspec.json.Decoder(DetokenizeRequest)


def tokenize(body: bytes, max_model_len: int) -> bytes:
    """The answer to `POST /tokenize`: as many tokens as a request with this prompt would count."""
    request = decoded(_TOKENIZE, body)
    ids = [id for text in request.texts() for id in token_ids(text)]
    strings = [_token_string(id) for id in ids] if request.return_token_strs else None
    answer: dict[str, Any] = {"count": len(ids), "max_model_len": max_model_len, "tokens": ids}
    return encode({**answer, "token_strs": strings})


def detokenize(body: bytes) -> bytes:
    """The answer to `POST /detokenize`."""
    return encode({"prompt": text_of(decoded(_DETOKENIZE, body).tokens)})


def token_ids(text: str) -> Iterator[int]:
    """The ids of a text, as many as `ledgers.vocabulary.count_tokens` counts."""
    for word in (word for piece in pieces(text) for word in piece.split()):
        id = _IDS.get(word)
        if id is None:
            yield from _piece_ids(word.encode("utf-8", "surrogatepass"))
        else:
            yield id


def text_of(ids: Iterable[int]) -> str:
    """The text that these ids stand for, with one blank between words."""
    pieces: list[bytes] = []
    for id in ids:
        starts_word, piece = _piece(id)
        pieces.append(b" " + piece if starts_word and pieces else piece)
    return b"".join(pieces).decode("utf-8", "replace")


def _piece_ids(word: bytes) -> Iterator[int]:
    for start in range(0, len(word), BYTES_PER_UNKNOWN_TOKEN):
        piece = word[start : start + BYTES_PER_UNKNOWN_TOKEN]
        mark = _WITHIN if start else _START
        yield len(WORDS) + int.from_bytes(mark + piece, "big")


def _piece(id: int) -> tuple[bool, bytes]:
    """Whether a token starts a word, and its bytes."""
    if id < len(WORDS):
        return True, WORDS[id].encode()
    spelt = (id - len(WORDS)).to_bytes(BYTES_PER_UNKNOWN_TOKEN + 1, "big") if id < _END else b""
    mark, piece = spelt.lstrip(b"\0")[:1], spelt.lstrip(b"\0")[1:]
    if mark not in (_WITHIN, _START) or not piece:
        raise ApiError(f"{id} is not the id of a token", param="tokens")
    return mark == _START, piece


def _token_string(id: int) -> str:
    return _piece(id)[1].decode("utf-8", "replace")
