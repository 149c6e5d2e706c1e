"""Requests from top to bottom, time from left to right: where each one was when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from reports.charts.frame import RIGHT, WIDTH, legend, swatch
from reports.charts.scales import Scale, scale, ticks
from reports.charts.shapes import TIME, Axis, Chart, Table
from reports.charts.svg import element, label, number, picture, words
from reports.charts.thinning import evenly
from reports.numbers import figure
from reports.tables import DASH, shortened

MOST_NAMED = 80  # requests, with room for a label each
MOST_ROWS = 3_000
MOST_TABLED = 200
NAMED_PX, THIN_PX, NARROW_LEFT = 20.0, 3.0, 16.0
MOST_MARK = 130.0
HEAD, LETTER, MOST_LETTERS = 30.0, 7.2, 18
KINDS = ("queue", "prefill", "decode", "other")


class Bar(NamedTuple):
    """One request: its spans as (kind, from, to) in seconds, and a mark such as † behind them."""

    label: str
    spans: Sequence[tuple[str, float, float]]
    mark: str = ""


def timeline(
    title: str,
    description: str,
    rows: Sequence[Bar],
    *,
    x: Axis = TIME,
    table: Table | None = None,
    note: str = "",
    words_for: Mapping[str, str] | None = None,
    bounds: Sequence[tuple[str, float]] = (),
) -> Chart:
    """In the order given. `words_for` says the kinds of spans (and "request") in other words."""
    said = {kind: kind for kind in (*KINDS, "request")} | dict(words_for or {})
    table = table or _table(rows, said)
    if len(rows) > MOST_ROWS:
        note = f"{note} An even sample of {MOST_ROWS:,} of {len(rows):,} requests is drawn.".strip()
        rows = [rows[place] for place in evenly(len(rows), MOST_ROWS)]
    named = len(rows) <= MOST_NAMED
    of = _scale(rows, x, bounds, named=named)
    height = (NAMED_PX if named else THIN_PX) * len(rows) + 6
    lines = _grid(of, height) + _bounds(of, bounds, height)
    inside = _named(of, rows, said) if named else _thin(of, rows)
    size = f"0 0 {number(WIDTH)} {number(HEAD)}"
    head = element("svg", _head(of, x, bounds), viewBox=size, class_="plot head", aria_hidden="true")
    body = picture(title, description, WIDTH, height, lines, inside)
    box = element("div", head, body, class_="timeline", tabindex="0", role="region", aria_label=title)
    return Chart(title, description, _keys(rows, said) + box, table, note)


def _keys(rows: Sequence[Bar], said: Mapping[str, str]) -> str:
    there = {_known(kind) for row in rows for kind, _, _ in row.spans}
    return legend([(swatch(_key(kind)), said[kind]) for kind in KINDS if kind in there])


def _scale(rows: Sequence[Bar], x: Axis, bounds: Sequence[tuple[str, float]], *, named: bool) -> Scale:
    """With room for labels on the left and marks on the right, where there are such."""
    instants = [end for row in rows for _, start, stop in row.spans for end in (start, stop)]
    instants += [at for _, at in bounds]
    if x.high is None and instants:
        x = x._replace(high=max(instants))  # no empty stretch after the end
    letters = min(MOST_LETTERS, max((len(row.label) for row in rows), default=0))
    left = 14 + LETTER * letters if named else NARROW_LEFT
    return scale(x, instants, left, WIDTH - RIGHT - (_room(rows) if named else 0), ticks=8)


def _room(rows: Sequence[Bar]) -> float:
    """For what stands behind the last one."""
    return min(MOST_MARK, LETTER * max((len(row.mark) for row in rows), default=0))


def _head(of: Scale, axis: Axis, bounds: Sequence[tuple[str, float]]) -> str:
    parts = [label(of.at(tick.value), 24, tick.label, text_anchor="middle") for tick in ticks(of, 8)]
    parts.append(label(4, 11, axis.label, class_="axis-name"))
    for name, at in bounds:
        late = of.at(at) > WIDTH / 2
        parts.append(label(of.at(at), 10, name, text_anchor="end" if late else "start", class_="bound-name"))
    return "".join(parts)


def _grid(of: Scale, height: float) -> str:
    d = "".join(f"M{number(of.at(tick.value))} 0v{number(height)}" for tick in ticks(of, 8))
    return element("path", d=d, class_="grid")


def _bounds(of: Scale, bounds: Sequence[tuple[str, float]], height: float) -> str:
    return "".join(
        element("path", d=f"M{number(of.at(at))} 0v{number(height)}", class_="bound") for _, at in bounds
    )


def _named(of: Scale, rows: Sequence[Bar], said: Mapping[str, str]) -> str:
    parts = []
    for place, row in enumerate(rows):
        middle = NAMED_PX * place + NAMED_PX / 2 + 3
        boxes = [_box(of, span, middle) for span in row.spans]
        told = element("title", words(_told(row, said)))
        name = label(of.start - 8, middle + 4, shortened(row.label, MOST_LETTERS), text_anchor="end")
        end = max((of.at(stop) for _, _, stop in row.spans), default=of.start)
        mark = label(end + 4, middle + 4, row.mark, class_="mark") if row.mark else ""
        parts.append(element("g", told, name, *boxes, mark))
    return "".join(parts)


def _box(of: Scale, span: tuple[str, float, float], middle: float) -> str:
    kind, start, stop = span
    x, end = of.at(start), of.at(stop)
    thick = {"queue": 6, "prefill": 14, "decode": 10}.get(kind, 4)
    return element(
        "rect",
        x=x,
        y=middle - thick / 2,
        width=max(end - x, 0.5),
        height=thick,
        class_=f"phase {_known(kind)}",
    )


def _thin(of: Scale, rows: Sequence[Bar]) -> str:
    """One path for each kind."""
    paths: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for place, row in enumerate(rows):
        y = number(THIN_PX * place + THIN_PX / 2 + 3)
        for kind, start, stop in row.spans:
            x = of.at(start)
            paths[_known(kind)].append(f"M{number(x)} {y}h{number(max(of.at(stop) - x, 0.5))}")
    return "".join(
        element("path", d="".join(found), class_=f"thin {kind}") for kind, found in paths.items() if found
    )


def _known(kind: str) -> str:
    return kind if kind in KINDS else "other"


def _told(row: Bar, said: Mapping[str, str]) -> str:
    spans = ", ".join(
        f"{said.get(kind, kind)} {figure(start)}-{figure(stop)} s" for kind, start, stop in row.spans
    )
    return " ".join(filter(None, [f"{row.label}:", spans, row.mark]))


def _table(rows: Sequence[Bar], said: Mapping[str, str]) -> Table:
    """How long each request was in each phase; evenly chosen if there are too many."""
    there = [kind for kind in KINDS if any(kind == span[0] for row in rows for span in row.spans)]
    chosen = [rows[place] for place in evenly(len(rows), MOST_TABLED)]
    body = []
    for row in chosen:
        spent = [[stop - start for of, start, stop in row.spans if of == kind] for kind in there]
        start = min((span[1] for span in row.spans), default=None)
        times = [figure(round(sum(each), 6)) if each else DASH for each in spent]
        body.append([f"{row.label} {row.mark}".strip(), figure(start), *times])
    return Table([said["request"], "from, s", *(f"{said[kind]}, s" for kind in there)], body)


def _key(kind: str) -> str:
    return element("rect", x=2, y=1, width=24, height=10, class_=f"phase {kind}")
