"""The picture of one policy: its requests as bars, and below them the KV cache, over the same ticks. Pure.

Each row is a request, each dot a token at its stamp, and decode ends at the last one; a short upright line
is where the E2E bound ends. A column per tick lies over the picture, unseen until the page's script marks the
tick that is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from reports.charts import Axis
from reports.charts.scales import Scale, scale, ticks
from reports.charts.svg import element, label, number, picture
from reports.lab.misses import misses

TOP, GAP, AXIS, RIGHT = 8.0, 30.0, 34.0, 16.0
BEFORE = 0.25  # of a tick: a column begins so much earlier, so that the tokens stamped at its tick lie in it
HEADROOM = 3  # budgets, above which the largest reserve would be too low to see


class Size(NamedTuple):
    """Of a picture: its width, the room for labels, the height of a row and of the KV curve."""

    width: float
    left: float
    row: float
    kv: float
    times: int
    dot: float
    compact: bool


LARGE = Size(980, 46, 20, 110, 12, 5, False)
SMALL = Size(460, 34, 14, 64, 6, 3, True)


class Frame(NamedTuple):
    """What all pictures of an experiment share, so that they can be compared by eye."""

    end_s: float
    tick_ms: float
    window_s: float
    setting: Mapping[str, Any]
    budget: int
    most_reserved: int

    @property
    def window_shown(self) -> bool:
        return self.window_s < self.end_s


def frame(experiment: Mapping[str, Any], policies: Sequence[Mapping[str, Any]]) -> Frame:
    """For pictures of these policies."""
    rows = [tick for policy in policies for tick in policy["ticks"]]
    last_ms = max((tick["time_ms"] for tick in rows), default=0.0)
    return Frame(
        end_s=(last_ms + experiment["tick_ms"]) / 1000,
        tick_ms=experiment["tick_ms"],
        window_s=experiment["policies"][0]["figures"]["window_s"],
        setting=experiment["setting"],
        budget=experiment["kv_budget_tokens"],
        most_reserved=max((tick["kv_reserved"] for tick in rows), default=0),
    )


def draw(
    policy: Mapping[str, Any],
    of: Frame,
    size: Size,
    words: Mapping[str, str],
    told: tuple[str, str],
    columns: Sequence[int] = (),
) -> str:
    """SVG with its title and description `told`. `columns` are the ticks that can be marked."""
    requests = policy["requests"]
    time = _time(of, size)
    top, bars = TOP, size.row * len(requests)
    kv_top = top + bars + GAP
    height = kv_top + size.kv + AXIS
    parts = [
        _grid(time, size, top, kv_top + size.kv),
        _window(time, of, top, top + bars),
        *(
            _request(request, place, time, of, size, words, top + size.row * place)
            for place, request in enumerate(requests)
        ),
        _tokens(policy, time, size, top) if dotted(of, size) else "",
        *_kv(policy["ticks"], time, of, size, kv_top, words),
        label(time.end, height - 4, words["time_s"], text_anchor="end", class_="axis-name"),
        *_columns(columns, time, of, top, kv_top + size.kv),
    ]
    return picture(*told, size.width, height, *parts)


def names(requests: Sequence[Mapping[str, Any]], of: Frame, size: Size) -> str:
    """The names of the rows alone, to stay in view beside a picture that is wider than its box."""
    height = TOP + size.row * len(requests)
    texts = [
        _name(request, of, size, TOP + size.row * (place + 0.5)) for place, request in enumerate(requests)
    ]
    box = f"0 0 {number(size.left)} {number(height)}"
    return element("svg", *texts, viewBox=box, class_="plot names", aria_hidden="true")


def dotted(of: Frame, size: Size) -> bool:
    """Whether the tokens of successive ticks can be told apart, with half a dot between them."""
    time = _time(of, size)
    return time.at(of.tick_ms / 1000) - time.at(0) >= 1.5 * size.dot


def _time(of: Frame, size: Size) -> Scale:
    return scale(Axis("", low=0, high=of.end_s), (), size.left, size.width - RIGHT)


def _window(time: Scale, of: Frame, top: float, bottom: float) -> str:
    if not of.window_shown:
        return ""
    d = f"M{number(time.at(of.window_s))} {number(top)}V{number(bottom)}"
    return element("path", d=d, class_="window-end")


def _grid(time: Scale, size: Size, top: float, bottom: float) -> str:
    marks = ticks(time, size.times)
    lines = "".join(f"M{number(time.at(mark.value))} {number(top)}V{number(bottom)}" for mark in marks)
    names = (label(time.at(mark.value), bottom + 15, mark.label, text_anchor="middle") for mark in marks)
    return element("path", d=lines, class_="grid") + "".join(names)


def spans(request: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    """Queue, prefill and decode of a request in seconds; decode ends where its last token is stamped."""
    at = request["phases"]
    begin, started, ready, last = (
        at[name] for name in ("received_ms", "prefill_start_ms", "prefill_end_ms", "last_token_ms")
    )
    ends = (
        ("queue", begin, started),
        ("prefill", started, ready),
        ("decode", ready, last),
    )
    for kind, start, end in ends:
        if start is not None and end is not None and end > start:
            yield kind, start / 1000, end / 1000


def _request(
    request: Mapping[str, Any],
    place: int,
    time: Scale,
    of: Frame,
    size: Size,
    words: Mapping[str, str],
    y: float,
) -> str:
    middle, broken = y + size.row / 2, misses(request, of.setting)
    said = words["missed_text"].format(
        id=request["id"], bounds=words["comma"].join(words[f"bound_{name}"] for name in broken)
    )
    boxes = [_box(request["id"], span, time, size, middle, words) for span in spans(request)]
    return element(
        "g",
        element("title", said) if broken else "",
        _name(request, of, size, middle),
        *boxes,
        _deadline(request, time, of, y, size.row, missed="slo" in broken),
    )


def _name(request: Mapping[str, Any], of: Frame, size: Size, middle: float) -> str:
    return label(
        size.left - 6,
        middle + (3.5 if size.compact else 4.5),
        request["id"],
        text_anchor="end",
        class_="missed" if misses(request, of.setting) else None,
    )


def _box(
    id: str, span: tuple[str, float, float], time: Scale, size: Size, middle: float, words: Mapping[str, str]
) -> str:
    kind, start, end = span
    deep = size.row * {"queue": 0.22, "prefill": 0.7, "decode": 0.7}[kind]
    said = words["span_text"].format(id=id, kind=words[kind], begin=f"{start:.2f}", end=f"{end:.2f}")
    return element(
        "rect",
        element("title", said),
        x=time.at(start),
        y=middle - deep / 2,
        width=time.at(end) - time.at(start),
        height=deep,
        rx=1.5,
        class_=f"phase {kind}",
    )


def _deadline(
    request: Mapping[str, Any], time: Scale, of: Frame, y: float, row: float, *, missed: bool
) -> str:
    if (at_s := (request["arrival_ms"] + of.setting["slo"]) / 1000) > of.end_s:
        return ""
    d = f"M{number(time.at(at_s))} {number(y + 1)}v{number(row - 2)}"
    halo = element("path", d=d, class_="halo") if missed else ""
    return halo + element("path", d=d, class_="deadline late" if missed else "deadline")


def _tokens(policy: Mapping[str, Any], time: Scale, size: Size, top: float) -> str:
    """A dot for each token where it is stamped, with a rim: the last one lies on the end of its bar."""
    places = {request["id"]: place for place, request in enumerate(policy["requests"])}
    d = []
    for tick in policy["ticks"]:
        x = number(time.at(tick["time_ms"] / 1000))
        d += [f"M{x} {number(top + size.row * (places[id] + 0.5))}h0" for id in tick["emitted"]]
    small = " small" if size.compact else ""
    return "".join(element("path", d="".join(d), class_=f"{name}{small}") for name in ("rims", "tokens"))


def _kv(
    rows: Sequence[Mapping[str, Any]],
    time: Scale,
    of: Frame,
    size: Size,
    top: float,
    words: Mapping[str, str],
) -> Iterator[str]:
    bottom, shown = top + size.kv, of.budget <= HEADROOM * max(of.most_reserved, 1)
    high = of.budget if shown else max(of.most_reserved, 1)
    value = scale(Axis("", low=0, high=high * 1.08), (), bottom, top)
    for mark in ticks(value, 2 if size.compact else 4):
        yield label(size.left - 6, value.at(mark.value) + 4, mark.label, text_anchor="end")
    yield element("path", d=f"M{number(size.left)} {number(bottom)}H{number(time.end)}", class_="axis")
    cached = _staircase(rows, "kv_cached", time, value, of)
    if cached:
        yield element("path", d=f"{cached}V{number(bottom)}H{number(size.left)}Z", class_="kv-area")
        yield element("path", d=cached, class_="kv-held")
        yield element("path", d=_staircase(rows, "kv_reserved", time, value, of), class_="kv-reserved")
    if shown:
        y = number(value.at(of.budget))
        yield element("path", d=f"M{number(size.left)} {y}H{number(time.end)}", class_="budget")
    said = words["kv_budget" if shown else "kv_above"].format(budget=f"{of.budget:,}")
    yield label(size.left, top - 6, words["kv_curve"], class_="axis-name")
    yield label(time.end, top - 6, said, text_anchor="end", class_="budget-name")


def _staircase(rows: Sequence[Mapping[str, Any]], key: str, time: Scale, value: Scale, of: Frame) -> str:
    """The state after each tick, held over the tick."""
    d, before = [], None
    for row in rows:
        y = number(value.at(row[key]))
        if before is None:
            d.append(f"M{number(time.at(row['time_ms'] / 1000))} {y}")
        elif y != before:
            d.append(f"H{number(time.at(row['time_ms'] / 1000))}V{y}")
        before = y
    if rows:
        d.append(f"H{number(time.at((rows[-1]['time_ms'] + of.tick_ms) / 1000))}")
    return "".join(d)


def _columns(of_ticks: Sequence[int], time: Scale, of: Frame, top: float, bottom: float) -> Iterator[str]:
    for tick in of_ticks:
        ends = ((tick + more) * of.tick_ms / 1000 for more in (-BEFORE, 1 - BEFORE))
        start, end = (time.at(max(end_s, 0)) for end_s in ends)
        yield element(
            "rect",
            x=start,
            y=top,
            width=end - start,
            height=bottom - top,
            class_="column",
            data_tick=str(tick),
        )
