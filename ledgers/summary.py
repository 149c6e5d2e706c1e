"""The summary of a run, from the files of its directory alone: the same files give the same bytes.

Owns the layout of `summary.json`; the definitions are those of `ledgers.metrics`. Rows are read once and not
kept.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from ledgers.calibration import Instrument, instrument
from ledgers.client import load
from ledgers.concurrency import InFlight, littles_law
from ledgers.distributions import Distribution, distribution, nearest_rank
from ledgers.health import BUSY_CPU_SHARE, LATE_NS, LATE_SHARE, SEND_NS, HealthSample, spoiled, stalled_ns
from ledgers.histograms import Histogram, read_log
from ledgers.metrics import NEVER, NEVER_IN_FLIGHT, Observations, completed_by, gaps_ns
from ledgers.rows import FAILURES, OUTCOMES, Outcome
from ledgers.rundir import Run, json_file, write_json
from ledgers.seen import Seen
from ledgers.settings import Hardware
from ledgers.steady import Stability, filled_ns, stability
from ledgers.uncertainty import Spread, attainment, intervals, rates, sorted_batches, spread_ms
from ledgers.units import NS_PER_MS, NS_PER_S, exact
from ledgers.utilization import Admissions, TickFigures, tick_figures

EXACT_METRICS = ("held", "queue_delay", "send_lag", "ttft", "ttfc", "ttft_from_send", "tpot", "e2e")
BURST_NS = 100 * NS_PER_MS
_FEW = 2  # seconds, of which nothing can be said in general


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


def kept_ns(summary: dict[str, Any]) -> tuple[int, int, int]:
    """Of a summary: the first and the last arrival that count in it, and T_obs, in ns of the rows' clock."""
    cut = summary["trim"] or {"begin_s": 0.0, "end_s": None}
    begin_ns, end_s = round(cut["begin_s"] * NS_PER_S), cut["end_s"]
    last_ns = NEVER if end_s is None else round(end_s * NS_PER_S)
    return begin_ns, last_ns, begin_ns + round(summary["window_s"] * NS_PER_S)


def summarize(run: Run) -> dict[str, Any]:
    """The content of `summary.json`. Durations are in ms, rates per second; None is not known, never 0.

    Where the run's settings have a warm-up or cool-down, figures of requests are of those that arrive
    between, and the window begins where the warm-up ends; what is said of ticks, client and server is of the
    whole run.

    Latencies are over the requests that completed in the window, but for the send lag, which is over all that
    were sent. Every attempt counts as a request, but in the Kaplan-Meier estimates. Those are None where the
    percentile comes with fewer than five requests left at risk, and take what was cut off to be like the
    rest. Requests that left no row count as unfinished; where there are such, what would need their times is
    not known.
    """
    seen = Seen(run)
    begin_ns = seen.begin_ns
    t_obs_ns = seen.observations.window_ns(
        run.info.config.tail_s, not run.info.complete or run.info.interrupted
    )
    t_obs_ns = max(t_obs_ns, begin_ns)
    statuses = seen.observations.statuses(t_obs_ns)
    window = (begin_ns, t_obs_ns)
    whole = _Group(seen.observations, range(len(statuses)), statuses, window, seen.without_row)
    itl, itl_partial = _itl(run, seen, whole, t_obs_ns)
    client = _client(run, seen) if run.info.kind == "measured" else None
    summary = {
        "window_s": (t_obs_ns - begin_ns) / NS_PER_S,
        "arrivals_s": max(0, seen.observations.last_offered_ns - begin_ns) / NS_PER_S,
        "trim": seen.trim,
        "complete": run.info.complete and not seen.without_row,
        "interrupted": run.info.interrupted,
        **whole.figures(itl.distribution()),
        "itl_partial": itl_partial,
        "without_row": seen.without_row,
        "retries": seen.retries,
        **whole.until(None if seen.without_row else seen.observations.last_offered_ns),
        **seen.deliveries.figures(),
        "warnings": _nothing_left(seen)
        + seen.deliveries.warnings(
            _median(client["loop_lag_max_ms"] if client and client["samples"] > _FEW else None)
        ),
        **_of_everything(run, seen, whole, statuses, t_obs_ns),
        **_of_ticks(run, seen.admissions, t_obs_ns),
        "by_class": _by_class(seen.observations, statuses, window),
        "sessions": seen.sessions.figures(rows_missing=bool(seen.without_row)),
        "by_outcome": {outcome: whole.counts[outcome] for outcome in OUTCOMES if whole.counts[outcome]},
        "failures": seen.failures.figures(),
        "failed_tokens": seen.failures.tokens,
        "client": client,
        "server": seen.server.figures(),
    }
    built: dict[str, Any] = msgspec.to_builtins(summary)
    return built


def _nothing_left(seen: Seen) -> list[str]:
    """Figures of no request look like those of a server that is at fault."""
    if len(seen.observations) or not len(seen.everyone):
        return []
    last_s = seen.everyone.last_arrival_ns / NS_PER_S
    return [f"--warmup and --cooldown leave no request: the last one arrives at {last_s:.4g} s"]


def summarize_requests(seen: Observations, t_obs_ns: int) -> dict[str, Any]:
    """What a summary says of the requests: of a run that has no directory, but lost no row."""
    statuses, window = seen.statuses(t_obs_ns), (0, t_obs_ns)
    whole = _Group(seen, range(len(seen)), statuses, window)
    flight = seen.in_flight(statuses)
    summary = {
        "window_s": t_obs_ns / NS_PER_S,
        "arrivals_s": seen.last_offered_ns / NS_PER_S,
        **whole.figures(None),
        **whole.until(seen.last_offered_ns),
        "concurrency_mean": flight.mean(0, t_obs_ns),
        "concurrency_peak": flight.peak(),
        "by_class": _by_class(seen, statuses, window),
    }
    built: dict[str, Any] = msgspec.to_builtins(summary)
    return built


class _Group:
    """The requests at `indices`, as seen in a window up to T_obs, and `lost` ones of which no row tells."""

    def __init__(
        self,
        seen: Observations,
        indices: Sequence[int],
        statuses: list[Outcome],
        window_ns: tuple[int, int],
        lost: int = 0,
    ) -> None:
        self.counts: Counter[str] = Counter(statuses[i] for i in indices)
        self.counts["unfinished"] += lost
        self.scheduled = len(indices) + lost
        self._indices = seen.by_arrival(indices)
        self.completed = array("i", (i for i in self._indices if statuses[i] == "completed"))
        self._seen = seen
        self._begin_ns, self._t_obs_ns = window_ns
        self._lost, self._statuses = lost, statuses
        self._spreads: dict[str, Spread | None] = {}

    def figures(self, itl: Distribution | None) -> dict[str, Any]:
        exact_ms = {f"{name}_ms": self._distribution(name) for name in EXACT_METRICS}
        e2e = exact_ms.pop("e2e_ms")
        latencies = {**exact_ms, "itl_ms": itl, "e2e_ms": e2e}
        marks = {name: found.resting() for name, found in latencies.items() if found and found.resting()}
        after = {"rests_on_largest": marks, **self._rates(), **self._tokens(), "intervals": self._intervals()}
        return {**self._accounting(), **latencies, **after}

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
        if name == "send_lag":  # of everything sent: the generator's own, whatever a server made of it
            return distribution(self._seen.known(name, self._indices))
        of = self._seen
        values = of.tpot(self.completed) if name == "tpot" else of.known(name, self.completed)
        if name == "held" and not any(values):
            return None
        ordered, batches = sorted_batches(values)
        self._spreads[name] = spread_ms(ordered, batches)
        return distribution(ordered)

    def _intervals(self) -> dict[str, Any]:
        """Beside the figures of the same names, of which they tell how well they are known."""
        span_ns = self._t_obs_ns - self._begin_ns
        leaves = self._seen.pairs("leave", "tokens", self.completed)
        known = self._seen.slo_given and not self._lost
        statuses, met = self._statuses, self._seen.met
        flags = [met[i] if statuses[i] == "completed" else 0 for i in self._indices] if known else ()
        return intervals(
            self._spreads,
            {
                **rates(leaves, len(self.completed), self._begin_ns, self._t_obs_ns),
                **attainment(array("b", flags), span_ns),
            },
        )

    def until(self, last_arrival_ns: int | None) -> dict[str, Any]:
        """Completions from 0 to the last arrival (or T_obs), if known: the drain would dilute their rate."""
        if last_arrival_ns is None:
            return dict.fromkeys(("completed_by_last_arrival", "throughput_arrivals_rps"))
        end_ns = min(last_arrival_ns, self._t_obs_ns)
        done = sum(leave <= end_ns for leave in self._seen.known("leave", self.completed))
        rate = _per_s(done, end_ns - self._begin_ns)
        return {"completed_by_last_arrival": done, "throughput_arrivals_rps": rate}

    def _rates(self) -> dict[str, Any]:
        completed, span_ns = len(self.completed), self._t_obs_ns - self._begin_ns
        met = sum(self._seen.met[i] for i in self.completed) if self._seen.slo_given else None
        return {
            "throughput_rps": _per_s(completed, span_ns),
            "token_throughput_tps": _per_s(self._total("tokens"), span_ns),
            "goodput_rps": _per_s(met, span_ns),
            "slo_met": met,
            "attainment": _ratio(met, self.scheduled),
            "attainment_completed": _ratio(met, completed),
        }

    def _tokens(self) -> dict[str, Any]:
        """Totals of the completed requests: prompts as long as the server says, else as the ledger does."""
        counted, tokens = 0, sum(self._seen.known("prompt", self.completed))
        for told, asked in self._seen.pairs("usage_prompt", "prompt", self.completed):
            counted += 1
            tokens += told - asked
        by = {"usage": counted, "ledger": len(self.completed) - counted}
        return {
            "prompt_tokens": tokens,
            "prompt_token_sources": {source: count for source, count in by.items() if count},
            "output_tokens": self._total("tokens"),
        }

    def _total(self, name: str) -> int | None:
        """The sum over the completed requests; None unless each one's is known."""
        values = self._seen.known(name, self.completed)
        return sum(values) if len(values) == len(self.completed) else None


def _itl(run: Run, seen: Seen, whole: _Group, t_obs_ns: int) -> tuple[Histogram, bool]:
    """ITL, and whether it is of other requests than those that completed.

    Histograms are written every few seconds, so a run that was killed has rows that are in none: token times
    in the rows, where they were recorded, say more.
    """
    if seen.token_times:
        return _recorded_gaps(run, seen, t_obs_ns), False
    log = read_log(run.path / "histograms.hlog")
    counted = log["ttft"].n if "ttft" in log else 0
    streamed = len(seen.observations.known("ttft", whole.completed))
    others = bool(seen.trim and seen.trim.left_out) or (run.info.kind == "measured" and counted != streamed)
    return log.get("itl", Histogram()), others


def _recorded_gaps(run: Run, seen: Seen, t_obs_ns: int) -> Histogram:
    histogram = Histogram()
    for row in run.rows():
        if seen.keeps(row) and completed_by(row, t_obs_ns):
            histogram.record_all(gaps_ns(row))
    return histogram


def _of_everything(
    run: Run, seen: Seen, whole: _Group, statuses: list[Outcome], t_obs_ns: int
) -> dict[str, Any]:
    """What needs the times of the requests that did not complete as well."""
    observations = seen.observations
    if seen.without_row:
        nothing = {"ttft_ms": None, "e2e_ms": None}
        names = ("concurrency_mean", "concurrency_peak", "littles_law", "stability")
        return {"kaplan_meier": nothing, **dict.fromkeys(names)}
    kaplan_meier = {
        "ttft_ms": observations.survival("ttft", statuses, t_obs_ns),
        "e2e_ms": observations.survival("e2e", statuses, t_obs_ns),
    }
    flight = seen.everyone.in_flight(seen.everyone.statuses(t_obs_ns) if seen.trim else statuses)
    ended_otherwise: dict[str, int] = {
        outcome: whole.counts[outcome]
        for outcome in OUTCOMES
        if whole.counts[outcome] and outcome != "completed" and outcome not in NEVER_IN_FLIGHT
    }
    if seen.trim and seen.trim.left_out:
        ended_otherwise["left out"] = seen.trim.left_out
    return {
        "kaplan_meier": kaplan_meier,
        "concurrency_mean": flight.mean(seen.begin_ns, t_obs_ns),
        "concurrency_peak": flight.peak(seen.begin_ns, t_obs_ns) if seen.trim else flight.peak(),
        "littles_law": littles_law(
            flight,
            t_obs_ns,
            observations.last_offered_ns,
            observations.stays(statuses),
            ended_otherwise,
            begin_ns=seen.begin_ns,
        ),
        "stability": _stability(run, seen, flight),
    }


def _stability(run: Run, seen: Seen, flight: InFlight) -> Stability | None:
    """Of the arrivals that are kept, once the run had filled up; None where a loop sets what is in flight."""
    config = run.info.config
    if config.closed_loop:
        return None
    everyone, end_ns = seen.everyone, max(seen.observations.last_offered_ns, seen.begin_ns)
    stays = everyone.pairs("origin", "leave", range(len(everyone)))
    rho = seen.work.rho(everyone.last_offered_ns)
    return stability(flight, filled_ns(stays, seen.begin_ns, end_ns), end_ns, rho=rho)


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


def _by_class(seen: Observations, statuses: list[Outcome], window_ns: tuple[int, int]) -> dict[str, Any]:
    """Figures per class; ITL is not kept apart."""
    figures = {}
    for name, members in seen.classes().items():
        figures[name] = _Group(seen, members, statuses, window_ns).figures(None)
        del figures[name]["itl_ms"]
    return figures


def _client(run: Run, seen: Seen) -> dict[str, Any]:
    """Whether the load generator did what was asked of it, over all requests that were sent.

    Where requests left no row, nobody knows at what rate all were asked for and sent.
    """
    requests = seen.everyone
    everyone = range(len(requests))
    sent = array("q", sorted(requests.known("sent", everyone)))
    health = list(run.health())
    cpu = _values(health, "cpu_share")
    loop_lags = _values(health, "loop_lag_max_ns")
    reasons = [*_lateness(requests), *_busy(cpu), *_spoiled(health), *seen.failures.client_limits()]
    reasons += seen.left_out.client_limits()
    lost, closed = bool(seen.without_row), run.info.config.closed_loop
    return {
        "client_limited": bool(reasons),
        "reasons": reasons,
        "send_lag_ms": _worst(requests.known("send_lag", everyone)),
        "loop_lag_max_ms": _worst(loop_lags),
        "limited_samples": sum(bool(sample.reasons) for sample in health),
        "samples": len(health),
        "starved_share_max": max(_values(health, "starved_share"), default=None),
        "cpu_share_mean": sum(cpu) / len(cpu) if cpu else None,
        "cpu_share_max": max(cpu, default=None),
        "connect_wait_ms": _worst(requests.known("connect", everyone)),
        "upload_ms": _worst(requests.known("upload", everyone)),
        "asked_rps": None if lost or closed else _rate(requests.known("origin", requests.first_attempts())),
        "achieved_rps": None if lost else _rate(sent),
        "most_sent_in_100_ms": None if lost else _burst(sent),
        "reads_with_several_events_share": _ratio(
            sum(_values(health, "reads_with_several_events")), sum(_values(health, "reads"))
        ),
        "instrument": _instrument(run, seen),
    }


def _instrument(run: Run, seen: Seen) -> Instrument | None:
    """What the machine's calibration says of this load, which is not known where requests left no row."""
    if run.info.calibration is None:
        return None
    known = None if seen.without_row else load(seen.everyone, seen.token_rate)
    return instrument(run.info.calibration, known)


def _values(health: list[HealthSample], name: str) -> list[Any]:
    return [value for sample in health if (value := getattr(sample, name)) is not None]


def _worst(values_ns: list[int]) -> dict[str, float] | None:
    if not values_ns:
        return None
    ordered = sorted(values_ns)
    return {
        name: nearest_rank(ordered, p) / NS_PER_MS for name, p in (("p50", 50), ("p99", 99), ("max", 100))
    }


def _median(worst: dict[str, float] | None) -> float | None:
    return worst["p50"] if worst else None


def _burst(ordered_ns: Sequence[int]) -> int | None:
    """The most instants within any BURST_NS."""
    most = before = 0
    for count, ns in enumerate(ordered_ns, 1):
        while ordered_ns[before] <= ns - BURST_NS:
            before += 1
        most = max(most, count - before)
    return most or None


def _lateness(sent: Observations) -> list[str]:
    """A single hiccup does not make a client the bottleneck; more than one in a hundred requests do.

    Many that were to leave at one instant cannot all leave at it, and nobody who asks for that expects it:
    each of them adds to what is allowed to all.
    """
    ordered = array("q", sorted(wanted for wanted, _ in sent.sends()))
    late = 0
    for wanted, lag in sent.sends():
        if lag > LATE_NS:
            together = bisect_right(ordered, wanted) - bisect_left(ordered, wanted)
            late += lag > _allowed_ns(together)
    if late <= max(1, LATE_SHARE * len(ordered)):
        return []
    limit = f"{LATE_NS // NS_PER_MS} ms"
    if any(one == next_one for one, next_one in pairwise(ordered)):
        limit += f" (+{SEND_NS / NS_PER_MS:g} ms for each that is due at the same instant)"
    return [f"{late} of {len(ordered)} requests were sent more than {limit} late"]


def _allowed_ns(together: int) -> int:
    """How late a request may leave of so many that are due at the same instant."""
    return LATE_NS + SEND_NS * together if together > 1 else LATE_NS


def _busy(cpu: list[float]) -> list[str]:
    mean = sum(cpu) / len(cpu) if cpu else 0.0
    return [f"the client used {mean:.0%} of a core"] if mean >= BUSY_CPU_SHARE else []


def _spoiled(health: list[HealthSample]) -> list[str]:
    """What single seconds were spoiled by, where it shows in the whole."""
    reasons = []
    if stalls := [ns for sample in health if (ns := stalled_ns(sample)) is not None]:
        times = f"{len(stalls)} times, up to " if len(stalls) > 1 else ""
        reasons.append(
            f"the client did not run for {times}{max(stalls) / NS_PER_MS:.0f} ms, while there was work"
        )
    if seconds := spoiled(health):
        share = f"in {len(seconds)} of {len(health)} seconds"
        reasons.append(f"{share} the client was the limit (first: {seconds[0].reasons[0]})")
    return reasons


def _rate(times_ns: Sequence[int]) -> float | None:
    """Instants per second: n of them span n − 1 gaps."""
    return _per_s(len(times_ns) - 1, max(times_ns) - min(times_ns)) if times_ns else None


def _per_s(count: int | None, ns: int) -> float | None:
    return count * NS_PER_S / ns if count is not None and ns > 0 else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
