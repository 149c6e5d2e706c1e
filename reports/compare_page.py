"""Comparisons as one HTML page: the verdict, every effect with its interval, the curves of all runs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ledgers.distributions import nearest_rank
from ledgers.units import NS_PER_MS
from reports.charts import Axis, Chart, Effect, Series, Table, effects, lines, percentile_points
from reports.charts.frame import COLORS
from reports.compare import Comparison, Line
from reports.compare_metrics import Metric
from reports.compare_samples import LATENCIES, Sample
from reports.compare_text import (
    COLUMNS,
    cells,
    conclusion,
    heading,
    interval,
    remarks,
    tables,
    without_interval,
)
from reports.page import Section, render
from reports.tables import ms

OVERLAID = {"ttft": "TTFT", "e2e": "E2E", "tpot": "TPOT"}
MOST_CURVES = 12


def comparison_page(found: Sequence[Comparison], samples: Mapping[Path, Sample]) -> str:
    """Of one baseline with one run or more: what was judged, the curves, then what there is beside it."""
    curves = list(_curves(samples))
    note = f" The first {MOST_CURVES} of {len(samples)} are drawn." if len(samples) > MOST_CURVES else ""
    return render(
        _title(found),
        [
            *(_judged(each, place) for place, each in enumerate(found, 1)),
            *([Section("All runs by percentile", [CURVES + note], charts=curves)] if curves else []),
            *(_others(each, place, alone=len(found) == 1) for place, each in enumerate(found, 1)),
        ],
    )


CURVES = (
    "A point of a curve says which share of the requests that completed was faster. The axis gives each "
    "further nine as much room as the one before, so that tails can be read."
)


def _title(found: Sequence[Comparison]) -> str:
    baseline = ", ".join(found[0].baseline)
    if len(found) > 1:
        return f"{len(found)} runs against {baseline}"
    return f"{', '.join(found[0].candidate)} against {baseline}"


def _judged(found: Comparison, place: int) -> Section:
    first, *others = heading(found)
    judged = [line for line in found.lines if line.primary]
    charts = [_effects(judged)] if judged else []
    paragraphs = [_capital(conclusion(found)), *others, *remarks(found)]
    return Section(
        first, paragraphs, [_table(judged, found)] if judged else [], charts, f"comparison-{place}"
    )


def _others(found: Comparison, place: int, *, alone: bool) -> Section:
    """What was not judged: a table for each class, and of all requests a chart of what has an interval."""
    read = [(title, rows) for title, rows in tables(found) if not rows[0].primary]
    known = [
        line
        for line in found.lines
        if not line.primary and line.class_ is None and (line.low is not None or line.high is not None)
    ]
    return Section(
        "Figures beside the judged ones" + ("" if alone else f", {', '.join(found.candidate)}"),
        without_interval(found),
        charts=[_effects(known)] if known else [],
        id=f"figures-{place}",
        parts=[Section(_capital(title.rstrip(":")), tables=[_table(rows, found)]) for title, rows in read],
    )


def _effects(rows: Sequence[Line]) -> Chart:
    return effects(_finding(rows), DESCRIBED.format(len(rows)), list(map(_effect, rows)))


DESCRIBED = (
    "{0} figures, a line each: a mark for the change against the baseline, with its interval, beside the "
    "line of no change. What the tolerance forgives is shaded."
)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _table(rows: Sequence[Line], found: Comparison) -> Table:
    return Table(COLUMNS, [cells(line, found) for line in rows])


def _finding(rows: Sequence[Line]) -> str:
    """How many of the figures moved, and which most."""
    moved = [line for line in rows if line.verdict in ("better", "worse")]
    if not moved:
        untold = sum(line.verdict == "cannot tell" for line in rows)
        if untold:
            return f"Nobody can tell of {untold} of {len(rows)} figures whether they differ"
        return f"No difference shown in {len(rows)} figures"
    counts = [
        f"{count} {verdict}"
        for verdict in ("better", "worse")
        if (count := sum(line.verdict == verdict for line in moved))
    ]
    most = max(moved, key=lambda line: abs(_middle(line) or 0))
    return f"{' and '.join(counts)} of {len(rows)} figures; most changed {_name(most)}, {_change(most)}"


def _name(line: Line) -> str:
    return line.metric if line.class_ is None else f"{line.class_} {line.metric}"


def _middle(line: Line) -> float | None:
    """The change in percent, of shares in points."""
    if line.interval_of == "ratio":
        return None if line.ratio is None else 100 * (line.ratio - 1)
    return 100 * line.difference if line.unit == "share" else None


def _change(line: Line) -> str:
    middle = _middle(line)
    unit = " points" if line.unit == "share" else "%"
    return "-" if middle is None else f"{middle:+.1f}{unit}"


def _effect(line: Line) -> Effect:
    neutral = 1.0 if line.interval_of == "ratio" else 0.0
    known = line.interval_of == "ratio" or line.unit == "share"
    low, high = (
        None if limit is None or not known else 100 * (limit - neutral) for limit in (line.low, line.high)
    )
    return Effect(
        _name(line),
        _middle(line),
        low,
        high,
        _forgiven(line),
        line.verdict,
        f"{_change(line)}  {interval(line)}".replace("..", " to "),
    )


def _forgiven(line: Line) -> float:
    """The end of what the tolerance forgives, on the side where it is worse."""
    more_is_better = Metric(line.metric.partition(".")[0]).more_is_better
    return 100 * line.tolerance * (-1 if more_is_better else 1)


def _curves(samples: Mapping[Path, Sample]) -> Iterator[Chart]:
    """One chart for each latency that any run has."""
    shown = list(samples.items())[:MOST_CURVES]
    for key, name in OVERLAID.items():
        place = LATENCIES.index(key)
        found = {
            str(path): sorted(v for seen in sample.requests if (v := seen.values[place]) is not None)
            for path, sample in shown
        }
        series = [
            Series(
                run,
                [(q, value / NS_PER_MS) for q, value in percentile_points(values)],
                "line" if i < COLORS else "dashed",
            )
            for i, (run, values) in enumerate(found.items())
            if values
        ]
        if series:
            known = {run: values for run, values in found.items() if values}
            yield lines(
                _curve_title(name, known),
                f"{name} of what completed, by percentile. Runs with a curve: {len(known)} of {len(found)}.",
                series,
                x=Axis("percentile", "", "percentile"),
                y=Axis(name, "ms", "log" if _is_wide(series) else "linear"),
                table=_percentile_table(known),
            )


def _is_wide(series: Sequence[Series]) -> bool:
    """Whether a linear axis would hide what is small."""
    ends = [value for each in series for value in (each.points[0][1], each.points[-1][1])]
    return max(ends) > 100 * min(ends) > 0


def _curve_title(name: str, found: Mapping[str, Sequence[float]]) -> str:
    p95 = {run: nearest_rank(values, 95) / NS_PER_MS for run, values in found.items()}
    least, most = min(p95, key=lambda run: p95[run]), max(p95, key=lambda run: p95[run])
    if len(found) == 1:
        return f"{name} p95 is {ms(p95[least])} ms in {least}, and no other run has any"
    if ms(p95[least]) == ms(p95[most]):
        return f"{name} p95 is {ms(p95[least])} ms in every run"
    return f"{name} p95 is {ms(p95[least])} ms in {least} and {ms(p95[most])} ms in {most}"


def _percentile_table(found: Mapping[str, Sequence[float]]) -> Table:
    percents = (50, 90, 95, 99)
    rows = [
        [
            run,
            *(ms(nearest_rank(values, p) / NS_PER_MS) for p in percents),
            ms(values[-1] / NS_PER_MS),
            f"{len(values):,}",
        ]
        for run, values in found.items()
    ]
    return Table(["run, ms", *(f"p{p}" for p in percents), "max", "n"], rows)
