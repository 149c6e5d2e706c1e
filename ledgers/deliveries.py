"""What servers delivered, held against what was asked, and how it came: lengths, counts, clumped streams.

Pure. Over all requests that completed, in the window or not; one pass, in constant memory. None of it changes
a figure: `warnings` say what a figure does not mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from ledgers.metrics import answered_early
from ledgers.rows import RequestRow

CLUMPED_SHARE = 0.2  # of the events: above it gaps between events are those of somebody who collects them
CACHED_SHARE = 0.2  # of the prompt tokens: above it TTFT is that of prompts the server knew
LEAST_GAPS = 20  # for a share of them to say anything
LEAST_EVENTS = 8  # that a stream must have to be judged as a whole
IN_ONE_PIECE = 0.9
SEVERAL_TOKENS = 1.05  # per event
SLOW_LOOP_MS = 5.0  # half of all seconds with a loop later than this: it is this client that collects
LATE_LOOP_MS = 10.0  # half of all seconds with a loop later than this: gaps of that size are its own


class Differences:
    """Delivered − asked, over those of which the server told what it delivered."""

    def __init__(self) -> None:
        self._n = self._equal = self._total = 0
        self._least: int | None = None
        self._most: int | None = None

    def add(self, difference: int) -> None:
        self._n += 1
        self._equal += not difference
        self._total += difference
        if self._least is None or difference < self._least:
            self._least = difference
        if self._most is None or difference > self._most:
            self._most = difference

    def figures(self) -> dict[str, Any] | None:
        if not self._n:
            return None
        return {
            "n": self._n,
            "as_planned": self._equal,
            "mean_difference": share(self._total, self._n),
            "min_difference": self._least,
            "max_difference": self._most,
        }


class Streams(msgspec.Struct):
    """Counts over streamed answers, as far as rows tell."""

    gaps: int = 0  # from one event to the next
    shared: int = 0  # of them, within one read
    judged: int = 0  # gaps of streams that a client was there for all the time
    judged_shared: int = 0
    long: int = 0  # streams of at least LEAST_EVENTS events
    in_one_piece: int = 0  # of them, those of which nearly all came in the reads of other events
    tokens: int = 0  # of streams of one choice whose tokens were counted otherwise than by their events
    events: int = 0  # of the same

    def add(self, row: RequestRow, *, missed: bool) -> None:
        """`missed`: the client did not run for a part of the time, so that what it read says less."""
        if row.first_token_ns is None or not row.events:
            return
        if row.shared_reads is not None:
            self.gaps += row.events - 1
            self.shared += row.shared_reads
            if not missed:
                self._judge(row.events - 1, row.shared_reads)
        if row.tokens is not None and row.token_source != "events" and (row.choices or 1) == 1:
            self.tokens += row.tokens
            self.events += row.events

    def _judge(self, gaps: int, shared: int) -> None:
        self.judged += gaps
        self.judged_shared += shared
        if gaps + 1 >= LEAST_EVENTS:
            self.long += 1
            self.in_one_piece += shared >= IN_ONE_PIECE * gaps


class Deliveries:
    """Add every row of a run; those that did not complete pass by.

    `absences`: from when to when the client did not run. How streams came in which it was away says nothing
    of who sent them.
    """

    def __init__(self, absences: Sequence[tuple[int, int]] = ()) -> None:
        self._absences = absences
        self._prompt = Differences()
        self._output = Differences()
        self._streams = Streams()
        self._sources: Counter[str] = Counter()
        self._cached = self._cached_of = 0
        self._completed = 0
        self._unseen = 0  # completed without a token that could be seen, though some were counted
        self._choices: set[int] = set()  # how many requests had, of those with several
        self._undercounted = 0  # by the server, against the events that came
        self._answered_early = 0
        self._reasoning_requests = 0
        self._reasoning_tokens: int | None = None

    def add(self, row: RequestRow) -> None:
        if row.outcome != "completed":
            return
        self._completed += 1
        self._streams.add(row, missed=any(_is_open(row, *absence) for absence in self._absences))
        self._unseen += unseen(row)
        if row.choices is not None and row.choices > 1:
            self._choices.add(row.choices)
        self._undercounted += undercounted(row)
        self._answered_early += answered_early(row)
        if row.token_source is not None:
            self._sources[row.token_source] += 1
        if row.tokens is not None and row.token_source != "events":
            self._output.add(row.tokens - row.output_tokens * (row.choices or 1))
        if row.usage_prompt_tokens is not None:
            self._prompt.add(row.usage_prompt_tokens - row.prompt_tokens)
            if row.cached_tokens is not None:
                self._cached += row.cached_tokens
                self._cached_of += row.usage_prompt_tokens
        if row.reasoning_tokens is not None:
            self._reasoning_tokens = (self._reasoning_tokens or 0) + row.reasoning_tokens
        self._reasoning_requests += reasoned(row)

    def figures(self) -> dict[str, Any]:
        """What goes into `summary.json`; None where no row tells."""
        streams = self._streams
        return {
            "lengths": {"prompt": self._prompt.figures(), "output": self._output.figures()},
            "tokens_per_event": share(streams.tokens, streams.events),
            "events_sharing_a_read_share": share(streams.shared, streams.gaps),
            "choices": {"min": min(self._choices), "max": max(self._choices)} if self._choices else None,
            "token_sources": dict(sorted(self._sources.items())),
            "cached_tokens_share": share(self._cached, self._cached_of),
            "reasoning": {"requests": self._reasoning_requests, "tokens": self._reasoning_tokens},
        }

    def warnings(self, loop_lag_p50_ms: float | None) -> list[str]:
        """What a reader of the latencies should know, with the numbers that it rests on."""
        return [
            *self._cached_prompts(),
            *self._without_ttft(),
            *_late_loop(loop_lag_p50_ms),
            *self._clumped(loop_lag_p50_ms),
            *self._tokens_and_events(),
        ]

    def _cached_prompts(self) -> list[str]:
        cached = share(self._cached, self._cached_of)
        if cached is None or cached <= CACHED_SHARE:
            return []
        return [
            f"{cached:.0%} of the prompt tokens came from the server's cache: TTFT is that of cached "
            "prompts (content shared by the ledger, attempts made again, or a --seed used before)"
        ]

    def _without_ttft(self) -> list[str]:
        found = []
        if self._unseen:
            found.append(
                f"in {self._unseen} of {self._completed} completed requests no token was seen (the server "
                "counted some): they are in E2E and throughput, not in TTFT"
            )
        if self._answered_early:
            found.append(
                f"in {self._answered_early} requests the first token came before the request was wholly "
                "sent: they have no TTFT from send"
            )
        return found

    def _clumped(self, loop_lag_p50_ms: float | None) -> list[str]:
        streams, found = self._streams, []
        slow = loop_lag_p50_ms is not None and loop_lag_p50_ms > SLOW_LOOP_MS
        if streams.judged >= LEAST_GAPS and streams.judged_shared > CLUMPED_SHARE * streams.judged:
            who = "a proxy or the server collects events"
            if slow:
                who = f"this client was slow to read (every other second {loop_lag_p50_ms:.0f} ms and more)"
            part = f"{streams.judged_shared / streams.judged:.0%}"
            clumped = f"{part} of the events came in the read of the one before"
            found.append(f"clumped streams: {clumped}; {who}, so ITL is not the server's")
        if streams.in_one_piece and not slow:
            found.append(
                f"{streams.in_one_piece} of {streams.long} streams of at least {LEAST_EVENTS} events came "
                "nearly in one piece: that is not really streaming"
            )
        return found

    def _tokens_and_events(self) -> list[str]:
        found = []
        per_event = share(self._streams.tokens, self._streams.events)
        if per_event is not None and per_event > SEVERAL_TOKENS:
            found.append(
                f"an event carried {per_event:.2f} tokens on average: ITL is by event, TPOT by token"
            )
        if by_events := self._sources["events"]:
            found.append(
                f"the server did not say how many tokens came in {by_events} of {self._sources.total()} "
                "requests: their events are counted, and an event may carry several tokens"
            )
        if self._undercounted:
            found.append(
                f"in {requests(self._undercounted)} the server counted fewer tokens than events with output "
                "came: its count is used"
            )
        return found


def _is_open(row: RequestRow, begin_ns: int, end_ns: int) -> bool:
    """Whether an answer was awaited or came in that time."""
    left_ns = row.sent_ns if row.sent_ns is not None else row.arrival_ns
    last_ns = row.last_token_ns
    return (left_ns is None or left_ns < end_ns) and (last_ns is None or last_ns > begin_ns)


def _late_loop(lag_p50_ms: float | None) -> list[str]:
    if lag_p50_ms is None or lag_p50_ms <= LATE_LOOP_MS:
        return []
    return [
        f"this client's loop was late by {lag_p50_ms:.0f} ms and more in half of all seconds: tokens that "
        "came meanwhile share a read, and ITL has gaps of that size"
    ]


def undercounted(row: RequestRow) -> bool:
    """Whether usage counts fewer tokens than events with output came. An event can carry several choices."""
    if row.token_source != "usage" or row.tokens is None or row.events is None:
        return False
    return (row.choices or 1) == 1 and row.tokens < row.events


def unseen(row: RequestRow) -> bool:
    """Whether a stream brought no token, though it was complete and its server counted some."""
    return bool(row.streamed and row.tokens) and row.first_token_ns is None


def reasoned(row: RequestRow) -> bool:
    """Whether reasoning came before the answer."""
    first, content = row.first_token_ns, row.first_content_ns
    return bool(row.reasoning_tokens) or (first is not None and content is not None and content > first)


def requests(count: int) -> str:
    return f"{count} request{'s' * (count != 1)}"


def share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
