"""The charts of a run's requests one by one: who waited, when, and for how long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from ledgers.metrics import NEVER_IN_FLIGHT
from ledgers.units import NS_PER_MS, NS_PER_S
from reports.charts import Axis, Bar, Bound, Chart, Table, timeline
from reports.charts.stacked import Layer, stacked
from reports.charts.thinning import evenly
from reports.charts.timeline import MOST_TABLED
from reports.numbers import figure
from reports.run_charts import said
from reports.run_rows import RunRows
from reports.tables import DASH, ms

MOST_IN_ORDER = 60  # of whom each has a line, in order of arrival; of more, those that waited longest
LONGEST = 40
INTERVALS = 160
LEAST_LAG_NS = NS_PER_MS  # before the send, that is worth a colour
SEEN = {"queue": "queue", "prefill": "prefill", "decode": "decode"}
SEEN_BY_CLIENT = {"queue": "queue and prefill", "decode": "decode", "other": "before the send"}
Span = tuple[str, float, float]


class Waiting(NamedTuple):
    """What a wait is: its column, and how it is said of the longest one and of any."""

    key: str
    longest: str
    any: str

    def of(self, duration_ns: int) -> str:
        return self.any.format(said(duration_ns / NS_PER_MS))


QUEUED = Waiting("queue_delay", "queued longest", "queued {}")
NO_TOKEN = Waiting("ttft", "waited longest for a first token", "waited {} for a first token")
TOOK = Waiting("e2e", "took longest", "took {}")  # what was not streamed has no first token


class Wait(NamedTuple):
    """`vain`: it ended with the request, or with the run."""

    ns: int
    i: int
    vain: bool


def request_charts(rows: RunRows, *, measured: bool) -> list[Chart]:
    """Each request on a line; of many, those that waited longest, and then all of them together."""
    drawn = [i for i in range(len(rows)) if rows["origin"][i] is not None]
    if not drawn:
        return []
    of = _waiting(rows, measured=measured)
    waits = sorted(_waits(rows, of), key=lambda wait: (-wait.ns, wait.i))
    if len(drawn) <= MOST_IN_ORDER:
        return [_in_order(rows, drawn, waits, of, measured=measured)]
    longest = [_longest(rows, waits, of, measured=measured)] if waits else []
    return [*longest, _together(rows, drawn, measured=measured)]


def _waiting(rows: RunRows, *, measured: bool) -> Waiting:
    if not measured:
        return QUEUED
    return TOOK if rows["ttft"].empty and not rows["e2e"].empty else NO_TOKEN


def _waits(rows: RunRows, of: Waiting) -> Iterator[Wait]:
    """Those that waited in vain did so until they left, or until the window ended."""
    for i in rows.kept:
        outcome, origin, known = rows.outcome(i), rows["origin"][i], rows[of.key][i]
        if known is not None:
            yield Wait(known, i, vain=False)
        elif origin is not None and outcome not in NEVER_IN_FLIGHT and outcome != "completed":
            left = rows["leave"][i]
            yield Wait(max(0, (rows.t_obs_ns if left is None else left) - origin), i, vain=True)


def _title(rows: RunRows, waits: Sequence[Wait], of: Waiting) -> str:
    """What the longest wait was, and whose; `_tied` marks them."""
    if not waits:
        return f"{len(rows):,} {rows.noun}"
    if not (most := waits[0].ns):
        return f"No {rows.noun.removesuffix('s')} waited" if of is not QUEUED else "No request queued"
    tied = [wait for wait in waits if wait.ns == most]
    vain = " in vain" if all(wait.vain for wait in tied) else ""
    first = rows["id"][tied[0].i]
    if len(tied) == len(waits):
        return f"{first if len(tied) == 1 else f'All {len(tied):,} {rows.noun}'} {of.of(most)}{vain}"
    more = f" and {len(tied) - 1:,} more" if len(tied) > 1 else ""
    return f"{first}{more} {of.longest}{',' * bool(vain)}{vain}: {said(most / NS_PER_MS)}"


def _tied(waits: Sequence[Wait]) -> set[int]:
    """The requests of which the title speaks, unless it speaks of all."""
    tied = {wait.i for wait in waits if wait.ns == waits[0].ns > 0}
    return tied if len(tied) < len(waits) else set()


def _in_order(
    rows: RunRows, drawn: Sequence[int], waits: Sequence[Wait], of: Waiting, *, measured: bool
) -> Chart:
    named = _tied(waits)
    return timeline(
        _title(rows, waits, of),
        f"{rows.noun.capitalize()} in order of arrival, from top to bottom, with time from left to right.",
        [
            Bar(rows["id"][i], list(_spans(rows, i, measured=measured)), _mark(rows, i), i in named)
            for i in drawn
        ],
        table=_request_table(rows, drawn),
        note=_unseen(measured=measured),
        words_for=_words(measured=measured),
        bounds=[("end of window", rows.t_obs_ns / NS_PER_S)] if rows.some_end_later else [],
    )


def _longest(rows: RunRows, waits: Sequence[Wait], of: Waiting, *, measured: bool) -> Chart:
    """Each from its own arrival on, so that a wait is as long as its bar."""
    chosen, named = [wait.i for wait in waits[:LONGEST]], _tied(waits)
    bars = []
    for i in chosen:
        start = rows["origin"][i] / NS_PER_S
        spans = [(kind, a - start, b - start) for kind, a, b in _spans(rows, i, measured=measured)]
        mark = ", ".join(filter(None, [f"at {start:,.1f} s", _mark(rows, i)]))
        bars.append(Bar(rows["id"][i], spans, mark, i in named))
    bound = None if of is TOOK else rows.slo.ttft_ms
    return timeline(
        _title(rows, waits, of),
        f"The {len(chosen)} of {len(waits):,} {rows.noun} that waited longest, longest first, each from its "
        "own arrival on; at the right, when it arrived.",
        bars,
        x=Axis("time since arrival", "s"),
        table=_request_table(rows, chosen),
        note=_unseen(measured=measured),
        words_for=_words(measured=measured),
        bounds=[] if bound is None else [(f"SLO of TTFT {said(bound)}", bound / 1000)],
    )


def _together(rows: RunRows, drawn: Sequence[int], *, measured: bool) -> Chart:
    """How many were in each phase at a time."""
    end = max(rows.t_obs_ns, max(rows.known("leave", drawn), default=0)) / NS_PER_S or 1.0
    spans = (span for i in drawn for span in _spans(rows, i, measured=measured))
    levels = mean_levels(spans, end, INTERVALS)
    names = _words(measured=measured) or SEEN
    layers = [
        Layer(names[kind], kind, levels[kind])
        for kind in ("decode", "prefill", "queue", "other")
        if kind in levels
    ]
    return stacked(
        _most_waiting(levels, end, measured=measured, noun=rows.noun),
        f"How many {rows.noun} were in each phase, from the bottom {', '.join(of.name for of in layers)}; "
        f"means over {INTERVALS} intervals of {end / INTERVALS:.3g} s.",
        layers,
        end,
        y=Axis(rows.noun, whole=True),
        bounds=[Bound("end of window", rows.t_obs_ns / NS_PER_S, "x")] if rows.some_end_later else [],
        note=_unseen(measured=measured),
    )


def _most_waiting(levels: Mapping[str, Sequence[float]], end: float, *, measured: bool, noun: str) -> str:
    queue = levels.get("queue", ())
    most = max(queue, default=0.0)
    what = "waited for a first token" if measured else "queued"
    if not most:
        return f"No {noun.removesuffix('s')} {what}"
    place = queue.index(most)
    total = sum(values[place] for values in levels.values())
    of = "" if total == most else f" of {_count(total)}"
    around = figure(end * (place + 0.5) / len(queue))
    return f"Most {noun} {what} around {around} s: {_count(most)}{of} that were there"


def _count(mean: float) -> str:
    return f"{mean:,.0f}" if mean >= 10 else f"{mean:.1f}".removesuffix(".0")


def mean_levels(spans: Iterable[Span], end: float, count: int) -> dict[str, list[float]]:
    """Of each kind, how many there were on average in each of `count` intervals from 0 to `end`."""
    width = end / count
    parts: dict[str, list[float]] = {}  # of an interval, in which a span begins or ends
    changes: dict[str, list[int]] = {}  # from an interval to the next, of those that last all of it
    for kind, start, stop in spans:
        part = parts.setdefault(kind, [0.0] * count)
        change = changes.setdefault(kind, [0] * (count + 1))
        first, last = (min(max(int(at / width), 0), count - 1) for at in (start, stop))
        part[first] += min(stop, width * (first + 1)) - start
        if last > first:
            part[last] += stop - width * last
            change[first + 1] += 1
            change[last] -= 1
    return {
        kind: [
            whole + part / width for whole, part in zip(accumulate(changes[kind]), parts[kind], strict=False)
        ]
        for kind in parts
    }


def _words(*, measured: bool) -> Mapping[str, str] | None:
    return SEEN_BY_CLIENT if measured else None


def _unseen(*, measured: bool) -> str:
    return "A client cannot tell queue from prefill." if measured else ""


def _spans(rows: RunRows, i: int, *, measured: bool) -> Iterator[Span]:
    """From instant to instant, as far as each is known; what never left lasts to the end of the window."""
    fields = ("origin", "sent", "first_token", "leave")
    kinds = ("other", "queue", "decode")
    if not measured:
        fields, kinds = ("origin", "prefill_start", "prefill_end", "leave"), ("queue", "prefill", "decode")
    times = [rows[field][i] for field in fields]
    if times[-1] is None and rows.outcome(i) == "unfinished":
        times[-1] = rows.t_obs_ns
    known = [(time, place) for place, time in enumerate(times) if time is not None]
    for (start, place), (stop, _) in pairwise(known):
        if stop - start > (LEAST_LAG_NS if kinds[place] == "other" else 0):
            yield kinds[place], start / NS_PER_S, stop / NS_PER_S


def _mark(rows: RunRows, i: int) -> str:
    outcome = rows.outcome(i)
    if outcome != "completed":
        return f"† {outcome}"
    return "" if rows["met"][i] or not rows.slo.given else "SLO missed"


def _request_table(rows: RunRows, drawn: Sequence[int]) -> Table:
    """Times in ms, the arrival in s; a column of which nothing is known is left out."""
    names = {"queue_delay": "queue", "ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
    names = {key: name for key, name in names.items() if not rows[key].empty}
    body = []
    for i in (drawn[place] for place in evenly(len(drawn), MOST_TABLED)):
        times = [DASH if (v := rows[key][i]) is None else ms(v / NS_PER_MS) for key in names]
        body.append([rows["id"][i], f"{rows['origin'][i] / NS_PER_S:.3f}", *times, _standing(rows, i)])
    return Table(["id", "arrival, s", *(f"{name}, ms" for name in names.values()), "outcome"], body)


def _standing(rows: RunRows, i: int) -> str:
    outcome = rows.outcome(i)
    if outcome != "completed" or not rows.slo.given:
        return outcome
    return "SLO met" if rows["met"][i] else "SLO missed"
