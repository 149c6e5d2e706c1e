"""Requests from top to bottom, time from left to right: where each one was when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from reports.charts.frame import RIGHT, WIDTH, legend, swatch
from reports.charts.scales import Scale, scale, ticks
from reports.charts.shapes import TIME, Axis, Chart, Table
from reports.charts.svg import element, label, number, picture, words
from reports.charts.thinning import evenly
from reports.numbers import figure
from reports.tables import DASH, shortened

MOST_TABLED = 200
ROW, TOGETHER = 20.0, 10  # px of a request, and how many of them paper keeps together
MOST_MARK, MARK_GAP = 180.0, 8.0
HEAD, BOUND_NAMES = 30.0, 14.0
LETTER, MOST_LETTERS = 7.2, 18
KINDS = ("queue", "prefill", "decode", "other")


class Bar(NamedTuple):
    """One request: its spans as (kind, from, to) in seconds, and a mark such as † at the right.

    `named`: the title speaks of it.
    """

    label: str
    spans: Sequence[tuple[str, float, float]]
    mark: str = ""
    named: bool = False


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
    """In the order given, with room for each: who has more than some tens chooses among them.

    `words_for` says the kinds of spans (and "request") in another language.
    """
    said = {kind: kind for kind in (*KINDS, "request")} | dict(words_for or {})
    of = _scale(rows, x, bounds)
    deep = HEAD + BOUND_NAMES * bool(bounds)
    size = f"0 0 {number(WIDTH)} {number(deep)}"
    head = element("svg", _head(of, x, bounds, deep), viewBox=size, class_="plot", aria_hidden="true")
    pictures = _pictures(of, title, description, rows, said, bounds)
    parts = (element("div", head, class_="head"), element("div", *pictures, class_="rows"))
    box = element("div", *parts, class_="timeline", tabindex="0", role="region", aria_label=title)
    return Chart(title, description, _keys(rows, said) + box, table or _table(rows, said), note)


def _pictures(
    of: Scale,
    title: str,
    description: str,
    rows: Sequence[Bar],
    said: Mapping[str, str],
    bounds: Sequence[tuple[str, float]],
) -> Iterator[str]:
    """One below the other, without a gap: paper is cut between them. The first stands for all."""
    for start in range(0, max(1, len(rows)), TOGETHER):
        part = rows[start : start + TOGETHER]
        height = ROW * len(part) or ROW
        inside = [_named(of, part), _grid(of, height), _bounds(of, bounds, height), _bars(of, part, said)]
        if start:
            size = f"0 0 {number(WIDTH)} {number(height)}"
            yield element("svg", *inside, viewBox=size, class_="plot", aria_hidden="true")
        else:
            yield picture(title, description, WIDTH, height, *inside)


def _keys(rows: Sequence[Bar], said: Mapping[str, str]) -> str:
    there = {_known(kind) for row in rows for kind, _, _ in row.spans}
    return legend([(swatch(_key(kind)), said[kind]) for kind in KINDS if kind in there])


def _scale(rows: Sequence[Bar], x: Axis, bounds: Sequence[tuple[str, float]]) -> Scale:
    """With room for labels on the left and marks on the right, where there are such."""
    instants = [end for row in rows for _, start, stop in row.spans for end in (start, stop)]
    instants += [at for _, at in bounds]
    if x.high is None and instants:
        x = x._replace(high=max(instants))  # no empty stretch after the end
    letters = min(MOST_LETTERS, max((len(row.label) for row in rows), default=0))
    return scale(x, instants, 20 + LETTER * letters, WIDTH - RIGHT - _room(rows), ticks=8)


def _room(rows: Sequence[Bar]) -> float:
    """For the marks."""
    return min(MOST_MARK, LETTER * max((len(row.mark) for row in rows), default=0))


def _head(of: Scale, axis: Axis, bounds: Sequence[tuple[str, float]], deep: float) -> str:
    parts = [label(of.at(tick.value), deep - 6, tick.label, text_anchor="middle") for tick in ticks(of, 8)]
    parts.append(label(4, 11, axis.label, class_="axis-name"))
    for name, at in bounds:
        late = of.at(at) > WIDTH / 2
        anchor = "end" if late else "start"
        parts.append(label(of.at(at), deep - 20, name, text_anchor=anchor, class_="bound-name"))
    return "".join(parts)


def _grid(of: Scale, height: float) -> str:
    d = "".join(f"M{number(of.at(tick.value))} 0v{number(height)}" for tick in ticks(of, 8))
    return element("path", d=d, class_="grid")


def _bounds(of: Scale, bounds: Sequence[tuple[str, float]], height: float) -> str:
    return "".join(
        element("path", d=f"M{number(of.at(at))} 0v{number(height)}", class_="bound") for _, at in bounds
    )


def _named(of: Scale, rows: Sequence[Bar]) -> str:
    """A ground below the requests that the title speaks of."""
    places = (place for place, row in enumerate(rows) if row.named)
    return "".join(
        element("rect", x=0.0, y=ROW * place, width=WIDTH, height=ROW, class_="named") for place in places
    )


def _bars(of: Scale, rows: Sequence[Bar], said: Mapping[str, str]) -> str:
    parts = []
    for place, row in enumerate(rows):
        middle = ROW * place + ROW / 2
        boxes = [_box(of, span, middle) for span in row.spans]
        told = element("title", words(_told(row, said)))
        shade = "named" if row.named else None
        short = shortened(row.label, MOST_LETTERS)
        name = label(of.start - 8, middle + 4, short, text_anchor="end", class_=shade)
        mark = label(of.end + MARK_GAP, middle + 4, row.mark, class_="mark") if row.mark else ""
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
