"""The charts of a run's requests. Their titles are what the numbers say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ledgers.distributions import distribution, nearest_rank
from ledgers.rows import FAILURES
from ledgers.settings import Slo
from ledgers.units import NS_PER_MS, NS_PER_S
from reports.charts import Axis, Bound, Chart, Series, Table, lines, percentile_points
from reports.charts.thinning import evenly
from reports.charts.timeline import MOST_TABLED
from reports.numbers import figure
from reports.run_rows import RunRows
from reports.tables import ms
from reports.text import CENSORED, PERCENTILES, RESTS, marked

LONG_MS = 10_000  # from which on seconds are easier to read
MOST_INTERVALS, LEAST_IN_INTERVAL, LEAST_INTERVALS = 40, 20, 4
LEAST_FOR_P99 = 100
LEAST_IN_HALF = 15  # requests, below which a median that moves says nothing
FAR_APART = 50  # times the median, from which on a linear axis shows nothing but the tail
SHARE = Axis("share of requests", scale="percentile")
OTHERWISE = FAILURES | {"rejected", "cancelled"}
UNCORRECTED = "from the send (uncorrected)"


class Latency(NamedTuple):
    """A latency: its name, and the columns to draw with what each is called."""

    key: str
    name: str
    meaning: str
    curves: Mapping[str, str]
    bound: str


LATENCIES = (
    Latency(
        "ttft",
        "TTFT",
        "Time to first token, from the intended arrival",
        {"ttft": "TTFT", "ttft_from_send": UNCORRECTED, "queue_delay": "queue delay"},
        "ttft_ms",
    ),
    Latency("tpot", "TPOT", "Time per output token after the first", {"tpot": "TPOT"}, "tpot_ms"),
    Latency(
        "e2e",
        "E2E",
        "From the intended arrival to the last token",
        {"e2e": "E2E", "e2e_from_send": UNCORRECTED},
        "e2e_ms",
    ),
)


def said(value_ms: float) -> str:
    """A duration as a title says it."""
    if value_ms >= 1000:
        return f"{value_ms / 1000:.3g} s" if value_ms < 999_500 else f"{value_ms / 1000:,.0f} s"
    return f"{value_ms:.0f} ms" if value_ms >= 100 else f"{ms(value_ms)} ms"


def percentile_charts(rows: RunRows, summary: dict[str, Any]) -> list[Chart]:
    """TTFT, TPOT and E2E of the completed requests, as far as there are any."""
    return [_percentiles(rows, summary, each) for each in LATENCIES if summary[f"{each.key}_ms"]]


def _percentiles(rows: RunRows, summary: dict[str, Any], of: Latency) -> Chart:
    values = {column: sorted(rows.known(column, rows.completed)) for column in of.curves}
    values = {column: found for column, found in values.items() if found}
    found = summary[f"{of.key}_ms"]
    unit, ns = _unit(found["max"])
    series = [
        Series(
            of.curves[column],
            [(q, value / ns) for q, value in percentile_points(ordered)],
            "dashed" if column != of.key else "step",
        )
        for column, ordered in values.items()
    ]
    tail = found["max"] > FAR_APART * found["p50"] > 0
    notes = [CENSORED] if summary["censored"] else []
    return lines(
        _spread(of.name, found),
        f"{of.meaning}, of {found['n']:,} requests: p50 {said(found['p50'])}, p90 {said(found['p90'])}, "
        f"p99 {said(found['p99'])}, at most {said(found['max'])}.{_hidden(values)}",
        series,
        x=SHARE,
        y=Axis(of.name, unit, "log") if tail else Axis(of.name, unit, low=0),
        bounds=_slo_bounds(rows.slo, of.bound, ns),
        table=_percentile_table(summary, of.curves, values),
        note=". ".join([*notes, *([RESTS] if of.key + "_ms" in summary["rests_on_largest"] else [])]),
    )


def _spread(name: str, found: dict[str, Any]) -> str:
    """p99 beside p50; p99 of fewer than 100 is the largest."""
    if found["n"] == 1:
        return f"{name} of the one completed request is {said(found['max'])}"
    largest = f", the largest of {found['n']}," if found["n"] < LEAST_FOR_P99 else ""
    return f"{name} p99{largest} is {said(found['p99'])}, {_against_median(found['p99'], found['p50'])}"


def _hidden(values: Mapping[str, Sequence[int]]) -> str:
    """What a tool would have said that counts from the send; `values` are in ascending order."""
    other = next((found for column, found in values.items() if column.endswith("_from_send")), None)
    return (
        f" Counted from the send, p99 would be {said(nearest_rank(other, 99) / NS_PER_MS)}." if other else ""
    )


def _against_median(p99: float, p50: float) -> str:
    if not p50:
        return "p50 is 0"
    times = p99 / p50
    if times < 1.1:
        return f"{times - 1:.0%} above p50" if times >= 1.01 else "about the same as p50"
    return f"{times:.0f} times p50" if times >= 10 else f"{times:.1f} times p50"


def _percentile_table(
    summary: dict[str, Any], names: Mapping[str, str], values: Mapping[str, Sequence[int]]
) -> Table:
    """As the summary has it, where it has it."""
    body = []
    for column, ordered in values.items():
        key = f"{column}_ms"
        found = summary.get(key) or msgspec.to_builtins(distribution(ordered))
        body.append(
            [names[column], *(marked(summary, key, p, found) for p in PERCENTILES), f"{found['n']:,}"]
        )
    return Table(["ms", *PERCENTILES, "n"], body)


def _unit(most_ms: float) -> tuple[str, float]:
    return ("s", NS_PER_S) if most_ms >= LONG_MS else ("ms", NS_PER_MS)


def _slo_bounds(slo: Slo, name: str, ns: float) -> list[Bound]:
    bound = getattr(slo, name)
    if bound is None:
        return []
    return [Bound(f"SLO {said(bound)}", bound * NS_PER_MS / ns)]


def latency_over_time(rows: RunRows, summary: dict[str, Any]) -> Chart | None:
    """Each completed request by its arrival, and percentiles of intervals where there are enough."""
    for key, name in (("ttft", "TTFT"), ("e2e", "E2E")):  # what was not streamed has no TTFT
        if pairs := list(rows.pairs("origin", key, rows.completed)):
            return _over_time(rows, summary[f"{key}_ms"], name, pairs)
    return None


def _over_time(rows: RunRows, found: dict[str, float], name: str, pairs: Sequence[tuple[int, int]]) -> Chart:
    unit, ns = _unit(found["max"])
    dots = [(at / NS_PER_S, value / ns) for at, value in pairs]
    series = [Series(f"{name} of each request", dots, "dots", color=5)]
    table = Table(["arrival, s", f"{name}, ms"], [[figure(x), ms(v / NS_PER_MS)] for x, v in _few(pairs)])
    if curves := list(_by_interval(pairs)):
        series += [
            Series("p50 of an interval", [(at, p50 / ns) for at, _, p50, _ in curves], color=1),
            Series("p99 of an interval", [(at, p99 / ns) for at, _, _, p99 in curves], color=2),
        ]
        body = [
            [figure(at), f"{n:,}", ms(p50 / NS_PER_MS), ms(p99 / NS_PER_MS)] for at, n, p50, p99 in curves
        ]
        table = Table(["arrival around, s", "requests", f"{name} p50, ms", f"{name} p99, ms"], body)
    tail = found["max"] > FAR_APART * found["p50"] > 0
    bounds = _slo_bounds(rows.slo, f"{name.lower()}_ms", ns)
    few = "Where an interval has fewer than 100 requests, p99 is the largest." if len(series) > 1 else ""
    return lines(
        _moved(name, pairs),
        f"{name} of the completed requests by time of arrival.",
        series,
        x=Axis("arrival", "s"),
        y=Axis(name, unit, "log") if tail else Axis(name, unit, low=0),
        bounds=bounds,
        table=table,
        note=few,
    )


def _few(pairs: Sequence[tuple[int, int]]) -> list[tuple[float, int]]:
    return [(pairs[i][0] / NS_PER_S, pairs[i][1]) for i in evenly(len(pairs), MOST_TABLED)]


def _moved(name: str, pairs: Sequence[tuple[int, int]]) -> str:
    """What the median did from the first to the second half of the arrivals; of few, where they lie."""
    middle = (pairs[0][0] + pairs[-1][0]) / 2
    halves = [[value for at, value in pairs if (at > middle) == late] for late in (False, True)]
    if min(map(len, halves)) < LEAST_IN_HALF:
        return _lie(name, [value for _, value in pairs])
    first, second = (nearest_rank(sorted(half), 50) / NS_PER_MS for half in halves)
    if 0.9 * first <= second <= 1.1 * first:
        return f"{name} p50 stayed about {said(second)} from the first to the second half of the arrivals"
    moved = "rose" if second > first else "fell"
    return f"{name} p50 {moved} from {said(first)} in the first half of the arrivals to {said(second)}"


def _lie(name: str, values: Sequence[int]) -> str:
    low, high = (said(value / NS_PER_MS) for value in (min(values), max(values)))
    if len(values) == 1:
        return f"{name} of the one completed request is {low}"
    if low == high:
        return f"{name} of all {len(values):,} completed requests is {low}"
    return f"{name} of the {len(values):,} completed requests is from {low} to {high}"


def _by_interval(pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[float, int, float, float]]:
    """Of each interval with requests: its middle in s, their number, p50 and p99 in ns."""
    count = min(MOST_INTERVALS, len(pairs) // LEAST_IN_INTERVAL)
    first, last = pairs[0][0], pairs[-1][0]
    if count < LEAST_INTERVALS or last == first:
        return
    width = (last - first) / count
    found: list[list[int]] = [[] for _ in range(count)]
    for at, value in pairs:
        found[min(int((at - first) / width), count - 1)].append(value)
    for place, values in enumerate(found):
        if values:
            values.sort()
            middle = (first + (place + 0.5) * width) / NS_PER_S
            yield middle, len(values), nearest_rank(values, 50), nearest_rank(values, 99)


def failures_over_time(rows: RunRows) -> Chart | None:
    """When requests failed, were rejected or cancelled, by outcome; None where none did."""
    times: dict[str, list[float]] = {}
    origin, leave = rows["origin"], rows["leave"]
    for i in rows.kept:
        at = origin[i] if leave[i] is None else leave[i]
        if (outcome := rows.outcome(i)) in OTHERWISE and at is not None:
            times.setdefault(outcome, []).append(at / NS_PER_S)
    if not times:
        return None
    counts = Counter({outcome: len(found) for outcome, found in times.items()})
    named = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.most_common())
    first = min(min(found) for found in times.values())
    end_s = max(rows.t_obs_ns / NS_PER_S, max(max(found) for found in times.values()))
    total = sum(counts.values())
    series = [Series(outcome, _counted(times[outcome], end_s), "step") for outcome, _ in counts.most_common()]
    body = [
        [name, f"{count:,}", figure(min(times[name])), figure(max(times[name]))]
        for name, count in counts.most_common()
    ]
    return lines(
        f"{total:,} of {len(rows.kept):,} {rows.noun} ended without completing in the window: "
        f"{named}{_for_good(rows)}",
        f"How many ended so in each of {MOST_INTERVALS} intervals; the first at {first:.3g} s.",
        series if len(series) > 1 else [series[0]._replace(style="area")],
        y=Axis(f"{rows.noun} per interval", whole=True),
        table=Table(["outcome", rows.noun, "first, s", "last, s"], body),
    )


def _for_good(rows: RunRows) -> str:
    """How many requests had not completed by then, where they had several attempts."""
    if not rows.retried:
        return ""
    tried = {rows["request"][i] for i in rows.kept}
    lost = len(tried - {rows["request"][i] for i in rows.completed})
    return f"; of {len(tried):,} requests {lost:,} had not completed by its end"


def _counted(times: Sequence[float], end_s: float) -> list[tuple[float, float]]:
    width = end_s / MOST_INTERVALS or 1.0
    counts = Counter(min(int(at / width), MOST_INTERVALS - 1) for at in times)
    steps = [(place * width, float(counts[place])) for place in range(MOST_INTERVALS)]
    return [*steps, (end_s, steps[-1][1])]
