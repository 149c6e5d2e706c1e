"""From runs to figures: what the runs of one client in one setting come to."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

import msgspec

from benchmarks.clients import Measured
from benchmarks.scenarios import Setting
from ledgers.distributions import Distribution, distribution
from reports.stamp_errors import StampErrors, pooled, stamp_errors


class Result(msgspec.Struct, kw_only=True):
    """Errors and lags in ms over the requests of all runs; CPU is that of the whole process tree.

    Where every token is recorded, `each_ms` is its error, `gap_ms` the gaps that the client measured and
    `gap_error_ms` how far they are off, either way. `cpu_s_per_million` is what a run costs on top of one of
    a single request.
    """

    scenario: str
    label: str
    client: str
    runs: int
    requests: int
    tokens: int
    first_ms: Distribution | None
    last_ms: Distribution | None
    each_ms: Distribution | None
    gap_ms: Distribution | None
    gap_error_ms: Distribution | None
    send_lag_ms: Distribution | None
    cpu_s: float  # of a run
    cpu_s_per_million: float | None
    peak_rss_mb: float | None
    client_limited: bool


@dataclass
class Tally:
    """The runs of one client in one setting."""

    errors: list[StampErrors] = field(default_factory=list)
    lags_ns: list[int] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    peaks_mb: list[float] = field(default_factory=list)
    client_limited: bool = False

    def add(self, client: str, measured: Measured, requests: int) -> None:
        """SystemExit unless every request is there and known to the server."""
        try:
            self.errors.append(stamp_errors(measured.rows, measured.truths, requests))
        except ValueError as error:
            raise SystemExit(f"{client}: {error}") from None
        self.lags_ns += [(row.sent_ns or 0) - (row.arrival_ns or 0) for row in measured.rows]
        self.cpu_s.append(measured.usage.cpu_s)
        if measured.usage.peak_rss_mb is not None:
            self.peaks_mb.append(measured.usage.peak_rss_mb)
        self.client_limited |= measured.usage.exit_code != 0

    def result(self, setting: Setting, client: str, start_cpu_s: float | None) -> Result:
        """The figures; a cost per token needs the cost of the start to be known."""
        errors = pooled(self.errors)
        runs = len(self.cpu_s)
        streaming_s = None if start_cpu_s is None else sum(self.cpu_s) - runs * start_cpu_s
        return Result(
            scenario=setting.scenario,
            label=setting.label,
            client=client,
            runs=runs,
            requests=len(errors.first),
            tokens=errors.tokens,
            first_ms=distribution(errors.first),
            last_ms=distribution(errors.last),
            each_ms=distribution(errors.each),
            gap_ms=distribution(errors.gaps),
            gap_error_ms=distribution(map(abs, errors.gap)),
            send_lag_ms=distribution(self.lags_ns),
            cpu_s=statistics.median(self.cpu_s),
            cpu_s_per_million=None if streaming_s is None else streaming_s / errors.tokens * 1e6,
            peak_rss_mb=max(self.peaks_mb, default=None),
            client_limited=self.client_limited,
        )
