"""A sweep, or the answer of a search, as Markdown. Values in, lines out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from reports import find_text, sweep_text
from reports.curves import Curve
from reports.find import Found, Search
from reports.markdown import bullets, escaped, joined, table


def sweep_markdown(curves: Sequence[Curve], slo_given: bool, path: Path) -> str:
    """A table of all settings where there are several, and one of each, if they are few."""
    blocks = [f"## Sweep {escaped(str(path))}"]
    if len(curves) > 1:
        blocks.append(table(*sweep_text.overview(curves, slo_given)))
    if len(curves) <= sweep_text.MOST_CURVES:
        blocks += _curves(curves, slo_given)
    return joined([*blocks, bullets(sweep_text.notes(curves, slo_given))])


def _curves(curves: Sequence[Curve], slo_given: bool) -> Iterator[str]:
    for curve in curves:
        if curve.label:
            yield f"### {escaped(curve.label)}"
        yield table(*sweep_text.load_rows(curve, slo_given))


def find_markdown(found: Sequence[Found], search: Search, path: Path) -> str:
    blocks = [f"## Search {escaped(str(path))}"]
    if len(found) > 1:
        blocks.append(table(*find_text.overview(found), "llrrr"))
    for each in found:
        headline, *evidence = find_text.answer_lines(each, search.confidence, repeatable=search.repeatable)
        blocks += [f"### {escaped(each.label)}" if each.label else "", f"**{escaped(headline)}**"]
        blocks += [bullets(evidence), table(*find_text.tried(each))]
    return joined(blocks)
