"""What a summary is made of: everything that the rows of a run say, collected in one pass.

Owns which requests count where there is a warm-up or a cool-down. The rows are not kept.
"""

from __future__ import annotations

from ledgers.client import TokenRate
from ledgers.deliveries import Deliveries
from ledgers.errors import InputError
from ledgers.failures import Failures
from ledgers.health import absences
from ledgers.metrics import Observations, origin_ns
from ledgers.rows import RequestRow
from ledgers.rundir import Run
from ledgers.server_metrics import ServerSide
from ledgers.sessions import Sessions
from ledgers.trim import Trim, trim
from ledgers.utilization import Admissions
from ledgers.work import Work


class Seen:
    """One pass over the rows of a run; one more before it, where requests are to be left out.

    `everyone` are all, `observations` those that are kept.
    """

    def __init__(self, run: Run) -> None:
        self.observations = Observations(run.info.config.slo)
        self.everyone = self.observations
        self.trim: Trim | None = None
        if trimmed := _trimmed(run):
            self.everyone, self.trim = trimmed
        self.begin_ns = self.trim.begin_ns if self.trim else 0
        self.work = Work(run.info.config.hardware, run.info.config.policy)
        self.left_out = Failures()
        self.admissions = Admissions()
        self.token_times = False  # whether rows have the time of each token
        self.failures = Failures()
        self.deliveries = Deliveries(absences(list(run.health())))
        self.token_rate = TokenRate()
        self.server = ServerSide(run.server_metrics())
        self.sessions = Sessions()
        for row in run.rows():
            self.admissions.add(row)
            self.server.add(row)
            self.sessions.add(row)
            self.work.add(row)
            if run.info.calibration:
                self.token_rate.add(row)
            self.token_times |= row.token_ns is not None
            if self.trim and not self.keeps(row):
                self.trim.left_out += 1
                self.left_out.add(row)
                continue
            self.observations.add(row)
            self.failures.add(row)
            self.deliveries.add(row)
        planned = run.info.ledger.requests
        rows = len(self.everyone.first_attempts())
        self.retries = len(self.observations) - len(self.observations.first_attempts())
        if planned is not None and rows > planned:
            raise InputError(f"{run.path}: {rows} rows in requests.jsonl for a ledger of {planned} requests")
        self.without_row = max(0, (planned or 0) - rows)

    def keeps(self, row: RequestRow) -> bool:
        """Whether a request counts, which those in a warm-up or a cool-down do not."""
        return self.trim is None or self.trim.keeps(origin_ns(row))


def _trimmed(run: Run) -> tuple[Observations, Trim] | None:
    config = run.info.config
    if config.warmup_s is None and config.cooldown_s is None:
        return None
    everyone = Observations(config.slo)
    for row in run.rows():
        everyone.add(row)
    last_ns = everyone.last_arrival_ns
    if config.warmup_s != "auto":
        return everyone, trim(config.warmup_s, config.cooldown_s, last_ns)
    order = everyone.by_arrival(everyone.first_attempts())
    for name in ("ttft", "e2e"):  # an answer that was not streamed has no TTFT
        if pairs := list(everyone.pairs("origin", name, order)):
            break
    arrivals, latencies = zip(*pairs, strict=True) if pairs else ((), ())
    return everyone, trim("auto", config.cooldown_s, last_ns, arrivals, latencies)
