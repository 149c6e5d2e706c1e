"""Damaged streams against the reader: whatever comes, an exchange has one outcome and a row that can be kept.

By hand: `python -m tests.fuzz_streams --count 200000 --seed 1`. Each case depends on its seed alone; what
fails is printed with it, and `--count 1 --seed N` plays it again.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from ledgers import metrics
from ledgers.rows import RequestRow, decode_row, encode
from loadgen.dialects import DIALECTS
from loadgen.recorder import Recorder
from tests.transcripts import Transcript, load_all

ALL = load_all()
MOST_BYTES = 400_000
SLOW_S = 2.0  # a case of some kilobytes takes a millisecond
JUNK = (
    *(b"\n", b"\r", b"\n\n", b"\r\n\r\n", b":", b"data:", b"data: ", b"event: error\n", b"\xef\xbb\xbf"),
    *(b"\x00", b"\xff\xfe", b"\xe2\x80\xa8", b"{", b"}", b"[", b"]", b'"', b"\\", b"\\ud83d", b",", b"null"),
    *(b"NaN", b"-1", b"1e999", b"9" * 400, b"9" * 5000, b"[DONE]", b"data: [DONE]\n\n", b"0\r\n\r\n"),
    *(b"ffffffffffffffff\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b'"error":', b'"error":null,', b"<html>"),
    *(b"[" * 3000, b'{"a":' * 3000, b"Content-Length: 5\r\n", b" " * 500, b"\n" * 500),
)
ODD = (None, True, False, 0, -1, 2**70, 1e300, "", "x", "0", [], [1], [[]], {}, {"a": 1}, [{}], {"": None})
HEADERS = (
    *("content-type: application/json", "content-type: text/html", "content-type:", "x: y"),
    *("content-encoding: gzip", "content-encoding: br", "content-encoding: deflate", "connection: close"),
    *("retry-after: 1e999", "retry-after: Mon, 99 Foo 2026 99:99:99", "retry-after-ms: nan", "date: x"),
    *(f"content-length: {'9' * 5000}", "transfer-encoding: gzip", "content-length: 7"),
)
OBJECT = re.compile(rb"\s*{.*}\s*", re.DOTALL)
EVENT = re.compile(rb"(?<=data: ){.*}(?=[\r\n])")


class Case(NamedTuple):
    """`exact` says that any cut of the wire must read alike; `tolerable`, that no fault was put in."""

    api: str
    wire: bytes
    end: str
    exact: bool
    tolerable: bool


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Some bytes flipped, taken away, doubled, moved, put in from elsewhere, or made absurd."""
    for _ in range(rng.choice((1, 1, 2, 5))):
        start, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        if rng.random() < 0.7:
            end = min(end, start + rng.randrange(40))
        piece = data[start:end]
        change: Callable[[], bytes] = rng.choice(
            (
                lambda piece=piece: bytes(byte ^ (1 << rng.randrange(8)) for byte in piece),
                lambda: b"",
                lambda piece=piece: piece * rng.choice((2, 3, 50)),
                lambda piece=piece: piece + rng.choice(JUNK),
                lambda: rng.choice(JUNK),
                lambda: _excerpt(rng),
                lambda piece=piece: re.sub(rb"\d+", b"9" * rng.choice((1, 19, 400)), piece),
            )
        )
        data = data[:start] + change() + (data[end:] if rng.random() < 0.95 else b"")
        data = data[:MOST_BYTES]
    return data


def _excerpt(rng: random.Random) -> bytes:
    body = b"".join(rng.choice(ALL).parts)[:20_000]
    start, end = sorted(rng.randrange(len(body) + 1) for _ in range(2))
    return body[start:end]


def odd_leaf(body: bytes, rng: random.Random) -> bytes | None:
    """One value in one JSON event replaced by one of another type; None where that may be a fault."""
    whole = [match for match in (OBJECT.fullmatch(body),) if match]
    events = [match for match in (*EVENT.finditer(body), *whole) if match.end() - match.start() < 20_000]
    if not events:
        return None
    match = rng.choice(events)
    try:
        value = json.loads(match[0])
    except ValueError:
        return None
    places = list(_places(value, ()))
    if not places:
        return None
    parent, key, path = rng.choice(places)
    if "error" in path:
        return None
    parent[key] = rng.choice(ODD)
    return body[: match.start()] + json.dumps(value).encode() + body[match.end() :]


def _places(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, Any, tuple[Any, ...]]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inner:
        yield value, key, (*path, key)
        yield from _places(child, (*path, key))


def made(seed: int) -> Case:
    """The case of this seed."""
    rng = random.Random(seed)
    case = rng.choice(ALL)
    body = b"".join(case.parts)
    tolerable, exact, headers = False, True, b""
    kind = rng.randrange(8)
    if kind <= 1:
        leaf = odd_leaf(body, rng)
        tolerable = leaf is not None and case.expect["outcome"] in ("ok", "truncated") and case.status == 200
        body = body if leaf is None else leaf
    elif kind <= 4:
        body = mutated(body, rng)
    elif kind == 5:
        headers, body, exact = _odd_headers(body, rng)
    elif kind == 6:
        body += b"".join(rng.choice(ALL).parts)
    wire = _wire(case, headers, body, rng)
    if kind == 7 or rng.random() < 0.1:
        wire, tolerable = mutated(wire, rng), False
    api = case.api if rng.random() < 0.8 or tolerable else rng.choice(sorted(DIALECTS))
    return Case(api, wire, rng.choice(("eof", "eof", "reset", "stop")), exact, tolerable)


def _odd_headers(body: bytes, rng: random.Random) -> tuple[bytes, bytes, bool]:
    lines = rng.sample(HEADERS, rng.choice((1, 2)))
    packed = any("content-encoding" in line for line in lines)
    if packed and rng.random() < 0.8:
        body = gzip.compress(body, 1)
        body = mutated(body, rng) if rng.random() < 0.5 else body
        body = body[: rng.randrange(len(body) + 1)] if rng.random() < 0.3 else body
    # A fault in packed bytes is noticed with the read that has it, and with what else is in that read.
    return "".join(f"{line}\r\n" for line in lines).encode(), body, not packed


def _wire(case: Transcript, headers: bytes, body: bytes, rng: random.Random) -> bytes:
    head = case.head
    if case.framing == "content-length":
        head = re.sub(rb"Content-Length: \d+", b"Content-Length: %d" % len(body), head)
    head = head[:-2] + headers + b"\r\n"
    chunks = filter(None, cut(body, rng, 6))
    return head + b"".join(case.framed(chunks)) + case.end


def cut(data: bytes, rng: random.Random, pieces: int) -> list[bytes]:
    borders = sorted({0, len(data), *(rng.randrange(len(data) + 1) for _ in range(pieces))})
    return [data[start:end] for start, end in pairwise(borders)]


def played(case: Case, segments: list[bytes]) -> RequestRow:
    """Feed the segments to a recorder, end the exchange, and look at the row that is left."""
    planned = RequestRow(id="f", prompt_tokens=1, output_tokens=1, arrival_ns=0)
    recorder = Recorder(planned, DIALECTS[case.api](), record_text=True)
    recorder.connected()
    recorder.sent(0)
    decided = None
    for ns, segment in enumerate(segments, 1):
        recorder.feed(segment, ns)
        decided = decided or recorder.outcome
        assert recorder.outcome == decided, "an outcome changed"
    ns = len(segments) + 1
    if case.end == "stop":
        recorder.stop("timeout", ns, "too slow")
    else:
        recorder.lost(ns, None if case.end == "eof" else "Connection reset by peer")
    assert recorder.outcome is not None, "no outcome"
    assert decided in (None, recorder.outcome), "an outcome changed at the end"
    row = recorder.row(0, record_tokens=True)
    check(row)
    return row


def check(row: RequestRow) -> None:
    """What holds of any row: it can be written and read, its times are in order, and it can be counted."""
    assert decode_row(encode(row)) == row, "the row does not survive writing"
    assert (row.error is None) == (row.outcome == "completed"), "an error without a failure, or the reverse"
    times = row.token_ns or []
    assert times == sorted(times), "token times out of order"
    stamps = (row.headers_ns, row.first_token_ns, row.first_content_ns, row.last_token_ns, *times)
    assert row.end_ns is not None, "no end"
    assert all(stamp <= row.end_ns for stamp in stamps if stamp is not None), "a stamp behind the end"
    if row.first_token_ns is not None and row.last_token_ns is not None:
        assert row.first_token_ns <= row.last_token_ns, "the last token before the first"
    assert (row.tokens or 0) >= 0, "a negative count"
    metrics.tpot_ns(row), metrics.gaps_ns(row), metrics.distributed_ns(row)


def reading(row: RequestRow) -> tuple[Any, ...]:
    """What does not depend on when which bytes came."""
    counts = row.tokens, row.token_source, row.usage_prompt_tokens, row.events, row.choices, row.token_choices
    return row.outcome, row.error, row.finish_reason, row.text, row.reasoning_text, row.streamed, *counts


def run(seed: int) -> RequestRow:
    """Play one case twice, in one piece and in several. AssertionError or whatever else went wrong."""
    case = made(seed)
    rng = random.Random(~seed)
    whole = played(case, [case.wire])
    pieces = cut(case.wire, rng, rng.choice((1, 5, 50)))
    if len(case.wire) < 5_000 and rng.random() < 0.1:
        pieces = [bytes([byte]) for byte in case.wire]
    parted = played(case, pieces)
    if case.exact:
        assert reading(whole) == reading(parted), (
            f"{reading(whole)} in one piece, {reading(parted)} in several"
        )
    if case.tolerable:
        assert whole.outcome != "stream_error", f"a leaf of another type is no error: {whole.error}"
    return whole


def fuzz(seeds: range) -> Counter[str]:
    """Run the cases; the outcomes, counted. The seed of the first that fails goes with its exception."""
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        began = time.perf_counter()
        try:
            outcomes[str(run(seed).outcome)] += 1
            assert time.perf_counter() - began < SLOW_S, "too slow"
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began = time.perf_counter()
    outcomes = fuzz(range(options.seed, options.seed + options.count))
    print(f"{options.count} cases in {time.perf_counter() - began:.0f} s: {dict(outcomes.most_common())}")


if __name__ == "__main__":
    main()
