"""How far a client's stamps are from the truth: its rows against what the server did.

Pure. Client and server may count from zeros of their own: only durations are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise

import msgspec

from ledgers.rows import RequestRow


class Truth(msgspec.Struct, frozen=True):
    """When a server had read all of a request, and was about to write its tokens: each, if it kept that."""

    received_ns: int
    first_token_ns: int
    last_token_ns: int
    tokens: int
    token_ns: Sequence[int] | None = None


class StampErrors(msgspec.Struct, frozen=True):
    """What the client says minus what the server did, in ns and ascending: above 0 is dated too late.

    `first` and `last` are the times from the request to these tokens, one of each request. The others need
    the time of each token: `each` is from the request to any token, `gap` from one to the next, and `gaps`
    are these as the client measured them.
    """

    first: list[int]
    last: list[int]
    each: list[int]
    gap: list[int]
    gaps: list[int]
    tokens: int


def stamp_errors(rows: Iterable[RequestRow], truths: Mapping[str, Truth], requests: int) -> StampErrors:
    """The errors of all `requests` of a run; `truths` are by `request_id`, and may hold more.

    Raises ValueError unless each of them has a row, was completed and is known to the server, with as many
    tokens if the row counts them: a figure that leaves some out looks better than it is.
    """
    first, last, each, gap, gaps, tokens = [], [], [], [], [], 0
    for row in rows:
        to_first, to_last = _durations(row)
        truth = _truth_of(row, truths)
        first.append(to_first - (truth.first_token_ns - truth.received_ns))
        last.append(to_last - (truth.last_token_ns - truth.received_ns))
        errors = _of_each(row, truth)
        each += errors
        gap += _steps(errors)
        gaps += _steps(row.token_ns or ())
        tokens += truth.tokens
    if len(first) != requests:
        raise ValueError(f"{len(first)} rows for {requests} requests")
    return _ascending(first, last, each, gap, gaps, tokens)


def pooled(parts: Sequence[StampErrors]) -> StampErrors:
    """The errors of several runs as those of one."""
    first, last, each, gap, gaps = (
        list(chain.from_iterable(getattr(part, name) for part in parts))
        for name in ("first", "last", "each", "gap", "gaps")
    )
    return _ascending(first, last, each, gap, gaps, sum(part.tokens for part in parts))


def _ascending(
    first: list[int], last: list[int], each: list[int], gap: list[int], gaps: list[int], tokens: int
) -> StampErrors:
    return StampErrors(sorted(first), sorted(last), sorted(each), sorted(gap), sorted(gaps), tokens)


def _of_each(row: RequestRow, truth: Truth) -> list[int]:
    """The error of each token, where both sides know them."""
    if row.token_ns is None or truth.token_ns is None or row.sent_ns is None:
        return []
    ahead = row.sent_ns - truth.received_ns
    return [stamp - write - ahead for stamp, write in zip(row.token_ns, truth.token_ns, strict=True)]


def _steps(values: Sequence[int]) -> list[int]:
    return [later - earlier for earlier, later in pairwise(values)]


def _durations(row: RequestRow) -> tuple[int, int]:
    """From the send to the first and to the last token."""
    sent, first, last = row.sent_ns, row.first_token_ns, row.last_token_ns
    if row.outcome != "completed" or sent is None or first is None or last is None:
        raise ValueError(f"request {row.id}: {row.outcome}, {row.error or 'without a token'}")
    return first - sent, last - sent


def _truth_of(row: RequestRow, truths: Mapping[str, Truth]) -> Truth:
    truth = truths.get(row.request_id or "")
    if truth is None:
        raise ValueError(f"request {row.id}: the server does not know it as completed")
    counts = {row.tokens, len(row.token_ns) if row.token_ns else None} - {None, truth.tokens}
    if counts:
        raise ValueError(f"request {row.id}: not the {truth.tokens} tokens that the server wrote")
    return truth
