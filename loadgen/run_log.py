"""What a run writes down while it goes: rows as they end, histograms, and the client's own health."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from ledgers.histograms import IntervalLog
from ledgers.metrics import NEVER, completed_by, distributed_ns, send_lag_ns
from ledgers.rows import RequestRow
from ledgers.rundir import RunWriter
from ledgers.units import NS_PER_MS, NS_PER_S
from loadgen.recorder import ReadCounts, Recorder, unsent

LATE_SEND_NS = NS_PER_MS
_INTERVAL_NS = 5 * NS_PER_S
_SHORTEST_SAMPLE_NS = NS_PER_S // 5


class RunLog:
    """Appends to the run directory. Clock readings come in as arguments, but for this thread's CPU time."""

    def __init__(
        self,
        writer: RunWriter,
        *,
        t_obs_ns: int = NEVER,
        record_tokens: bool = False,
        record_text: bool = False,
        scrub: Callable[[str], str] = str,
        count_text: Callable[[str], int] | None = None,
    ) -> None:
        """Histograms hold what completed by `t_obs_ns`, in ns from t0.

        `count_text` counts tokens where the server does not; it works in a thread beside the loop.
        """
        self.outcomes: Counter[str] = Counter()
        self.reads = ReadCounts()
        self.unanswered = 0  # no connection, or one that closed without a byte
        self.in_flight = 0
        self.sent = 0
        self.retries = 0  # of those sent
        self._writer = writer
        writer.open_files("health.jsonl", "histograms.hlog")
        self._t_obs_ns = t_obs_ns
        self._record_tokens = record_tokens
        self._record_text = record_text
        self._scrub = scrub
        self._count_text = count_text
        self._counting: deque[tuple[RequestRow, Future[int]]] = deque()
        self._counters = ThreadPoolExecutor(1) if count_text else None
        self._t0_ns = 0
        self._histograms = IntervalLog()
        self._interval_start_ns = 0
        self._late_sends = 0
        self._loop_lag_ns = 0
        self._sampled_ns = 0
        self._sampled_cpu_ns = 0
        self._sampled_reads = (0, 0)

    def start(self, t0_ns: int, t0_unix_ns: int) -> None:
        """The run's clock starts: rows count from `t0_ns` (monotonic)."""
        self._t0_ns = t0_ns
        self._histograms = IntervalLog(t0_unix_ns)
        self._sampled_cpu_ns = time.thread_time_ns()

    def sending(self, lag_ns: int, *, again: bool = False) -> None:
        """A request is handed to its connection, `lag_ns` after its time; `again`: a further attempt."""
        self.sent += 1
        self.retries += again
        self.in_flight += 1
        self._late_sends += lag_ns > LATE_SEND_NS

    def ended(self, recorder: Recorder) -> None:
        """An exchange ended: its row is written at once, so that a kill cannot take it."""
        self.in_flight -= 1
        if recorder.outcome == "not_sent":
            self.sent -= 1
            self.not_sent(recorder.planned, recorder.error)
            return
        row = recorder.row(self._t0_ns, record_tokens=True, record_text=self._record_text, scrub=self._scrub)
        if completed_by(row, self._t_obs_ns):
            for tag, values_ns in distributed_ns(row).items():
                self._histograms[tag].record_all(values_ns)
        if (lag_ns := send_lag_ns(row)) is not None:
            self._histograms.record("send_lag", lag_ns)
        if not self._record_tokens:
            row.token_ns = row.token_choices = None
        if self._counters is not None and self._count_text is not None and _uncounted(row):
            # Piece by piece a text would come to more tokens than as a whole.
            pieces = sorted(recorder.output, key=lambda piece: (piece.choice, piece.kind))
            text = "".join(piece.text for piece in pieces)
            self._counting.append((row, self._counters.submit(self._count_text, text)))
        else:
            self._add(row)

    def write_counted(self, *, wait: bool = False) -> None:
        """Write the rows whose tokens have been counted; `wait` for all."""
        while self._counting and (wait or self._counting[0][1].done()):
            row, counted = self._counting.popleft()
            row.tokens, row.token_source = counted.result(), "tokenizer"
            self._add(row)

    def not_sent(self, planned: RequestRow, why: str | None = None) -> None:
        self._add(unsent(planned, why))

    def loop_lag(self, lag_ns: int) -> None:
        """The loop ran something this long after its time."""
        self._loop_lag_ns = max(self._loop_lag_ns, lag_ns)

    def sample(self, now_ns: int) -> None:
        """Write the health since the last sample, and an interval of histograms when one is over."""
        t_ns = now_ns - self._t0_ns
        elapsed_ns, cpu_ns = t_ns - self._sampled_ns, time.thread_time_ns()
        long_enough = elapsed_ns >= _SHORTEST_SAMPLE_NS
        reads = (self.reads.reads, self.reads.with_several_events)
        self._writer.add_health(
            {
                "t_ns": t_ns,
                "sent": self.sent,
                "in_flight": self.in_flight,
                "loop_lag_max_ns": self._loop_lag_ns,
                "cpu_share": (cpu_ns - self._sampled_cpu_ns) / max(elapsed_ns, 1) if long_enough else None,
                "reads": reads[0] - self._sampled_reads[0],
                "reads_with_several_events": reads[1] - self._sampled_reads[1],
                "late_sends": self._late_sends,
            }
        )
        self._sampled_ns, self._sampled_cpu_ns, self._sampled_reads = t_ns, cpu_ns, reads
        self._loop_lag_ns = self._late_sends = 0
        if t_ns - self._interval_start_ns >= _INTERVAL_NS:
            self._close_interval(t_ns)

    def finish(self, now_ns: int) -> None:
        self.sample(now_ns)
        self._close_interval(now_ns - self._t0_ns)
        self.write_counted(wait=True)

    def progress(self, now_ns: int, scheduled: int) -> str:
        """Where the run stands, in one line."""
        ended = ", ".join(f"{outcome} {count}" for outcome, count in sorted(self.outcomes.items()))
        return (
            f"{(now_ns - self._t0_ns) / NS_PER_S:7.1f} s  sent {self.sent - self.retries}/{scheduled}, "
            f"{f'{self.retries} again, ' if self.retries else ''}"
            f"in flight {self.in_flight}{', ' if ended else ''}{ended}"
        )

    def _add(self, row: RequestRow) -> None:
        assert row.outcome is not None
        self.unanswered += row.outcome == "connect_error" or (
            row.outcome == "timeout" and row.phase == "connect"
        )
        self.outcomes[row.outcome] += 1
        self._writer.add(row)

    def _close_interval(self, t_ns: int) -> None:
        lines = self._histograms.lines(self._interval_start_ns, t_ns)
        if lines:
            self._writer.add_lines("histograms.hlog", lines)
        self._interval_start_ns = t_ns


def _uncounted(row: RequestRow) -> bool:
    """Whether nobody counted the tokens of an answer."""
    return row.token_source == "events" or (row.token_source is None and bool(row.events))
