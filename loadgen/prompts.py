"""Requests as bytes: prompts made at the ledger's lengths, encoded in small steps ahead of their time.

Lengths travel as real prompts, never as numbers on the side, so that every server sees the same work. A
prompt of 100,000 tokens takes tens of milliseconds to make: the work is cut into steps well below a
millisecond, between which the loop reads and sends.

What a ledger says is shared between prompts is the same text in each; where it says nothing, the turns of a
session are one text, cut to the length of each. Besides, no two begin alike, so that a server's prefix cache
has what the ledger gives it and nothing else.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import lru_cache
from math import gcd
from random import Random
from typing import Any, NamedTuple

import msgspec

from ledgers.rows import RequestRow
from loadgen.dialects.dialect import Ask, Dialect
from loadgen.requests import header_safe
from loadgen.target import Target
from loadgen.wording import Wording

TOKENS_PER_STEP = 1_000
_DIFFERENT = 2**32  # as many texts of one kind begin differently, if they are long enough

Prompt = str | list[int]


class RequestEncoder(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the requests of a run have in common."""

    dialect: Dialect
    target: Target
    path: str
    headers: Mapping[str, str]
    model: str
    seed: int
    fields: frozenset[str] = frozenset()
    extra_body: Mapping[str, Any] = {}
    wording: Wording = Wording()

    @property
    def choices(self) -> int:
        """How many answers each request asks for."""
        asked = self.extra_body.get("n")
        return asked if type(asked) is int and asked > 0 else 1

    def steps(self, row: RequestRow, index: int) -> Generator[None, None, bytes]:
        """Encode one request in steps; the generator's return value is head and body."""
        prompt: Prompt | None = row.prompt
        if prompt is None:
            pieces = []
            for piece in word_pieces(row, index, self.seed, self.wording):
                pieces.append(piece)
                yield
            prompt = _joined(pieces, self.wording)
        ask = Ask(self.model, prompt, row.output_tokens, self.fields, self.extra_body)
        body = self.dialect.body(ask)
        yield
        return self._head(row, len(body)) + body

    def encode(self, row: RequestRow, index: int) -> bytes:
        """Encode one request at once."""
        steps = self.steps(row, index)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                data: bytes = done.value
                return data

    def _head(self, row: RequestRow, body_bytes: int) -> bytes:
        headers = {
            "Host": self.target.host_header,
            **self.headers,
            "X-Request-Id": row.request_id or row.id,
            **({"X-Request-Class": header_safe(row.class_)} if row.class_ else {}),
            "Content-Length": str(body_bytes),
        }
        lines = [f"POST {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class _Part(NamedTuple):
    """A part of a prompt up to its token `end`. Parts with the same source begin alike.

    Those of one kind with different numbers do not; `uncut` is the length of a numbered part of which others
    may have less.
    """

    source: str
    kind: str
    number: int | None
    end: int
    uncut: int | None = None


def word_pieces(
    row: RequestRow, index: int, seed: int, wording: Wording, most: int = TOKENS_PER_STEP
) -> Iterator[Sequence[Any]]:
    """The words of a prompt without its first, in pieces of at most `most`.

    They depend on what the row says is shared, and on (seed, index): any split of the work gives the same.
    Turns of a session of whose prompts the ledger says nothing come with the same index.
    """
    parts = list(_parts(row, index))
    done = 0
    for part in parts:
        end = wording.word_count(part.end) if part is parts[-1] else wording.words_before(part.end)
        yield from _pieces(part, seed, wording.words, end - done, most)
        done = end


def _parts(row: RequestRow, index: int) -> Iterator[_Part]:
    length, at = row.prompt_tokens, 0
    if row.hash_ids and row.block_tokens:
        for block in row.hash_ids:
            at = min(length, at + row.block_tokens)
            yield _Part(f"block:{block}", "block", block, at, row.block_tokens)
            if at == length:
                return
    elif row.prefix is not None:
        shared = length // 2 if row.prefix_tokens is None else row.prefix_tokens
        at = min(length, shared)
        yield _Part(f"prefix:{row.prefix}", "prefix", None, at)
    elif row.session is not None:  # each turn begins as the one before it did, and goes on
        yield _Part(f"session:{index}", "session", index, length, _DIFFERENT)
        return
    if at < length or not at:
        yield _Part(str(index), "own", index, length)


def _pieces(part: _Part, seed: int, words: Sequence[Any], count: int, most: int) -> Iterator[Sequence[Any]]:
    random = Random(f"{seed}:{part.source}")
    if part.number is not None:
        beginning = _beginning(part.number, f"{seed}:{part.kind}", words, part.uncut or count)[:count]
        yield beginning
        count -= len(beginning)
    for start in range(0, count, most):
        yield random.choices(words, k=min(most, count - start))


def _beginning(number: int, seed: str, words: Sequence[Any], count: int) -> list[Any]:
    """Words that no other number's text of this kind begins with, as far as `count` words can say that.

    They are the digits of the number's place in a seeded order of all numbers.
    """
    base = len(words)
    length = min(count, _digits(base))
    size = base**length
    factor, shift = _order(seed, base, size)
    place = (factor * number + shift) % size
    digits = []
    for _ in range(length):
        place, digit = divmod(place, base)
        digits.append(words[digit])
    return digits[::-1]


def _digits(base: int) -> int:
    """How many digits of this base number `_DIFFERENT` texts."""
    length, size = 0, 1
    while base > 1 and size < _DIFFERENT:
        length, size = length + 1, size * base
    return length


@lru_cache
def _order(seed: str, base: int, size: int) -> tuple[int, int]:
    """Number n has place (factor * n + shift) % size: a permutation, as factor and size share no divisor."""
    random = Random(f"{seed}:{size}")
    while True:
        factor = random.randrange(1, size) if size > 1 else 1
        if gcd(factor, base) == 1:
            return factor, random.randrange(size)


def _joined(pieces: Sequence[Sequence[Any]], wording: Wording) -> Prompt:
    if wording.is_ids:
        return [token for piece in pieces for token in piece]
    first = [] if wording.first is None else [wording.first]
    return " ".join([*first, *(" ".join(piece) for piece in pieces if piece)])
