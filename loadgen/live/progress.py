"""What is known of a run that goes on: rows and samples in, counts, rates and the time left out. Pure."""

from __future__ import annotations

from collections import Counter, deque

import msgspec

from ledgers.health import HealthSample
from ledgers.histograms import Histogram, LogReader
from ledgers.metrics import ttft_ns
from ledgers.rows import RequestRow
from ledgers.units import NS_PER_S

_RATE_SAMPLES = 6  # the rates are those of the last five seconds
_ENOUGH_ENDED = 5  # requests, from which on their pace says how long the others may take


class Watched(msgspec.Struct, kw_only=True):
    """What the run said of itself before it began.

    `last_arrival_s` is None where nobody knows it: in a closed loop, or where turns wait for one another.
    """

    path: str
    title: str
    requests: int
    last_arrival_s: float | None = None
    send_for_s: float | None = None


class Rates(msgspec.Struct, frozen=True):
    """Requests per second over the last seconds; `asked` is None in a closed loop."""

    asked: float | None
    sent: float
    over_s: float


class Progress:
    """What has happened so far."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self.ended = 0  # requests of the ledger that were sent: further attempts are none
        self.not_sent = 0
        self.failures: Counter[str] = Counter()
        self.ttft = Histogram()
        self.last: HealthSample | None = None
        self.samples = self.limited = 0
        self.loop_lag_max_ns = 0
        self._log = LogReader()
        self._recent: deque[HealthSample] = deque(maxlen=_RATE_SAMPLES)

    @property
    def itl(self) -> Histogram | None:
        return self._log.merged.get("itl")

    @property
    def t_s(self) -> float:
        return 0.0 if self.last is None else self.last.t_ns / NS_PER_S

    def add(self, row: RequestRow) -> None:
        if row.outcome == "not_sent":
            self.not_sent += row.retry_of is None
            return
        self.ended += row.retry_of is None
        if row.outcome == "completed":
            if (ns := ttft_ns(row)) is not None:
                self.ttft.record(ns)
        elif row.outcome is not None:
            status = f" {row.http_status}" if row.outcome == "http_error" and row.http_status else ""
            self.failures[row.outcome + status] += 1

    def add_health(self, sample: HealthSample) -> None:
        self.last = sample
        self.samples += 1
        self.limited += bool(sample.reasons)
        self.loop_lag_max_ns = max(self.loop_lag_max_ns, sample.loop_lag_max_ns)
        self._recent.append(sample)

    def add_log_line(self, line: str) -> None:
        self._log.add(line)

    def rates(self) -> Rates | None:
        """None until there is a stretch of time to count over."""
        if self.last is None or not self.last.t_ns:
            return None
        begin = self._recent[0] if len(self._recent) == _RATE_SAMPLES else HealthSample(t_ns=0, asked=0)
        over_s = (self.last.t_ns - begin.t_ns) / NS_PER_S
        if over_s <= 0:
            return None
        sent = self.last.sent - self.last.retries - begin.sent + begin.retries
        asked = None if self.last.asked is None else self.last.asked - (begin.asked or 0)
        return Rates(None if asked is None else asked / over_s, sent / over_s, over_s)

    @property
    def stopping(self) -> bool:
        """Whether nothing more will be sent, and some of the ledger was not."""
        waited_for = self.watched.requests - self.not_sent - self.ended
        return self.not_sent > 0 and self.last is not None and waited_for <= self.last.in_flight

    def share(self) -> float:
        """How much is done, from 0 to 1."""
        by_time = self.t_s / self.watched.send_for_s if self.watched.send_for_s else 0.0
        return min(1.0, max(self.ended / max(1, self.watched.requests - self.not_sent), by_time))

    def left_s(self) -> float | None:
        """About how long it will go on; None while nothing says so.

        To the last arrival, or at the pace at which requests ended.
        """
        if self.watched.last_arrival_s is not None:
            left = self.watched.last_arrival_s - self.t_s
        elif self.ended >= _ENOUGH_ENDED:
            left = self.t_s / self.ended * (self.watched.requests - self.not_sent - self.ended)
        else:
            left = None
        if self.watched.send_for_s is not None:
            until = self.watched.send_for_s - self.t_s
            left = until if left is None else min(left, until)
        return None if left is None else max(0.0, left)
