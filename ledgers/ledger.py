"""A planned ledger: the request rows to replay, in order of arrival, and where they came from."""

from __future__ import annotations

import hashlib

import msgspec

from ledgers.rows import RequestRow, encode


class Ledger(msgspec.Struct, kw_only=True):
    """Rows in FIFO order, `arrival_ns` non-decreasing, the first at 0. `notes` say what loading changed.

    `made`: it was drawn, and there is no file of it.
    """

    name: str
    rows: list[RequestRow]
    notes: list[str] = []
    made: bool = False

    def sha256(self) -> str:
        """A digest of what is replayed: ids, lengths, texts, what prompts share, and intended arrivals."""
        digest = hashlib.sha256()
        for row in self.rows:
            digest.update(encode((row.id, row.prompt_tokens, row.output_tokens, row.prompt, row.arrival_ns)))
            shared = (row.prefix, row.prefix_tokens, row.hash_ids, row.block_tokens)
            if any(shared):
                digest.update(encode(shared))
        return digest.hexdigest()
