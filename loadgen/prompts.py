"""Requests as bytes: prompts made at the ledger's lengths, encoded in small steps ahead of their time.

Lengths travel as real prompts, never as numbers on the side, so that every server sees the same work. A
prompt of 100,000 tokens takes tens of milliseconds to make: the work is cut into steps well below a
millisecond, between which the loop reads and sends.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import msgspec

from ledgers.rows import RequestRow
from ledgers.vocabulary import text_pieces
from loadgen.dialects.dialect import Ask, Dialect
from loadgen.target import Target

TOKENS_PER_STEP = 1_000


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

    def steps(self, row: RequestRow, index: int) -> Generator[None, None, bytes]:
        """Encode one request in steps; the generator's return value is head and body."""
        prompt = row.prompt
        if prompt is None:
            pieces = []
            for piece in text_pieces(row.prompt_tokens, self.seed, index, TOKENS_PER_STEP):
                pieces.append(piece)
                yield
            prompt = " ".join(pieces)
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
            "Content-Length": str(body_bytes),
        }
        lines = [f"POST {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
