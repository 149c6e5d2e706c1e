"""A calibration as one HTML page: up to which load the stamps are right, and what limited them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ledgers.calibration import LIMIT_MS, PATTERNS, Calibration, Pattern, Rung
from ledgers.distributions import Distribution
from reports.calibration_text import COLUMNS, LEGEND, NAMES, answer_words, cells, reasons
from reports.charts import Axis, Bound, Chart, Series, Table, lines
from reports.charts.shapes import Style
from reports.page import Section, render
from reports.tables import DASH, ms
from reports.text import load

STREAMS = Axis("streams at a time", "", "log")
STYLES: dict[str, Style] = {"p99": "line", "p50": "dashed"}
LEAST = 0.001
"""What a logarithmic axis shows in place of less: no stamp tells a thousandth of a millisecond."""


def calibration_page(calibration: Calibration) -> str:
    rungs = calibration.rungs
    why = [words for rung in rungs for words in reasons(rung)]
    return render(
        "Calibration of the load generator",
        [
            Section("Result", [answer_words(calibration), *why], id="result"),
            Section(
                "By load", charts=[*_error_charts(calibration), *_load_charts(calibration)], id="by-load"
            ),
            Section("Every load", [LEGEND], [Table(COLUMNS, list(map(cells, rungs)))], id="loads"),
            Section("Where and when", tables=[_machine(calibration)], id="where"),
        ],
    )


def _error_charts(calibration: Calibration) -> list[Chart]:
    rungs = [rung for rung in calibration.rungs if rung.tells]
    first = [(rung, rung.first_ms) for rung in rungs if rung.first_ms]
    every = [(rung, rung.token_ms) for rung in rungs if rung.token_ms]
    return [
        _error_chart(of, found) for of, found in (("First tokens", first), ("All tokens", every)) if found
    ]


def _error_chart(of: str, found: Sequence[tuple[Rung, Distribution]]) -> Chart:
    """p99 as a line and p50 dashed, for each pattern."""
    series = [
        Series(f"{pattern} {name}", points, style, color=color)
        for color, pattern in enumerate(PATTERNS, 1)
        for name, style in STYLES.items()
        if (points := _curve([(rung, getattr(each, name)) for rung, each in found], pattern))
    ]
    return lines(
        _error_title(of, [(rung, each.p99) for rung, each in found]),
        "Distance of the client's stamp from the server's write, by streams at a time, in both patterns, on "
        f"logarithmic axes. Above {LIMIT_MS:g} ms the stamps are not taken for right.",
        series,
        x=STREAMS,
        y=Axis("error", "ms", "log"),
        bounds=[Bound("trusted below", LIMIT_MS)],
    )


def _error_title(of: str, p99_ms: Sequence[tuple[Rung, float]]) -> str:
    """Where it stops to be trustworthy, or how far off it was at most."""
    over = [(rung, error) for rung, error in p99_ms if error >= LIMIT_MS]
    if over:
        rung, error = min(over, key=lambda pair: pair[0].streams)
        return f"{of} are off by {ms(error)} ms at p99 {_name(rung)}"
    rung, error = max(p99_ms, key=lambda pair: pair[1])
    return f"{of} are off by {ms(error)} ms at p99 at most, {_name(rung)}"


def _curve(values: Sequence[tuple[Rung, float]], pattern: Pattern) -> list[tuple[float, float]]:
    return [(float(rung.streams), max(value, LEAST)) for rung, value in values if rung.pattern == pattern]


def _load_charts(calibration: Calibration) -> list[Chart]:
    """CPU, where it is known."""
    known = [(rung, 100 * rung.cpu_share) for rung in calibration.rungs if rung.cpu_share is not None]
    if not known:
        return []
    rung, most = max(known, key=lambda pair: pair[1])
    series = [Series(pattern, points) for pattern in PATTERNS if (points := _curve(known, pattern))]
    return [
        lines(
            f"The load generator took {most:.0f}% of a core at most, {_name(rung)}",
            "Share of one core that the load generator used, by streams at a time, in both patterns.",
            series,
            x=STREAMS,
            y=Axis("CPU", "% of a core", low=0),
        )
    ]


def _name(rung: Rung) -> str:
    return f"{NAMES[rung.pattern]} at {load(rung.streams, rung.tokens_per_s)}"


def _machine(calibration: Calibration) -> Table:
    machine = calibration.machine
    facts = {
        "calibrated at": calibration.calibrated_at,
        "version": calibration.version,
        "system": machine.system,
        "machine": machine.machine,
        "processor": machine.cpu,
        "cores": DASH if machine.cpus is None else str(machine.cpus),
        "Python": machine.python,
        "event loop": machine.event_loop,
    }
    return Table(("", "value"), [[name, value] for name, value in facts.items()])
