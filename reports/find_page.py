"""The answer of a search as one HTML page: the rate, and for every rate tried its evidence. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from reports.charts import Axis, Bound, Chart, Series, Table, scatter
from reports.compare_metrics import RATES
from reports.find import Found
from reports.find_text import answer_lines, cell, is_share, overview
from reports.page import Section, render
from reports.search import Verdict
from reports.tables import DASH
from reports.trial import MOST_GROWTH, Candidate, Evidence

ROOM = 1.03  # so that no point stands on the edge
VERDICTS: dict[Verdict, int] = {"kept": 3, "missed": 2, "open": 5}
"""With the colour of each."""


def find_page(asked: Mapping[str, Any], found: Sequence[Found]) -> str:
    """`asked` is what the search's own file says of it."""
    required = ", ".join(asked["require"])
    answers = [answer_lines(each, asked["confidence"]) for each in found]
    headlines = [f"{_named(each)}{lines[0]}." for each, lines in zip(found, answers, strict=True)]
    result = Section("Result", [*headlines, _terms(asked)], [Table(*overview(found))], id="result")
    sections = [_section(each, evidence) for each, (_, *evidence) in zip(found, answers, strict=True)]
    return render(f"Highest rate that keeps {required}", [result, *sections])


def _terms(asked: Mapping[str, Any]) -> str:
    how = "simulated" if asked["measured"] is None else f"measured at {asked['measured']}"
    return (
        f"Each rate is {how} with at most {asked['max_requests']:,} requests; "
        f"the rate is wanted to {asked['resolution']:.3g} of it."
    )


def _named(found: Found) -> str:
    return f"{found.label}: " if found.label else ""


def _section(found: Found, evidence: Sequence[str]) -> Section:
    first = found.candidates[0].evidence if found.candidates else []
    charts = [_requirement_chart(found, place) for place in range(len(first))]
    return Section(
        found.label or "Every rate",
        evidence,
        [_tried(found)],
        [*charts, *([_growth_chart(found)] if found.candidates else [])],
    )


def _requirement_chart(found: Found, place: int) -> Chart:
    """What was seen of one requirement at each rate, with its interval."""
    needed = found.candidates[0].evidence[place]
    share = is_share(needed)
    scale = 100.0 if share else 1.0
    known = [(each.rate, each.evidence[place]) for each in found.candidates]
    series = []
    for verdict, color in VERDICTS.items():
        here = [(rate, each) for rate, each in known if each.verdict == verdict and each.value is not None]
        points = [(rate, scale * (each.value or 0)) for rate, each in here]
        series.append(Series(verdict, points, spread=[_spread(each, scale) for _, each in here], color=color))
    text = needed.requirement
    return scatter(
        f"{_named(found)}by itself, {text} {_outcome(known)}",
        f"What was seen of {text} at each rate, with its interval. Dotted: what is needed. For the "
        "answer the queue must not grow either, which is the last chart.",
        [each for each in series if each.points],
        x=_rates(found),
        y=_share_axis(series) if share else _figure_axis(text),
        bounds=[Bound(f"needed: {cell(needed, needed.needed)}", scale * needed.needed)],
        table=_evidence_table(known),
    )


def _rates(found: Found) -> Axis:
    return Axis("offered load", "req/s", low=0, high=ROOM * found.candidates[-1].rate)


def _share_axis(series: Sequence[Series]) -> Axis:
    ends = [end for each in series for pair in each.spread if pair for end in pair]
    values = [value for each in series for _, value in each.points]
    return Axis(
        "that keep it", "% of requests", high=100 + (ROOM - 1) * (100 - min([*ends, *values], default=0))
    )


def _figure_axis(requirement: str) -> Axis:
    """With the unit of its figure, as in `goodput>=3`."""
    figure = requirement.split("<")[0].split(">")[0]
    return Axis(figure, RATES.get(figure.split()[-1], "ms"))


def _spread(each: Evidence, scale: float) -> tuple[float, float] | None:
    if each.low is None or each.high is None or not (isfinite(each.low) and isfinite(each.high)):
        return None
    return scale * each.low, scale * each.high


def _outcome(known: Sequence[tuple[float, Evidence]]) -> str:
    kept = [rate for rate, each in known if each.verdict == "kept"]
    missed = [rate for rate, each in known if each.verdict == "missed"]
    if len(missed) == len(known):
        return "is missed at every rate"
    above = [rate for rate in missed if not kept or rate > min(kept)]
    begins = "up" if len(above) == len(missed) else f"from {min(kept):g}"  # below it lacks load
    parts = [f"is kept {begins} to {max(kept):g} req/s"] if kept else []
    parts += [f"is missed from {min(above):g} req/s on"] if above else []
    return " and ".join(parts) or "is open at every rate"


def _growth_chart(found: Found) -> Chart:
    """A queue that grows keeps any limit until it has grown enough."""
    series = [
        Series(
            verdict,
            [(each.rate, 100 * each.growth) for each in found.candidates if each.verdict == verdict],
            color=color,
        )
        for verdict, color in VERDICTS.items()
    ]
    most = max(found.candidates, key=lambda each: each.growth)
    steady = most.growth <= MOST_GROWTH
    return scatter(
        f"{_named(found)}the queue grows at no rate tried"
        if steady
        else f"{_named(found)}at {most.rate:g} req/s the queue grows by {most.growth:.1%} of what arrives",
        "How many more were in flight at the last arrival than half-way, in % of the arrivals between. "
        f"Above {MOST_GROWTH:.0%} the load cannot be kept up.",
        [each for each in series if each.points],
        x=_rates(found),
        y=Axis("growth", "% of arrivals"),
        bounds=[Bound("steady below", 100 * MOST_GROWTH)],
    )


def _evidence_table(known: Sequence[tuple[float, Evidence]]) -> Table:
    head = ("req/s", "verdict", "value", "low", "high", "needed", "requests", "worth")
    rows = [
        [
            f"{rate:g}",
            each.verdict,
            *(cell(each, value) for value in (each.value, each.low, each.high, each.needed)),
            f"{each.n:,}",
            DASH if each.worth is None else f"{each.worth:,.0f}",
        ]
        for rate, each in known
    ]
    return Table(head, rows)


def _tried(found: Found) -> Table:
    rows = [[f"{each.rate:g}", each.verdict, *_facts(each)] for each in found.candidates]
    return Table(("req/s", "verdict", "requests", "repeats", "looks", "growth", "why"), rows)


def _facts(each: Candidate) -> list[str]:
    return [f"{each.requests:,}", f"{each.repeats}", f"{each.looks}", f"{each.growth:+.1%}", each.reason]
