"""What a run writes down while it goes: rows as they end, histograms, and the client's own health."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Protocol

from ledgers.health import HealthSample
from ledgers.histograms import Histogram, IntervalLog
from ledgers.metrics import distributed_ns, send_lag_ns
from ledgers.rows import RequestRow
from ledgers.rundir import RunWriter
from ledgers.units import NS_PER_MS, NS_PER_S
from ledgers.window import Window

Values = dict[str, list[int]]
_INTERVAL_NS = 5 * NS_PER_S
_PROGRESS_NS = 10 * NS_PER_S


class Log(Protocol):
    """Where what happens goes: `text` is what was generated, if its tokens are still to be counted."""

    def add(self, row: RequestRow, text: str | None = None) -> None: ...
    def add_health(self, sample: HealthSample) -> None: ...


class RunLog:
    """Appends to the run directory."""

    def __init__(
        self,
        writer: RunWriter,
        *,
        window: Window[Values] | None = None,
        record_tokens: bool = False,
        count_text: Callable[[str], int] | None = None,
        scheduled: int = 0,
        show: Callable[[str], None] | None = None,
    ) -> None:
        """Histograms hold what completed in the `window`; None has no end.

        `count_text` counts tokens where the server does not; it works in a thread of its own. `show`, if
        any, gets a line every ten seconds: how many, how fast, TTFT so far, whether the client is the limit.
        """
        self.outcomes: Counter[str] = Counter()
        self.unanswered = 0  # no connection, or one that closed without a byte
        self._writer = writer
        writer.open_files("health.jsonl", "histograms.hlog")
        self._window: Window[Values] = window or Window(0, "drain", grows=False)
        self._record_tokens = record_tokens
        self._scheduled = scheduled
        self._show = show
        self._shown = HealthSample(t_ns=0, asked=0)  # the last that a line was shown of
        self._limited = self._samples = 0
        self._ttft = Histogram()
        self._count_text = count_text
        self._counting: deque[tuple[RequestRow, Future[int]]] = deque()
        self._counters = ThreadPoolExecutor(1) if count_text else None
        self._histograms = IntervalLog()
        self._interval_start_ns = 0
        self._sampled_ns = 0

    def start(self, t0_unix_ns: int) -> None:
        self._histograms = IntervalLog(t0_unix_ns)

    def add(self, row: RequestRow, text: str | None = None) -> None:
        """A row is written at once, so that a kill cannot take it; but first its text is counted, if any."""
        for values in self._window.take(row, partial(distributed_ns, row)):
            for tag, values_ns in values.items():
                self._histograms[tag].record_all(values_ns)
            self._ttft.record_all(values.get("ttft", ()))
        if (lag_ns := send_lag_ns(row)) is not None:
            self._histograms.record("send_lag", lag_ns)
        if not self._record_tokens:
            row.token_ns = row.token_choices = None
        if text is None or self._counters is None or self._count_text is None:
            self._write(row)
        else:
            self._counting.append((row, self._counters.submit(self._count_text, text)))
        self._write_counted()

    def add_health(self, sample: HealthSample) -> None:
        """Judge and write it, and an interval of histograms when one is over."""
        sample.judge()
        self._writer.add_health(sample)
        self._sampled_ns = sample.t_ns
        self._write_counted()
        if sample.t_ns - self._interval_start_ns >= _INTERVAL_NS:
            self._close_interval()
        self._samples += 1
        self._limited += bool(sample.reasons)
        if self._show is not None and sample.t_ns - self._shown.t_ns >= _PROGRESS_NS:
            self._show(self._progress(sample))
            self._shown = sample

    def finish(self) -> None:
        """Nothing will be added any more."""
        self._write_counted(wait=True)
        self._close_interval()

    def _write_counted(self, *, wait: bool = False) -> None:
        """Write the rows whose tokens have been counted; `wait` for all."""
        while self._counting and (wait or self._counting[0][1].done()):
            row, counted = self._counting.popleft()
            row.tokens, row.token_source = counted.result(), "tokenizer"
            self._write(row)

    def _write(self, row: RequestRow) -> None:
        assert row.outcome is not None
        self.unanswered += row.outcome == "connect_error" or (
            row.outcome == "timeout" and row.phase == "connect"
        )
        self.outcomes[row.outcome] += 1
        self._writer.add(row)

    def _close_interval(self) -> None:
        lines = self._histograms.lines(self._interval_start_ns, self._sampled_ns)
        if lines:
            self._writer.add_lines("histograms.hlog", lines)
        self._interval_start_ns = self._sampled_ns

    def _progress(self, sample: HealthSample) -> str:
        """Where the run stands, in one line."""
        parts = [f"{sample.t_ns / NS_PER_S:7.1f} s  sent {sample.sent - sample.retries}/{self._scheduled}"]
        parts += [f"{sample.retries} again"] if sample.retries else []
        parts += [f"in flight {sample.in_flight}"]
        parts += [f"{outcome} {count}" for outcome, count in sorted(self.outcomes.items())]
        parts += self._rates(sample)
        if (p50_ns := self._ttft.percentile(50)) is not None:
            parts.append(f"TTFT p50 so far {p50_ns / NS_PER_MS:.1f} ms")
        if self._limited:
            parts.append(f"CLIENT-LIMITED in {self._limited} of {self._samples} seconds")
        return ", ".join(parts)

    def _rates(self, sample: HealthSample) -> list[str]:
        """Since the last line."""
        last, over_s = self._shown, (sample.t_ns - self._shown.t_ns) / NS_PER_S
        sent = sample.sent - sample.retries - last.sent + last.retries
        asked = [] if sample.asked is None else [f"asked {(sample.asked - (last.asked or 0)) / over_s:.1f}/s"]
        return [*asked, f"achieved {sent / over_s:.1f}/s"]


def uncounted(row: RequestRow) -> bool:
    """Whether nobody counted the tokens of an answer."""
    return row.token_source == "events" or (row.token_source is None and bool(row.events))
