"""The charts of a run's state over time: in flight, queue, KV, the server's metrics, the client's health."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from ledgers.columns import Column
from ledgers.columns import Table as Columns
from ledgers.health import HealthSample
from ledgers.rows import TickRow
from ledgers.rundir import RunConfig
from ledgers.settings import Hardware
from ledgers.units import NS_PER_MS, NS_PER_S
from reports.charts import Axis, Band, Bound, Chart, Series, Table, lines
from reports.charts.thinning import DRAWN, MOST_POINTS, Point, evenly, outline
from reports.numbers import figure
from reports.run_charts import said
from reports.run_rows import RunRows

TICK_FIELDS = ("tick", "queue", "kv_reserved", "kv_cached")
MOST_TABLED = 60


class TickColumns:
    """The ticks of a run, of which only these fields are drawn."""

    def __init__(self, ticks: Iterable[TickRow]) -> None:
        self._table = Columns(TICK_FIELDS)
        for tick in ticks:
            self._table.append([getattr(tick, field) for field in TICK_FIELDS])

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, field: str) -> Column:
        return self._table[field]

    def steps(self, field: str) -> Iterator[Point]:
        """Tick and value, with 0 from where a tick without a row follows: that was idle."""
        due = 0
        for tick, value in zip(self["tick"], self[field], strict=True):
            if tick > due:
                yield due, 0
            yield tick, value
            due = tick + 1
        yield due, 0

    def drawn(self, field: str, scale: float = 1) -> list[Point]:
        """As many as a picture can show; ticks times `scale`."""
        last = self["tick"][-1] + 1
        return [(x * scale, y) for x, y in _shown(self.steps(field), len(self), last)]


def _shown(points: Iterable[Point], records: int, end: float) -> list[Point]:
    """All that these records make, or of too many what a picture can show."""
    return outline(points, 0, end) if _too_many(records) else list(points)


def _too_many(records: int) -> bool:
    """Each makes two points at most, and the last ends."""
    return 2 * records + 1 > MOST_POINTS


def in_flight_chart(
    rows: RunRows, ticks: TickColumns, summary: dict[str, Any], config: RunConfig
) -> Chart | None:
    """In flight from arrival to leaving, and how many of them queued; None where rows are missing."""
    if summary["concurrency_mean"] is None:
        return None
    end_s = rows.t_obs_ns / NS_PER_S
    levels = ((at / NS_PER_S, float(level)) for at, level in rows.levels())
    points = _shown(levels, len(rows), end_s)
    series = [Series("in flight", [*points, *((end_s, level) for _, level in points[-1:])], "step")]
    queued = ""
    if len(ticks) and config.hardware:
        series.append(Series("queue", ticks.drawn("queue", config.hardware.tick_s), "step"))
        queued = f"; the queue had up to {max(ticks['queue'].cells):,}"
    stable = summary["stability"]
    judged = stable and stable["slope_per_s"] is not None
    verdict = f" {stable['verdict'].capitalize()}: {stable['reason']}." if judged else ""
    note = DRAWN.format("in flight", 2 * len(rows)) if _too_many(len(rows)) else ""
    return lines(
        f"Up to {summary['concurrency_peak']:,} requests in flight, "
        f"{summary['concurrency_mean']:.3g} on average{queued}",
        f"Requests that had arrived and not left, over time.{verdict}",
        series,
        y=Axis("requests"),
        bounds=_cap(config),
        table=_sampled(series),
        note=note,
    )


def _cap(config: RunConfig) -> list[Bound]:
    most = config.extra.get("max_concurrency")
    return [Bound(f"at most {most} at a time", most)] if isinstance(most, int) else []


def _sampled(series: Sequence[Series]) -> Table:
    """The values of all series at some instants, evenly chosen from their points."""
    times = sorted({x for each in series for x, _ in each.points})
    chosen = [times[place] for place in evenly(len(times), MOST_TABLED)]
    columns = [_values_at(each.points, chosen) for each in series]
    body = [
        [figure(at), *(figure(value) for value in values)]
        for at, *values in zip(chosen, *columns, strict=True)
    ]
    return Table(["time, s", *(each.name for each in series)], body)


def _values_at(points: Sequence[Point], instants: Sequence[float]) -> list[float]:
    """Of steps, what was so at each of ascending instants."""
    found, place, value = [], 0, 0.0
    for at in instants:
        while place < len(points) and points[place][0] <= at:
            value = points[place][1]
            place += 1
        found.append(value)
    return found


class _Peak(NamedTuple):
    """The most tokens reserved, the first tick of it, how long that lasted, and how many ticks had it."""

    tokens: int
    tick: int
    stretch: int
    ticks: int


def kv_chart(ticks: TickColumns, hardware: Hardware) -> Chart | None:
    """KV tokens reserved and cached, by tick, against the budget; None where no tick reserved any."""
    if not len(ticks) or not (peak := _peak(ticks)).tokens:
        return None
    series = [
        Series("reserved", ticks.drawn("kv_reserved"), "area"),
        Series("cached", ticks.drawn("kv_cached"), "step"),
    ]
    body = [
        [figure(ticks["tick"][i]), f"{ticks['kv_reserved'][i]:,}", f"{ticks['kv_cached'][i]:,}"]
        for i in evenly(len(ticks), 2 * MOST_TABLED)
    ]
    budget = hardware.kv_budget_tokens
    return lines(
        _kv_title(peak, budget),
        f"Tokens of KV cache that were reserved and that were in use after each of {len(ticks):,} ticks of "
        f"{hardware.tick_s * 1000:g} ms. At most {peak.tokens:,} of {budget:,} were reserved, "
        f"{max(ticks['kv_cached'].cells):,} in use.",
        series,
        x=Axis("tick"),
        y=Axis("KV tokens"),
        bounds=[Bound(f"budget {budget:,}", budget)],
        table=Table(["tick", "reserved", "cached"], body),
        note=DRAWN.format("each curve", len(ticks)) if _too_many(len(ticks)) else "",
    )


def _peak(ticks: TickColumns) -> _Peak:
    most = max(ticks["kv_reserved"].cells)
    at = [tick for tick, value in zip(ticks["tick"], ticks["kv_reserved"], strict=True) if value == most]
    stretch = sum(1 for place, tick in enumerate(at) if tick == at[0] + place)
    return _Peak(most, at[0], stretch, len(at))


def _kv_title(peak: _Peak, budget: int) -> str:
    share = peak.tokens / budget
    if share < 1:
        most = f"at most {peak.tokens:,} of {budget:,} tokens ({share:.0%})"
        return f"KV stayed below its budget: {most} were reserved, first at tick {peak.tick:,}"
    stayed = f"{peak.stretch:,} {'tick' if peak.stretch == 1 else 'ticks'}"
    again = f" ({peak.ticks:,} in all)" if peak.ticks > peak.stretch else ""
    return f"KV reached its budget at tick {peak.tick:,} and stayed there for {stayed}{again}"


def server_chart(summary: dict[str, Any]) -> Chart | None:
    """What the server said it was running and had waiting, beside what its client had in flight."""
    server = summary["server"]
    if not server or not server["series"]:
        return None
    names = {
        "client_in_flight": "in flight (client)",
        "running": "running (server)",
        "waiting": "waiting (server)",
    }
    series = [
        Series(name, points) for key, name in names.items() if (points := _known(server["series"], key))
    ]
    if not series:
        return None
    waiting = server["waiting_max"]
    said_of_it = f"up to {waiting:.0f} requests waiting" if waiting is not None else "what was running"
    return lines(
        f"The server reported {said_of_it}",
        f"Means over intervals, from {server['samples']:,} samples of the server's metrics.",
        series,
        y=Axis("requests"),
    )


def _known(entries: Sequence[dict[str, Any]], key: str) -> list[Point]:
    return [(entry["t_s"], entry[key]) for entry in entries if entry[key] is not None]


def client_charts(samples: Sequence[HealthSample], client: dict[str, Any]) -> list[Chart]:
    """How late the load generator was and how much of a core it used, with the seconds it was the limit."""
    if not samples:
        return []
    bands = list(_limited(samples))
    lag = [
        Series("send lag, largest", [(s.t_ns / NS_PER_S, s.send_lag_max_ns / NS_PER_MS) for s in samples]),
        Series("loop lag, largest", [(s.t_ns / NS_PER_S, s.loop_lag_max_ns / NS_PER_MS) for s in samples]),
    ]
    charts = [
        lines(
            _client_title(client, len(samples)),
            "The largest lag of each second. Shaded seconds are those in which the client was the limit.",
            lag,
            y=Axis("lag", "ms"),
            bands=bands,
            table=_health_table(samples),
        )
    ]
    if cpu := _shares(samples, "cpu_share"):
        starved = _shares(samples, "starved_share")
        series = [Series("CPU", cpu), *([Series("waited for a core", starved)] if starved else [])]
        mean, most = client["cpu_share_mean"], client["cpu_share_max"]
        title = f"The client used {mean:.1%} of a core on average, {most:.1%} at most"
        about = "Shares of each second: at work, and ready to work while others had the cores."
        charts.append(lines(title, about, series, y=Axis("share of a core", "%", low=0), bands=bands))
    return charts


def _client_title(client: dict[str, Any], seconds: int) -> str:
    lag = client["send_lag_ms"]
    late = f"sends were at most {said(lag['max'])} late" if lag else "nothing was sent"
    if client["client_limited"]:
        return f"The client was the limit: {client['reasons'][0]}"
    if limited := client["limited_samples"]:
        return f"The client was the limit in {limited:,} of {seconds:,} seconds; {late}"
    return f"The client kept up: {late}"


def _limited(samples: Sequence[HealthSample]) -> Iterator[Band]:
    """Stretches of samples in which the client was the limit; a sample tells of the time before it."""
    start, stretches = 0.0, []
    for sample in samples:
        end = sample.t_ns / NS_PER_S
        stretches.append((bool(sample.reasons), start, end))
        start = end
    for limited, run in groupby(stretches, key=lambda stretch: stretch[0]):
        if limited:
            spans = list(run)
            yield Band("", spans[0][1], spans[-1][2])


def _shares(samples: Sequence[HealthSample], name: str) -> list[Point]:
    known = ((s.t_ns / NS_PER_S, getattr(s, name)) for s in samples)
    return [(at, 100 * share) for at, share in known if share is not None]


def _health_table(samples: Sequence[HealthSample]) -> Table:
    chosen = (samples[place] for place in evenly(len(samples), MOST_TABLED))
    body = [
        [
            figure(round(sample.t_ns / NS_PER_S, 2)),
            f"{sample.sent:,}",
            f"{sample.in_flight:,}",
            figure(round(sample.send_lag_max_ns / NS_PER_MS, 2)),
            figure(round(sample.loop_lag_max_ns / NS_PER_MS, 2)),
            "; ".join(sample.reasons) or "ok",
        ]
        for sample in chosen
    ]
    return Table(["time, s", "sent", "in flight", "send lag, ms", "loop lag, ms", "verdict"], body)
