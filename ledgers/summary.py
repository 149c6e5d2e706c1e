"""The summary of a run, from the files of its directory alone: the same files give the same bytes.

Owns the layout of `summary.json`; the definitions are those of `ledgers.metrics`. Rows are read once and not
kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ledgers.concurrency import littles_law
from ledgers.distributions import Distribution, distribution, nearest_rank
from ledgers.errors import InputError
from ledgers.histograms import Histogram, read_log
from ledgers.metrics import NEVER_IN_FLIGHT, Observations, completed_by, gaps_ns
from ledgers.rows import CLIENT_LIMIT, FAILURES, OUTCOMES, Outcome, RequestRow
from ledgers.rundir import Run, json_file, write_json
from ledgers.settings import Hardware
from ledgers.units import NS_PER_MS, NS_PER_S, exact
from ledgers.utilization import Admissions, TickFigures, tick_figures

EXACT_METRICS = ("queue_delay", "send_lag", "ttft", "ttft_from_send", "tpot", "e2e")
LATE_NS = 10 * NS_PER_MS  # a send this late moves a request by more than agreement tolerates
LATE_SHARE = 0.01
MOST_CAUSES = 1_000  # kept apart; a server that numbers its errors must not fill the memory
CAUSES_TOLD = 5
BUSY_CPU_SHARE = 0.9  # of one core: above it a process has no time left to be punctual


def write_summary(path: Path) -> dict[str, Any]:
    """Rebuild `summary.json` of a run directory, and return its content. InputError if it cannot be done."""
    summary = summarize(Run(path))
    save_summary(path, summary)
    return summary


def save_summary(path: Path, summary: dict[str, Any]) -> None:
    """Replace `summary.json` unless it says just this. InputError if it cannot be written."""
    file = path / "summary.json"
    if not file.is_file() or file.read_bytes() != json_file(summary):
        write_json(file, summary)


def summarize(run: Run) -> dict[str, Any]:
    """The content of `summary.json`. Durations are in ms, rates per second; None is not known, never 0.

    Latencies are over the requests that completed in the window. Requests that left no row count as
    unfinished.
    """
    seen = _Seen(run)
    t_obs_ns = seen.observations.window_ns(
        run.info.config.tail_s, not run.info.complete or run.info.interrupted
    )
    statuses = seen.observations.statuses(t_obs_ns)
    whole = _Group(seen.observations, range(len(statuses)), statuses, t_obs_ns, seen.without_row)
    itl, itl_partial = _itl(run, seen, whole, t_obs_ns)
    summary = {
        "window_s": t_obs_ns / NS_PER_S,
        "complete": run.info.complete and not seen.without_row,
        "interrupted": run.info.interrupted,
        **whole.figures(itl.distribution()),
        "itl_partial": itl_partial,
        "without_row": seen.without_row,
        **_of_everything(seen, whole, statuses, t_obs_ns),
        **_of_ticks(run, seen.admissions, t_obs_ns),
        "by_class": _by_class(seen.observations, statuses, t_obs_ns),
        "by_outcome": {outcome: whole.counts[outcome] for outcome in OUTCOMES if whole.counts[outcome]},
        "failures": seen.failures.figures(),
        "client": _client(run, seen) if run.info.kind == "measured" else None,
    }
    built: dict[str, Any] = msgspec.to_builtins(summary)
    return built


class _Seen:
    """One pass over the rows of a run."""

    def __init__(self, run: Run) -> None:
        self.observations = Observations(run.info.config.slo)
        self.admissions = Admissions()
        self.token_times = False  # whether rows have the time of each token
        self.failures = Failures()
        for row in run.rows():
            self.observations.add(row)
            self.admissions.add(row)
            self.failures.add(row)
            self.token_times |= row.token_ns is not None
        planned = run.info.ledger.requests
        rows = len(self.observations)
        if planned is not None and rows > planned:
            raise InputError(f"{run.path}: {rows} rows in requests.jsonl for a ledger of {planned} requests")
        self.without_row = max(0, (planned or 0) - rows)


class Failures:
    """The causes of failures, the most frequent first; each with outcome, phase, error and count."""

    def __init__(self) -> None:
        self._causes: Counter[tuple[str, str | None, str]] = Counter()
        self._client_limits: Counter[str] = Counter()

    def add(self, row: RequestRow) -> None:
        if row.outcome in FAILURES:
            cause = (row.outcome, row.phase, row.error or "")
            known = cause in self._causes or len(self._causes) < MOST_CAUSES
            if row.outcome == "connect_error" and cause[-1].startswith(CLIENT_LIMIT):
                self._client_limits[cause[-1]] += 1
            self._causes[cause if known else (row.outcome, None, "other causes")] += 1

    def client_limits(self) -> list[str]:
        """What this machine ran out of, and how many requests that cost."""
        return [f"{count} requests failed: {error}" for error, count in self._client_limits.items()]

    def figures(self) -> list[dict[str, Any]]:
        names = ("outcome", "phase", "error", "count")
        return [
            dict(zip(names, (*cause, count), strict=True))
            for cause, count in self._causes.most_common(CAUSES_TOLD)
        ]


class _Group:
    """The requests at `indices`, as seen at T_obs, and `lost` ones of which no row tells."""

    def __init__(
        self,
        seen: Observations,
        indices: Sequence[int],
        statuses: list[Outcome],
        t_obs_ns: int,
        lost: int = 0,
    ) -> None:
        self.counts: Counter[str] = Counter(statuses[i] for i in indices)
        self.counts["unfinished"] += lost
        self.scheduled = len(indices) + lost
        self.completed = [i for i in indices if statuses[i] == "completed"]
        self._seen = seen
        self._t_obs_ns = t_obs_ns

    def figures(self, itl: Distribution | None) -> dict[str, Any]:
        exact_ms = {f"{name}_ms": self._distribution(name) for name in EXACT_METRICS}
        e2e = exact_ms.pop("e2e_ms")
        latencies = {**exact_ms, "itl_ms": itl, "e2e_ms": e2e}
        marks = {name: found.resting() for name, found in latencies.items() if found and found.resting()}
        return {**self._accounting(), **latencies, "rests_on_largest": marks, **self._rates()}

    def _accounting(self) -> dict[str, Any]:
        """Adds up: scheduled = completed + failed + rejected + cancelled + unfinished + not_sent."""
        named = ("rejected", "cancelled", "unfinished", "not_sent")
        return {
            "scheduled": self.scheduled,
            "completed": len(self.completed),
            "failed": sum(self.counts[outcome] for outcome in FAILURES),
            **{outcome: self.counts[outcome] for outcome in named},
            "censored": len(self.completed) + self.counts["rejected"] < self.scheduled,
        }

    def _distribution(self, name: str) -> Distribution | None:
        if name == "tpot":
            return distribution(self._seen.tpot(self.completed))
        return distribution(self._seen.known(name, self.completed))

    def _rates(self) -> dict[str, Any]:
        completed = len(self.completed)
        met = sum(self._seen.met[i] for i in self.completed) if self._seen.slo_given else None
        return {
            "throughput_rps": _per_s(completed, self._t_obs_ns),
            "token_throughput_tps": _per_s(self._total("tokens"), self._t_obs_ns),
            "tokens_per_event": _ratio(self._total("tokens"), self._total("events")),
            "goodput_rps": _per_s(met, self._t_obs_ns),
            "slo_met": met,
            "attainment": _ratio(met, self.scheduled),
            "attainment_completed": _ratio(met, completed),
        }

    def _total(self, name: str) -> int | None:
        """The sum over the completed requests; None unless each one's is known."""
        values = self._seen.known(name, self.completed)
        return sum(values) if len(values) == len(self.completed) else None


def _itl(run: Run, seen: _Seen, whole: _Group, t_obs_ns: int) -> tuple[Histogram, bool]:
    """ITL, and whether it is of other requests than those that completed.

    Histograms are written every few seconds, so a run that was killed has rows that are in none: token times
    in the rows, where they were recorded, say more.
    """
    if seen.token_times:
        return _recorded_gaps(run, t_obs_ns), False
    log = read_log(run.path / "histograms.hlog")
    counted = log["ttft"].n if "ttft" in log else 0
    streamed = len(seen.observations.known("ttft", whole.completed))
    return log.get("itl", Histogram()), run.info.kind == "measured" and counted != streamed


def _recorded_gaps(run: Run, t_obs_ns: int) -> Histogram:
    histogram = Histogram()
    for row in run.rows():
        if completed_by(row, t_obs_ns):
            histogram.record_all(gaps_ns(row))
    return histogram


def _of_everything(seen: _Seen, whole: _Group, statuses: list[Outcome], t_obs_ns: int) -> dict[str, Any]:
    """What needs the requests that did not complete as well."""
    observations = seen.observations
    flight = observations.in_flight(statuses)
    e2e_ns = observations.known("e2e", whole.completed)
    ended_otherwise: dict[str, int] = {
        outcome: whole.counts[outcome]
        for outcome in OUTCOMES
        if whole.counts[outcome] and outcome != "completed" and outcome not in NEVER_IN_FLIGHT
    }
    return {
        "kaplan_meier": {
            "ttft_ms": observations.survival("ttft", statuses, t_obs_ns),
            "e2e_ms": observations.survival("e2e", statuses, t_obs_ns),
        },
        "concurrency_mean": flight.mean(0, t_obs_ns),
        "concurrency_peak": flight.peak(),
        "littles_law": None
        if seen.without_row  # their time in flight is not known
        else littles_law(flight, t_obs_ns, observations.last_offered_ns, e2e_ns, ended_otherwise),
    }


def _of_ticks(run: Run, admissions: Admissions, t_obs_ns: int) -> dict[str, Any]:
    hardware = run.info.config.hardware
    found = hardware and tick_figures(run.ticks(), hardware, run.info.config.policy, admissions, t_obs_ns)
    return {
        "kv_peak_tokens": found.kv_peak_tokens if found else None,
        "kv_peak_mb": _kv_mb(found, hardware) if found and hardware else None,
        "batch_utilization": found.batch if found else None,
        "utilization": {
            "prefill": found.prefill if found else None,
            "decode": found.decode if found else None,
            "kv": found.kv if found else None,
        },
        "head_of_line": found.head_of_line if found else None,
    }


def _kv_mb(found: TickFigures, hardware: Hardware) -> float:
    return float(found.kv_peak_tokens * exact(hardware.kv_mb_per_token))


def _by_class(seen: Observations, statuses: list[Outcome], t_obs_ns: int) -> dict[str, Any]:
    """Figures per class; ITL is not kept apart."""
    figures = {}
    for name, members in seen.classes().items():
        figures[name] = _Group(seen, members, statuses, t_obs_ns).figures(None)
        del figures[name]["itl_ms"]
    return figures


def _client(run: Run, seen: _Seen) -> dict[str, Any]:
    """Whether the load generator did what was asked of it, over all requests that were sent."""
    requests = seen.observations
    everyone = range(len(requests))
    lags = sorted(requests.known("send_lag", everyone))
    health = list(run.health())
    cpu = _values(health, "cpu_share")
    loop_lags = _values(health, "loop_lag_max_ns")
    reasons = [*_lateness(lags), *_busy(cpu), *seen.failures.client_limits()]
    return {
        "client_limited": bool(reasons),
        "reasons": reasons,
        "send_lag_ms": _worst(lags),
        "loop_lag_max_ms": _worst(sorted(loop_lags)),
        "cpu_share_mean": sum(cpu) / len(cpu) if cpu else None,
        "cpu_share_max": max(cpu, default=None),
        "asked_rps": _rate(requests.known("origin", everyone)),
        "achieved_rps": _rate(requests.known("sent", everyone)),
        "reads_with_several_events_share": _ratio(
            sum(_values(health, "reads_with_several_events")), sum(_values(health, "reads"))
        ),
    }


def _values(health: list[dict[str, Any]], key: str) -> list[Any]:
    return [sample[key] for sample in health if sample.get(key) is not None]


def _worst(ordered_ns: list[int]) -> dict[str, float] | None:
    if not ordered_ns:
        return None
    return {
        name: nearest_rank(ordered_ns, p) / NS_PER_MS for name, p in (("p50", 50), ("p99", 99), ("max", 100))
    }


def _lateness(lags: list[int]) -> list[str]:
    """A single hiccup does not make a client the bottleneck; more than one in a hundred requests do."""
    late = sum(lag > LATE_NS for lag in lags)
    if late <= max(1, LATE_SHARE * len(lags)):
        return []
    return [f"{late} of {len(lags)} requests were sent more than {LATE_NS // NS_PER_MS} ms late"]


def _busy(cpu: list[float]) -> list[str]:
    mean = sum(cpu) / len(cpu) if cpu else 0.0
    return [f"the client used {mean:.0%} of a core"] if mean >= BUSY_CPU_SHARE else []


def _rate(times_ns: list[int]) -> float | None:
    """Instants per second: n of them span n − 1 gaps."""
    return _per_s(len(times_ns) - 1, max(times_ns) - min(times_ns)) if times_ns else None


def _per_s(count: int | None, ns: int) -> float | None:
    return count * NS_PER_S / ns if count is not None and ns > 0 else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
