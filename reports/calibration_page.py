"""A calibration as one HTML page: up to which load the stamps are right, and what limited them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ledgers.calibration import LIMIT_MS, PATTERNS, Calibration, Rung
from ledgers.distributions import Distribution
from reports.calibration_text import LEGEND, NAMES, answer
from reports.charts import Axis, Bound, Chart, Series, Table, lines
from reports.page import Section, render
from reports.text import DASH, load, ms

STREAMS = Axis("streams at a time", "", "log")
HEAD = (
    "pattern",
    "streams",
    "tokens/s",
    "first p50, ms",
    "first p99, ms",
    "first max, ms",
    "every token p99, ms",
    "upper bounds",
    "send lag p99, ms",
    "CPU of a core",
    "verdict",
)


def calibration_page(calibration: Calibration) -> str:
    rungs = calibration.rungs
    reasons = [f"{_name(rung)}: {'; '.join(rung.reasons)}" for rung in rungs if rung.reasons]
    return render(
        "Calibration of the load generator",
        [
            Section("Result", [" ".join(answer(calibration).split()), *reasons], id="result"),
            Section("Error of the stamps", charts=_error_charts(calibration), id="error"),
            Section("Load of the machine", charts=_load_charts(calibration), id="machine"),
            Section("Every load", [LEGEND], [Table(HEAD, list(map(_cells, rungs)))], id="loads"),
            Section("Where and when", tables=[_machine(calibration)], id="where"),
        ],
    )


def _error_charts(calibration: Calibration) -> list[Chart]:
    return [
        _error_chart("first tokens", "first", [(rung, rung.first_ms) for rung in calibration.rungs]),
        _error_chart("every token", "every", [(rung, rung.token_ms) for rung in calibration.rungs]),
    ]


def _error_chart(of: str, name: str, found: Sequence[tuple[Rung, Distribution | None]]) -> Chart:
    """p99 as a line and p50 dashed, for each pattern."""
    series = []
    for pattern in PATTERNS:
        known = [
            (rung.streams, each) for rung, each in found if rung.pattern == pattern and each and rung.tells
        ]
        series.append(Series(f"{pattern} p99", [(float(n), max(each.p99, LEAST_MS)) for n, each in known]))
        series.append(
            Series(f"{pattern} p50", [(float(n), max(each.p50, LEAST_MS)) for n, each in known], "dashed")
        )
    worst = max(
        ((each.p99, rung) for rung, each in found if each and rung.tells),
        key=lambda pair: pair[0],
        default=None,
    )
    title = (
        f"Error of {of}: nothing was found"
        if worst is None
        else f"Error of {of}: p99 at most {ms(worst[0])} ms, {_name(worst[1])}"
    )
    return lines(
        title,
        "Distance of the client's stamp from the server's write, by streams at a time, in both patterns, on "
        f"logarithmic axes. Above {LIMIT_MS:g} ms the stamps are not taken for right.",
        [each for each in series if each.points],
        x=STREAMS,
        y=Axis("error", "ms", "log"),
        bounds=[Bound("trusted below", LIMIT_MS)],
    )


LEAST_MS = 0.001
"""What a logarithmic axis shows in place of less: a thousandth of a millisecond is beyond all stamps."""


def _load_charts(calibration: Calibration) -> list[Chart]:
    """CPU and send lag, where they are known."""
    known = [rung for rung in calibration.rungs if rung.cpu_share is not None]
    charts = []
    if known:
        most = max(known, key=lambda rung: rung.cpu_share or 0)
        charts.append(
            lines(
                f"The load generator took {most.cpu_share or 0:.0%} of a core at most, {_name(most)}",
                "Share of one core that the load generator used, by streams at a time, in both patterns.",
                [
                    Series(
                        pattern,
                        [
                            (float(rung.streams), 100 * (rung.cpu_share or 0))
                            for rung in known
                            if rung.pattern == pattern
                        ],
                    )
                    for pattern in PATTERNS
                ],
                x=STREAMS,
                y=Axis("CPU", "% of a core", low=0),
            )
        )
    return charts


def _cells(rung: Rung) -> list[str]:
    first, every = rung.first_ms, rung.token_ms
    return [
        rung.pattern,
        f"{rung.streams:,}",
        f"{rung.tokens_per_s:,.0f}",
        *(ms(getattr(first, name) if first else None) for name in ("p50", "p99", "max")),
        ms(every.p99 if every else None),
        _percent(rung.upper_bound_share, 1),
        ms(rung.send_lag_p99_ms),
        _percent(rung.cpu_share, 0),
        rung.verdict,
    ]


def _percent(value: float | None, digits: int) -> str:
    return DASH if value is None else f"{value:.{digits}%}"


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
