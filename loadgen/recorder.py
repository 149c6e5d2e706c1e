"""One exchange, from stamped bytes to a row. Pure: every time comes in as an argument.

The recorder reads the HTTP response, the events and the dialect, notes what happened when, and decides the
outcome as soon as it is certain. Times inside are on the monotonic clock; `row` puts them on the run's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ledgers.rows import Outcome, Phase, RequestRow, TokenSource
from loadgen.dialects.dialect import MALFORMED, Dialect, Reading, error_body_text
from loadgen.http1 import ProtocolError, ResponseReader
from loadgen.sse import SseEvent, SseReader

MAX_ERROR_BODY_BYTES = 65_536
MAX_ERROR_CHARS = 300
_EMPTY: tuple[Outcome, str] = ("empty", "the answer ended without any output")


class ReadCounts:
    """How many reads carried generated output, and how many of them more than one event of it.

    A read dates only its last event: those before it came earlier by an unknown time.
    """

    def __init__(self) -> None:
        self.reads = 0
        self.with_several_events = 0


class Recorder:
    """Give it `connected`, `sent`, `feed` and `lost` as they happen; `finished` says that the row is decided.

    `drained` says that the HTTP message is over as well, so that the connection has nothing left to say.
    """

    def __init__(
        self,
        planned: RequestRow,
        dialect: Dialect,
        *,
        record_text: bool = False,
        counts: ReadCounts | None = None,
    ) -> None:
        self.planned = planned
        self.outcome: Outcome | None = None
        self.error: str | None = None
        self.finish_reason: str | None = None
        self.token_ns: list[int] = []  # one stamp per event that carries generated output
        self.sent_ns: int | None = None
        self.headers_ns: int | None = None
        self.end_ns: int | None = None
        self.counts = ReadCounts() if counts is None else counts
        self._last_token_ns: int | None = None
        self._connected = False
        self._dialect = dialect
        self._http = ResponseReader()
        self._sse = SseReader()
        self._streamed: bool | None = None  # None until the first byte of a body says which it is
        self._whole: list[bytes] = []  # a body that is no event stream
        self._whole_bytes = 0
        self._usage_tokens: int | None = None
        self._seen: set[int] = set()
        self._finished: set[int] = set()
        self._done = False
        self._record_text = record_text
        self._text: list[str] = []
        self._reasoning: list[str] = []

    @property
    def finished(self) -> bool:
        return self.outcome is not None

    @property
    def drained(self) -> bool:
        return self._http.complete

    @property
    def reusable(self) -> bool:
        """Whether the connection may carry another request."""
        return self._http.complete and self._http.keep_alive and self.sent_ns is not None

    @property
    def answered(self) -> bool:
        """Whether any byte of a response has come."""
        return self._http.started

    @property
    def phase(self) -> Phase:
        if not self._connected:
            return "connect"
        if self.headers_ns is not None:
            return "streaming" if self._last_token_ns is not None else "first_token"
        return "send" if self.sent_ns is None else "headers"

    def connected(self) -> None:
        self._connected = True

    def sent(self, ns: int) -> None:
        """The last byte of the request went to the kernel.

        The first time counts: if a dead connection made a second one necessary, we were not late.
        """
        if self.sent_ns is None:
            self.sent_ns = ns

    def feed(self, data: bytes, ns: int) -> None:
        """Bytes of the response, with the time at which they reached this machine."""
        fault = None
        try:
            pieces: Sequence[bytes] = self._http.feed(data)
        except ProtocolError as error:
            pieces, fault = error.body, str(error)
        if self.headers_ns is None and self._http.head_complete:
            self.headers_ns = ns
        self._read_body(pieces, ns)
        if fault is not None:
            self._end("stream_error", fault, ns)
        elif self._http.complete and self.outcome is None:
            self._message_over(ns)

    def lost(self, ns: int, why: str | None) -> None:
        """The connection ended: closed by the peer (`why` None) or broken."""
        if why is None and self._http.feed_eof():
            if self.outcome is None:
                self._message_over(ns)
        elif not self._http.started:
            self._end("connect_error", why or "the server closed the connection without an answer", ns)
        else:
            self._end("truncated", why or "the connection closed before the body was complete", ns)

    def stop(self, outcome: Outcome, ns: int, why: str | None = None) -> None:
        """We end it ourselves. A stream that had said it was over has completed nevertheless."""
        self._end(outcome, why, ns)

    def _read_body(self, pieces: Sequence[bytes], ns: int) -> None:
        tokens_before = len(self.token_ns)
        for piece in pieces:
            if self.outcome is not None:  # whatever comes later says nothing, in this read as in the next
                break
            if self._streamed is None:
                self._streamed = self._is_stream(piece)
            if self._streamed:
                self._read_events(self._sse.feed(piece), ns)
            else:
                self._keep(piece)
        tokens = len(self.token_ns) - tokens_before
        if tokens:
            self.counts.reads += 1
            self.counts.with_several_events += tokens > 1

    def _is_stream(self, piece: bytes) -> bool | None:
        """None while only blanks have come, which say nothing."""
        if not self._ok:
            return False
        if self._http.headers.get("content-type", "").lower().startswith("text/event-stream"):
            return True
        start = piece.lstrip()
        return None if not start else not start.startswith((b"{", b"["))

    @property
    def _ok(self) -> bool:
        return self._http.status is not None and 200 <= self._http.status < 300

    def _keep(self, piece: bytes) -> None:
        if self._ok or self._whole_bytes < MAX_ERROR_BODY_BYTES:
            self._whole.append(piece)
            self._whole_bytes += len(piece)

    def _read_events(self, events: list[SseEvent], ns: int) -> None:
        for event in events:
            try:
                reading = self._dialect.read_event(event)
            except MALFORMED as error:
                self._end("stream_error", f"malformed event: {error}", ns)
                return
            if reading.token:
                self.token_ns.append(ns)
                self._last_token_ns = ns
            self._note(reading)
            if reading.error is not None:
                self._end("stream_error", reading.error, ns)
                return
            if reading.done:
                self._done = True
                self._end("completed", None, ns)
                return

    def _note(self, reading: Reading) -> None:
        if reading.usage_tokens is not None:
            self._usage_tokens = reading.usage_tokens
        if reading.seen:
            self._seen.update(reading.seen)
        if reading.finished:
            self._finished.update(reading.finished)
            if 0 in reading.finished or self.finish_reason is None:
                self.finish_reason = reading.finish_reason
        if self._record_text:
            self._text.append(reading.text)
            self._reasoning.append(reading.reasoning)

    def _message_over(self, ns: int) -> None:
        if self._streamed is False and self._ok:
            self._read_whole(ns)
        else:
            self._end("truncated", "the stream ended without an end mark", ns)

    def _read_whole(self, ns: int) -> None:
        """A JSON body where a stream was asked for: it has an end, but no first token."""
        try:
            reading = self._dialect.read_body(b"".join(self._whole))
        except MALFORMED as error:
            self._end("stream_error", f"malformed answer: {error}", ns)
            return
        self._note(reading)
        self._done = reading.error is None
        self._last_token_ns = ns if reading.token else None
        self._end("stream_error", reading.error, ns)

    def _end(self, outcome: Outcome, why: str | None, ns: int) -> None:
        """Decide, once. `outcome` is what it is unless the response itself says otherwise."""
        if self.outcome is not None:
            return
        self.end_ns = ns
        if self._http.status is not None and self.headers_ns is not None and not self._ok:
            self.outcome, self.error = "http_error", self._http_error()
        elif outcome == "stream_error" and not self._done:
            self.outcome, self.error = outcome, why
        elif self._over:
            self.outcome, self.error = ("completed", None) if self._has_output else _EMPTY
        elif outcome == "truncated" and self._http.complete and not self._has_output:
            self.outcome, self.error = _EMPTY
        else:
            self.outcome, self.error = outcome, why

    @property
    def _over(self) -> bool:
        """The stream said that it ended: its end mark, or a finish reason for every choice seen."""
        return self._done or (bool(self._finished) and self._finished >= self._seen)

    @property
    def _has_output(self) -> bool:
        return self._last_token_ns is not None or bool(self._usage_tokens)

    def _http_error(self) -> str:
        """The message of an error body, in whatever shape, or its beginning."""
        body = b"".join(self._whole)
        text = error_body_text(body) or body.decode("utf-8", "replace")
        return f"HTTP {self._http.status}: {' '.join(text.split())}".rstrip(": ")

    def _tokens(self) -> tuple[int | None, TokenSource | None]:
        # Some servers put an all-zero usage on all chunks but the last: a zero beside events is not believed.
        if self._usage_tokens is not None and (self._usage_tokens or not self.token_ns):
            return self._usage_tokens, "usage"
        if self._streamed or (self._streamed is None and self.headers_ns is not None):
            return len(self.token_ns), "events"
        return None, None

    def row(
        self, t0_ns: int, *, record_tokens: bool = False, scrub: Callable[[str], str] = str
    ) -> RequestRow:
        """The measured row; times count from `t0_ns`. `scrub` takes secrets out of what the server said."""
        plan = self.planned
        tokens, source = self._tokens()
        return RequestRow(
            id=plan.id,
            request_id=plan.request_id,
            class_=plan.class_,
            session=plan.session,
            turn=plan.turn,
            prompt_tokens=plan.prompt_tokens,
            output_tokens=plan.output_tokens,
            arrival_ns=plan.arrival_ns,
            sent_ns=_since(self.sent_ns, t0_ns),
            headers_ns=_since(self.headers_ns, t0_ns),
            first_token_ns=_since(self.token_ns[0] if self.token_ns else None, t0_ns),
            last_token_ns=_since(self._last_token_ns, t0_ns),
            end_ns=_since(self.end_ns, t0_ns),
            tokens=tokens,
            token_source=source,
            events=len(self.token_ns) if self.headers_ns is not None else None,
            streamed=self._streamed if self._ok else None,
            outcome=self.outcome,
            phase=None if self.outcome == "completed" else self.phase,
            http_status=self._http.status,
            error=None if self.error is None else scrub(self.error)[:MAX_ERROR_CHARS],
            finish_reason=None if self.finish_reason is None else scrub(self.finish_reason),
            token_ns=[ns - t0_ns for ns in self.token_ns] if record_tokens else None,
            text=scrub("".join(self._text)) if self._record_text else None,
            reasoning_text=scrub("".join(self._reasoning)) if self._record_text else None,
        )


def unsent(planned: RequestRow, outcome: Outcome = "not_sent") -> RequestRow:
    """The row of a request that never left."""
    return msgspec.structs.replace(planned, prompt=None, prefix=None, outcome=outcome)


def _since(ns: int | None, t0_ns: int) -> int | None:
    return None if ns is None else ns - t0_ns
