"""A comparison for a terminal of 80 columns, and as Markdown. Values in, lines out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from reports.compare import Comparison, Line
from reports.compare_samples import MARKS
from reports.compare_settings import in_words
from reports.markdown import bullets, escaped, joined
from reports.markdown import table as markdown_table
from reports.numbers import percent
from reports.tables import DASH, ms, table, wrapped

COLUMNS = ("metric", "before", "after", "diff", "change", "interval", "verdict")
LEGENDS = {
    "censored": "not all completed in the window: latencies are over those that did",
    "client-limited": "the load generator was the limit: its figures are not the server's",
    "unsteady": "the queue grew: the figures are of this length of run only",
    "incomplete": "the run was cut short, or has lost rows",
}
FEW_BEYOND = 10  # independent values beyond a percentile, below which its interval is wide
FEW_MARK = "~"
_SHORT = {"no difference shown": "not shown", "cannot tell": "cannot tell"}


def comparison_text(found: Comparison) -> str:
    blocks = ["\n".join(line for words in heading(found) for line in wrapped(words, then="  "))]
    for title, lines in tables(found):
        rows = [cells(line, found) for line in lines]
        blocks.append("\n".join([*wrapped(title), table(COLUMNS, rows)]))
    said = [*remarks(found), *without_interval(found)]
    blocks.append("\n".join(line for words in said for line in wrapped(words, then="  ")))
    blocks.append("\n".join(wrapped(conclusion(found), then="  ")))
    return "\n\n".join(block for block in blocks if block)


def comparison_markdown(found: Comparison) -> str:
    first, *others = heading(found)
    blocks = [f"## {escaped(first)}", bullets(others)]
    for title, lines in tables(found):
        rows = (cells(line, found) for line in lines)
        blocks += [f"### {escaped(title)}", markdown_table(COLUMNS, rows, "lrrrrrl")]
    said = bullets([*remarks(found), *without_interval(found)])
    return joined([*blocks, said, f"**{escaped(conclusion(found))}**"])


FORMS: dict[str, Callable[[Comparison], str]] = {"text": comparison_text, "markdown": comparison_markdown}


def heading(found: Comparison) -> list[str]:
    sides = [", ".join(side) for side in (found.baseline, found.candidate)]
    allowed = [f"allowed to differ: {in_words(name, keys)}" for name, keys in found.settings.items()]
    notes = [f"note: {note}" for note in found.notes]
    return [f"{sides[1]} against {sides[0]} ({found.pairing})", *allowed, *notes]


def tables(found: Comparison) -> Iterator[tuple[str, Sequence[Line]]]:
    """The primary metrics first, then all others by class."""
    judged = [line for line in found.lines if line.primary]
    if judged:
        yield f"Judged, {found.confidence:.0%} sure of all at once:", judged
    for class_ in dict.fromkeys(line.class_ for line in found.lines):
        lines = [line for line in found.lines if line.class_ == class_ and not line.primary]
        whose = "all requests" if class_ is None else f"class {class_}"
        if lines:
            yield f"To be read, {whose}, each {found.confidence:.0%} sure:", lines


def cells(line: Line, found: Comparison) -> list[str]:
    before, after = (_value(line, value, side, found) for value, side in _sides(line, found))
    signed = _shown(line, line.difference)
    change = DASH if line.ratio is None or line.unit == "share" else f"{line.ratio - 1:+.1%}"
    verdict = _SHORT.get(line.verdict, line.verdict)
    name = f"{line.class_} {line.metric}" if line.primary and line.class_ is not None else line.metric
    beyond = " !" if line.primary and line.regression == "yes" else ""
    return [
        name,
        before,
        after,
        signed if line.difference < 0 else f"+{signed}",
        change,
        interval(line) + few(line),
        verdict + beyond,
    ]


def _sides(line: Line, found: Comparison) -> tuple[tuple[float, list[str]], tuple[float, list[str]]]:
    return (line.before, found.baseline), (line.after, found.candidate)


def _value(line: Line, value: float, side: list[str], found: Comparison) -> str:
    """With the marks of any run of this side; censoring says nothing against rates and shares of all."""
    marks = {mark for run in side for mark in found.marks[run]}
    if line.unit != "ms":
        marks.discard("censored")
    return _shown(line, value) + "".join(sign for mark, sign in MARKS.items() if mark in marks)


def _shown(line: Line, value: float) -> str:
    return percent(value, 2) if line.unit == "share" else ms(value)


def interval(line: Line) -> str:
    """Of the change, or of the difference where that is what is bounded; an open end is left out."""
    if line.low is None and line.high is None:
        return DASH
    if line.interval_of == "ratio" or line.unit == "share":
        neutral = 1 if line.interval_of == "ratio" else 0
        low, high = ("" if limit is None else f"{limit - neutral:+.1%}" for limit in (line.low, line.high))
    else:
        low, high = ("" if limit is None else f"{limit:+.2f}" for limit in (line.low, line.high))
    return f"{low}..{high}"


def few(line: Line) -> str:
    bounded = line.low is not None or line.high is not None
    return FEW_MARK if bounded and line.beyond is not None and line.beyond < FEW_BEYOND else ""


def remarks(found: Comparison) -> list[str]:
    """What the marks mean, and what is not there."""
    here = {mark for marks in found.marks.values() for mark in marks}
    lines = [f"{sign} {LEGENDS[mark]}" for mark, sign in MARKS.items() if mark in here]
    if any(line.verdict == "no difference shown" for line in found.lines):
        lines.append("not shown: no difference shown; the interval says how large it may be all the same")
    if any(line.primary and line.regression == "yes" for line in found.lines):
        lines.append("! the whole interval is worse than the tolerance")
    if any(few(line) for line in found.lines):
        lines.append(f"{FEW_MARK} under {FEW_BEYOND} independent values lie beyond it: the interval is wide")
    if found.absent:
        lines.append(f"not there in both: {', '.join(found.absent)}")
    if found.lost:
        lines.append("! what only the baseline has is lost: no request that completed has such a figure")
    return lines


def without_interval(found: Comparison) -> list[str]:
    """Which figures have none, by the reason for it."""
    reasons: dict[str, list[str]] = {}
    for line in found.lines:
        if line.why and line.class_ is None:
            reasons.setdefault(line.why, []).append(line.metric)
    return [f"no interval for {', '.join(names)}: {why}" for why, names in reasons.items()]


def conclusion(found: Comparison) -> str:
    judged = [line for line in found.lines if line.primary]
    if any("client-limited" in marks for marks in found.marks.values()):
        return "verdict: nothing is proven, for the load generator was the limit"
    if found.regressions:
        return f"verdict: REGRESSION beyond the tolerance: {', '.join(found.regressions)}"
    open_ = [_named(line) for line in judged if line.regression == "possible"]
    untold = [_named(line) for line in judged if line.verdict == "cannot tell"]
    untold += found.absent
    if untold or not judged:
        return f"verdict: cannot tell, for want of requests: {', '.join(untold) or 'nothing to judge'}"
    parts = [
        f"{verdict}: {', '.join(names)}"
        for verdict in ("better", "worse")
        if (names := [_named(line) for line in judged if line.verdict == verdict])
    ]
    said = "; ".join(parts) or "no difference shown"
    more = f". Worse beyond the tolerance is not ruled out: {', '.join(open_)}" if open_ else ""
    return f"verdict: no regression shown ({said}){more}"


def _named(line: Line) -> str:
    return line.metric if line.class_ is None else f"class={line.class_} {line.metric}"
