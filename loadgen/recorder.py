"""One exchange, from stamped bytes to a row. Pure: every time comes in as an argument.

The recorder reads the HTTP response, the events and the dialect, notes what happened when, and decides the
outcome as soon as it is certain. Times inside are on the monotonic clock; `row` puts them on the run's.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress

from ledgers.rows import Outcome, Phase, RequestRow, TokenSource, without_plan
from loadgen.alike import Alike
from loadgen.answers import BOM, condensed, is_stream, retry_after_s
from loadgen.dialects.dialect import MALFORMED, Dialect, Output, Reading, Usage, error_body_text
from loadgen.http1 import ProtocolError, ResponseReader
from loadgen.inflate import CODINGS, Inflater
from loadgen.markup import page_text
from loadgen.sse import SseEvent, SseReader
from loadgen.token_times import ReadCounts, TokenTimes

MAX_ERROR_BODY_BYTES = 65_536
MAX_HELD_BYTES = 64 << 20
"""Of one event, or of one answer that is no stream: a server that never ends it must not fill the memory."""
MAX_ERROR_CHARS = 300
_BEGINNING_BYTES = 1_000  # more than is shown: what is cut before it is scrubbed can leave half a secret
NO_API = "neither an event stream nor JSON"
_LESSONS = 4  # events from which it is tried to learn what the next ones look like, while none does
_EMPTY: tuple[Outcome, str] = ("empty", "the answer ended without any output")


class Recorder:
    """Give it `connected`, `sent`, `feed` and `lost` as they happen; `finished` says that the row is decided.

    `drained` says that the HTTP message is over as well, so that the connection has nothing left to say.
    `due_ns` is to be set where the run lets the request go at another time than its intended arrival.
    """

    def __init__(
        self,
        planned: RequestRow,
        dialect: Dialect,
        *,
        choices: int = 1,
        record_text: bool = False,
        counts: ReadCounts | None = None,
    ) -> None:
        self.planned = planned
        self._choices_asked = choices
        self.due_ns: int | None = None
        self.outcome: Outcome | None = None
        self.error: str | None = None
        self.finish_reason: str | None = None
        self.sent_ns: int | None = None
        self.headers_ns: int | None = None
        self.end_ns: int | None = None
        self.usage = Usage()
        self.retry_after_s: float | None = None
        self.output: list[Output] = []
        """What was generated, if `record_text`."""
        self._tokens = TokenTimes(ReadCounts() if counts is None else counts)
        self._connect_ns: int | None = None
        self._send_start_ns: int | None = None
        self._token_ids: int | None = None
        self._timed = Usage()
        self._connected = False
        self._dialect = dialect
        self._http = ResponseReader()
        self._inflater: Inflater | None = None
        self._sse = SseReader()
        self._streamed: bool | None = None  # None until the beginning of a body says which it is
        self._whole = bytearray()  # a body that is no event stream, or not known to be one
        self._told: dict[tuple[int, str], str] = {}  # whole texts, where events repeat what came before
        self._seen: set[int] = set()
        self._finished: set[int] = set()
        self._done = False
        self._over_ns: int | None = None
        self._record_text = record_text
        self._clean = False  # exactly between two chunks, and two events
        self._alike: Alike | None = None
        self._lessons = _LESSONS
        self._example: Output | None = None  # what the last event generated, if it said nothing else

    @property
    def finished(self) -> bool:
        return self.outcome is not None

    @property
    def drained(self) -> bool:
        return self._http.complete or self._http.broken

    @property
    def reusable(self) -> bool:
        """Whether the connection may carry another request."""
        return self._http.complete and self._http.keep_alive and self.sent_ns is not None

    @property
    def answered(self) -> bool:
        """Whether any byte of a response has come."""
        return self._http.started

    @property
    def usual_end(self) -> bytes | None:
        """How a token like those before ends: it says nothing that anybody waits for."""
        return self._alike.end if self._alike is not None and self._clean else None

    @property
    def token_ns(self) -> list[int]:
        """A time for each event, and choice, that carries generated output."""
        return self._tokens.ns

    @property
    def last_token_ns(self) -> int | None:
        return self._tokens.last_ns

    @property
    def over_ns(self) -> int | None:
        """When the last event came of a stream that said how it finished, and not that it is at its end."""
        all_finished = len(self._finished) >= self._choices_asked and self._finished >= self._seen
        return self._over_ns if all_finished else None

    @property
    def http_status(self) -> int | None:
        return self._http.status

    @property
    def server_headers(self) -> dict[str, str]:
        return self._http.headers

    @property
    def error_body(self) -> bytes:
        """The beginning of the body of an answer that is an error."""
        return bytes(self._whole)

    @property
    def phase(self) -> Phase:
        if not self._connected:
            return "connect"
        if self.headers_ns is not None:
            return "streaming" if self._tokens.last_ns is not None else "first_token"
        return "send" if self.sent_ns is None else "headers"

    def connected(self, waited_ns: int | None = None) -> None:
        """There is a connection; `waited_ns` is how long it took to open, None where one was open."""
        self._connected = True
        if self._send_start_ns is None:  # what a second try waits for is no part of the first one's lag
            self._connect_ns = waited_ns

    def sending(self, ns: int) -> None:
        """The first byte of the request goes to the kernel; as with the last one, the first time counts."""
        if self._send_start_ns is None:
            self._send_start_ns = ns

    def sent(self, ns: int) -> None:
        """The last byte of the request went to the kernel.

        The first time counts: if a dead connection made a second one necessary, we were not late.
        """
        if self.sent_ns is None:
            self.sent_ns = ns

    def feed(self, data: bytes, ns: int) -> None:
        """Bytes of the response, with the time at which they reached this machine."""
        events_before = self._tokens.events
        while data:
            if self._alike is not None and self._clean:
                data = self._read_alike(self._alike, data, ns)
            first = len(data) if not self._lessons else self._http.first_part(data)
            self._read_anew(data[:first], ns)
            data = data[first:]
        if self._tokens.events > events_before and self._streamed:
            self._tokens.count_read(self._tokens.events - events_before)

    def take_usual(self, pieces: Sequence[tuple[bytes, int]]) -> int:
        """Take those from the first on that are a token each, like the ones before; how many they are.

        The same as to feed them, for a third of the cost.
        """
        alike, stamps = self._alike, []
        if alike is None or not self._clean or self._record_text:
            return 0
        for data, ns in pieces:
            if not alike.matches(data):
                break
            stamps.append(ns)
        if stamps:
            self._usual_tokens(stamps)
            self._tokens.count_single_reads(len(stamps))
        return len(stamps)

    def _usual_tokens(self, stamps: Sequence[int]) -> None:
        """Tokens of the first choice came at these times, in events like one before."""
        self._lessons = _LESSONS
        self._over_ns = stamps[-1]
        self._tokens.add_usual(stamps)

    def _read_anew(self, data: bytes, ns: int) -> None:
        """Read by all the rules; learn from a single event, alone in its chunk, how the next may look."""
        if not data:
            return
        was_clean, self._example = self._clean, None
        self._read(data, ns)
        self._clean = (
            self._http.between_chunks
            and self._sse.between
            and self._inflater is None
            and self.outcome is None
        )
        if was_clean and self._clean and self._lessons and self._example is not None:
            self._lessons -= 1
            self._alike = Alike.of(data, self._example)

    def _read_alike(self, alike: Alike, data: bytes, ns: int) -> bytes:
        """Take the events that are like one before; what remains is to be read."""
        texts, used = alike.texts(data)
        if not texts:
            return data
        self._usual_tokens([ns] * len(texts))
        if self._record_text:
            self.output += [alike.output(text) for text in texts]
        return data[used:]

    def _read(self, data: bytes, ns: int) -> None:
        fault = None
        try:
            pieces: Sequence[bytes] = self._http.feed(data)
        except ProtocolError as error:
            pieces, fault = error.body, str(error)
        if self.headers_ns is None and self._http.head_complete:
            self._head(ns)
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

    def _head(self, ns: int) -> None:
        self.headers_ns = ns
        self.retry_after_s = retry_after_s(self._http.headers)
        coding = self._http.headers.get("content-encoding", "identity").strip().lower()
        if coding in CODINGS:
            self._inflater = Inflater()
        elif coding not in ("identity", "") and self._ok:
            self._end("stream_error", f"Content-Encoding {coding}, which was not asked for", ns)

    def _read_body(self, pieces: Sequence[bytes], ns: int) -> None:
        try:
            for piece in pieces:
                for part in (piece,) if self._inflater is None else self._inflater.feed(piece):
                    if self.outcome is not None:  # what comes later says nothing, in this read or the next
                        return
                    self._read_part(part, ns)
        except zlib.error as error:
            self._end("stream_error", f"malformed compression: {error}", ns)

    def _read_part(self, part: bytes, ns: int, *, last: bool = False) -> None:
        if self._streamed is None:
            part = self._begin(part, last)
        if self._streamed:
            self._read_events(self._sse.feed(part), ns)
            held = self._sse.held_bytes
        else:
            self._keep(part)
            held = len(self._whole)
        if held > MAX_HELD_BYTES:
            self._end("stream_error", f"more than {MAX_HELD_BYTES >> 20} MiB without an end", ns)

    def _begin(self, piece: bytes, last: bool) -> bytes:
        """Find out from the beginning of the body what it is; what was held back until then comes along."""
        start = bytes(self._whole) + piece
        self._whole.clear()
        label = self._http.headers.get("content-type", "")
        self._streamed = is_stream(start, label, last=last) if self._ok else False
        return condensed(start) if self._streamed is None else start

    @property
    def _ok(self) -> bool:
        return self._http.status is not None and 200 <= self._http.status < 300

    def _keep(self, piece: bytes) -> None:
        self._whole += piece if self._ok else piece[: max(0, MAX_ERROR_BODY_BYTES - len(self._whole))]

    def _read_events(self, events: Sequence[SseEvent], ns: int) -> None:
        for event in events:
            try:
                reading = self._dialect.read_event(event)
            except MALFORMED as error:
                self._end("stream_error", f"malformed event: {error}", ns)
                return
            if reading.whole:
                reading.output = self._news(reading.output)
            if reading.output:
                self._tokens.add(reading.output, ns)
                if len(events) == 1 and reading.only_first_choice:
                    self._example = reading.output[0]
            self._note(reading)
            if reading.seen or reading.usage is not None:  # a ping says nothing
                self._over_ns = ns
            if reading.error is not None:
                self._end("stream_error", reading.error, ns)
                return
            if reading.done:
                self._done = True
                self._end("completed", None, ns)
                return

    def _news(self, output: Sequence[Output]) -> Sequence[Output]:
        """What the answer from its beginning has beyond what is known; nothing, if it came in pieces."""
        if self._tokens.events and not self._told:
            return ()
        news = []
        for piece in output:
            known = self._told.get(piece[:2], "")
            self._told[piece[:2]] = piece.text
            if text := piece.text.removeprefix(known):
                news.append(piece._replace(text=text))
        return news

    def _note(self, reading: Reading) -> None:
        if reading.usage is not None:
            self.usage.update(reading.usage)
        if reading.timed is not None:
            self._timed.update(reading.timed)
        if reading.token_ids is not None:
            self._token_ids = (self._token_ids or 0) + reading.token_ids
        if reading.seen:
            self._seen.update(reading.seen)
        if reading.finished:
            self._finished.update(reading.finished)
            if 0 in reading.finished or self.finish_reason is None:
                self.finish_reason = reading.finish_reason
        if self._record_text and reading.output:
            self.output += reading.output

    def _message_over(self, ns: int) -> None:
        if self._streamed is None and self._whole:
            self._read_part(b"", ns, last=True)
        if self.outcome is not None:
            return
        if self._streamed is False and self._ok:
            self._read_whole(ns)
        else:
            self._end("truncated", "the stream ended without an end mark", ns)

    def _read_whole(self, ns: int) -> None:
        """A JSON body where a stream was asked for: it has an end, but no first token."""
        body = bytes(self._whole).removeprefix(BOM).strip()
        if body[:1] not in (b"{", b"["):
            begins = " ".join(body[:_BEGINNING_BYTES].decode("utf-8", "replace").split())
            self._end("stream_error", f"{NO_API}: {begins}", ns)
            return
        try:
            reading = self._dialect.read_body(body)
        except MALFORMED as error:
            why = f"malformed answer: {error}"
            if "trailing" in why and b"\n" in body:
                why = "a stream of JSON lines, where server-sent events were expected"
            self._end("stream_error", why, ns)
            return
        self._note(reading)
        self._done = reading.error is None
        if reading.output:
            self._tokens.add_whole(ns)
        self._end("completed" if reading.error is None else "stream_error", reading.error, ns)

    def _end(self, outcome: Outcome, why: str | None, ns: int) -> None:
        """Decide, once. `outcome` is what it is unless the response itself says otherwise."""
        if self.outcome is not None:
            return
        if self._streamed and outcome != "stream_error":
            self._note_end_mark()
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

    def _note_end_mark(self) -> None:
        """An event that no blank line has ended counts for nothing, unless it is the mark of the end."""
        for event in self._sse.feed(b"\n\n"):
            with suppress(*MALFORMED):
                self._done = self._done or self._dialect.read_event(event).done

    @property
    def _over(self) -> bool:
        """The stream said that it ended: its end mark, or a finish reason for every choice seen."""
        return self._done or (bool(self._finished) and self._finished >= self._seen)

    @property
    def _has_output(self) -> bool:
        # What is counted and not shown is output too; one token alone is the end, which some servers count.
        counted = max(self.usage.completion_tokens or 0, self._token_ids or 0)
        return self._tokens.last_ns is not None or counted > 1

    def _http_error(self) -> str:
        """The message of an error body, in whatever shape, or its beginning."""
        body = bytes(self._whole)
        text = error_body_text(body) or page_text(body.decode("utf-8", "replace"))
        return f"HTTP {self._http.status}: {' '.join(text.split())}".rstrip(": ")

    def tokens(self) -> tuple[int | None, TokenSource | None]:
        """How many tokens came, by the best source there is."""
        # Some servers put an all-zero usage on all chunks but the last: a zero beside events is not believed.
        sources: tuple[tuple[int | None, TokenSource], ...] = (
            (self.usage.completion_tokens, "usage"),
            (self._token_ids, "token_ids"),
            (self._timed.completion_tokens, "timings"),
        )
        for known, source in sources:
            if known is not None and (known or not self._tokens.events):
                return known, source
        if self._streamed or (self._streamed is None and self.headers_ns is not None):
            return len(self.token_ns), "events"
        return None, None

    def row(
        self,
        t0_ns: int,
        *,
        record_tokens: bool = False,
        record_text: bool = True,
        scrub: Callable[[str], str] = str,
    ) -> RequestRow:
        """The measured row; times count from `t0_ns`. `scrub` takes secrets out of what the server said."""
        tokens, source = self.tokens()
        usage = self.usage
        arrival_ns = self.planned.arrival_ns
        if arrival_ns is None:  # a closed loop plans none: it is when the request was sent
            arrival_ns = _since(self.due_ns if self.sent_ns is None else self.sent_ns, t0_ns)
        answered = self.headers_ns is not None
        return without_plan(
            self.planned,
            arrival_ns=arrival_ns,
            due_ns=_since(self.due_ns, t0_ns),
            connect_ns=self._connect_ns,
            send_start_ns=_since(self._send_start_ns, t0_ns),
            sent_ns=_since(self.sent_ns, t0_ns),
            headers_ns=_since(self.headers_ns, t0_ns),
            first_token_ns=_since(self.token_ns[0] if self.token_ns else None, t0_ns),
            first_content_ns=_since(self._tokens.first_content_ns, t0_ns),
            last_token_ns=_since(self._tokens.last_ns, t0_ns),
            end_ns=_since(self.end_ns, t0_ns),
            decode_ns=self._tokens.decode_ns(),
            tokens=tokens,
            token_source=source,
            usage_prompt_tokens=self._timed.prompt_tokens
            if usage.prompt_tokens is None
            else usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            events=self._tokens.events if answered else None,
            shared_reads=self._tokens.shared_reads if answered else None,
            choices=None if self._tokens.choices is None else len(set(self._tokens.choices)),
            streamed=self._streamed if self._ok else None,
            outcome=self.outcome,
            phase=None if self.outcome == "completed" else self.phase,
            http_status=self._http.status,
            retry_after_s=self.retry_after_s,
            error=None if self.error is None else scrub(self.error)[:MAX_ERROR_CHARS],
            finish_reason=None if self.finish_reason is None else scrub(self.finish_reason)[:MAX_ERROR_CHARS],
            token_ns=[ns - t0_ns for ns in self.token_ns] if record_tokens else None,
            token_choices=self._tokens.choices if record_tokens else None,
            text=scrub(self.text("text")) if record_text and self._record_text else None,
            reasoning_text=scrub(self.text("reasoning")) if record_text and self._record_text else None,
        )

    def text(self, kind: str) -> str:
        """The generated text of one kind, of the first choice, if it was recorded."""
        return "".join(piece.text for piece in self.output if piece.kind == kind and piece.choice == 0)

    def whole_text(self) -> str:
        """All that was generated, if it was recorded, as a tokenizer counts it: each choice in one piece."""
        pieces = sorted(self.output, key=lambda piece: (piece.choice, piece.kind))
        return "".join(piece.text for piece in pieces)


def unsent(planned: RequestRow, why: str | None = None) -> RequestRow:
    """The row of a request that never left."""
    return without_plan(planned, outcome="not_sent", error=why)


def _since(ns: int | None, t0_ns: int) -> int | None:
    return None if ns is None else ns - t0_ns
