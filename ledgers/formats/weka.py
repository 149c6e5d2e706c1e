"""Agentic coding sessions: a JSON object for each, with times in seconds of the session's own clock.

A session's `requests` are calls (`type` n or s) and sub-agents, which hold requests of their own and become
sessions beside it. A `hash_id` labels `block_size` tokens; in the scope `local` it means nothing outside its
session. https://github.com/callanjfox/kv-cache-tester
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from io import BufferedReader
from itertools import count
from typing import Any, NamedTuple

import msgspec

from ledgers.formats import fields
from ledgers.formats.documents import raw_documents
from ledgers.formats.fields import Skipped, TraceRow, Written, located
from ledgers.formats.head import Head

name = "weka"
MAIN, SUBAGENT = "main", "subagent"
T = int | Fraction


class Session(msgspec.Struct):
    id: Any = None
    block_size: Any = None
    hash_id_scope: Any = "local"
    requests: list[msgspec.Raw] = []  # each is decoded by itself: a long session has millions of hash ids


class Request(msgspec.Struct, rename={"input": "in", "output": "out"}):
    t: Any = None
    type: Any = None
    input: Any = None
    output: Any = None
    hash_ids: Any = None
    think_time: Any = None
    agent_id: Any = None
    requests: list[msgspec.Raw] | None = None


class Clocked(msgspec.Struct):
    """No more of a session than its times."""

    t: Any = None
    requests: list[Clocked] = []


class _Stream(NamedTuple):
    """The requests of an agent: those of the session itself, or of a sub-agent at work in it."""

    name: str
    label: str
    origin_ns: T | None
    requests: list[msgspec.Raw]


_session = msgspec.json.Decoder(Session, float_hook=Written)
_request = msgspec.json.Decoder(Request, float_hook=Written)
_clocked = msgspec.json.Decoder(Clocked, float_hook=Written)


def detects(head: Head) -> bool:
    return "block_size" in head.keys and not head.keys.isdisjoint({"requests", "hash_id_scope"})


def read(file: BufferedReader, source: str) -> Iterator[TraceRow | Skipped]:
    labels = count()
    scope = None
    for number, (line, data) in enumerate(raw_documents(file, source), 1):
        try:
            session = _session.decode(data)
            reader = _Reader(line, session, f"session {number}", labels, nested_clocks(data))
            if scope not in (None, reader.scope):
                raise ValueError(f"hash_id_scope is {reader.scope}, but {scope} above")
            scope = reader.scope
            yield from reader.rows()
        except (msgspec.DecodeError, RecursionError) as error:
            raise located(source, line, f"not a session that can be read: {error}") from None
        except ValueError as error:
            raise located(source, line, error) from None


def nested_clocks(data: bytes) -> bool:
    """Whether sub-agents count from their own begin: then some of their times are before it."""
    return _some_before(_clocked.decode(data))


def _some_before(agent: Clocked) -> bool:
    for called in agent.requests:
        begin_ns = _time_ns(called.t) or 0 if called.requests else 0
        times = (_time_ns(inner.t) for inner in called.requests)
        if any(time_ns is not None and time_ns < begin_ns for time_ns in times):
            return True
        if _some_before(called):
            return True
    return False


def _time_ns(t: Any) -> T | None:
    """None if there is none."""
    return None if fields.missing(t) else fields.seconds_ns(t, "t")


class _Reader:
    """The rows of a session, those of a sub-agent where it is called."""

    def __init__(
        self, line: int, session: Session, name: str, labels: Iterator[int], nested_clocks: bool
    ) -> None:
        self.scope = session.hash_id_scope
        if self.scope not in ("local", "global"):
            raise ValueError(f"hash_id_scope is {fields.shown(self.scope)}, not local or global")
        self._line = line
        self._nested_clocks = nested_clocks
        self._block_tokens = fields.whole(session.block_size, "block_size", least=1)
        self._labels = labels
        self._label_of_id: dict[int, int] = {}
        self._turns: Counter[str] = Counter()
        self._main = _Stream(fields.optional_label(session.id, "id") or name, MAIN, 0, session.requests)

    def rows(self) -> Iterator[TraceRow | Skipped]:
        return self._stream(self._main)

    def _stream(self, stream: _Stream) -> Iterator[TraceRow | Skipped]:
        before_ns: T | None = None
        for place, raw in enumerate(stream.requests):
            request = _request.decode(raw)
            try:
                called = self._called(stream, request, place)
                row = None if called else self._row(stream, request, before_ns)
            except ValueError as error:
                raise ValueError(f"requests[{place}] of {stream.name}: {error}") from None
            if called:
                yield from self._stream(called)
            elif row:
                before_ns = row.time_ns if isinstance(row, TraceRow) else before_ns
                yield row

    def _called(self, stream: _Stream, request: Request, place: int) -> _Stream | None:
        if request.requests is None:
            return None
        agent = fields.optional_label(request.agent_id, "agent_id") or f"agent {place}"
        return _Stream(f"{stream.name}/{agent}", SUBAGENT, self._origin_ns(stream, request), request.requests)

    def _origin_ns(self, stream: _Stream, request: Request) -> T | None:
        """What a sub-agent's times count from; None if nothing tells."""
        if not self._nested_clocks:
            return 0
        begin_ns = _time_ns(request.t)
        return None if begin_ns is None or stream.origin_ns is None else stream.origin_ns + begin_ns

    def _row(self, stream: _Stream, request: Request, before_ns: T | None) -> TraceRow | Skipped:
        own_ns = _time_ns(request.t)
        if own_ns is None or stream.origin_ns is None:
            return Skipped(self._line, fields.NO_TIME)
        time_ns = stream.origin_ns + own_ns
        hash_ids = None if request.hash_ids is None else fields.hash_ids(request.hash_ids, "hash_ids")
        turn = self._turns[stream.name]
        self._turns[stream.name] += 1
        return TraceRow(
            line=self._line,
            time_ns=time_ns,
            prompt_tokens=fields.tokens(request.input, "in"),
            output_tokens=fields.tokens(request.output, "out"),
            class_=stream.label,
            session=stream.name,
            turn=turn,
            think_ns=_think_ns(request.think_time, time_ns, before_ns),
            hash_ids=self._unique(hash_ids) if hash_ids else None,
            block_tokens=self._block_tokens if hash_ids else None,
        )

    def _unique(self, hash_ids: list[int]) -> list[int]:
        """Labels that no other session has; one namespace for a session and its sub-agents."""
        if self.scope == "global":
            return hash_ids
        known = self._label_of_id
        return [known[id] if id in known else known.setdefault(id, next(self._labels)) for id in hash_ids]


def _think_ns(think_time: Any, time_ns: T, before_ns: T | None) -> int | None:
    """The pause before a turn; never longer than since the turn before was sent.

    Some pauses are: they count from the last call whose end was recorded, over calls without one.
    """
    if before_ns is None or fields.missing(think_time):
        return None
    return round(max(0, min(fields.seconds_ns(think_time, "think_time"), time_ns - before_ns)))
