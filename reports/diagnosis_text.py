"""A diagnosis for a terminal of 80 columns, and as Markdown. Values in, lines out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from reports.diagnosis import Diagnosis
from reports.findings import Figure, Finding
from reports.markdown import bullets, escaped, joined, table
from reports.numbers import figure as number
from reports.tables import WIDTH, wrapped

NOTHING = "Nothing stands out."
_VALUE = 32  # columns for the value and its unit
_PLURALS = ("requests", "ticks", "tokens", "request ticks")


def diagnosis_text(found: Diagnosis) -> str:
    blocks = ["\n".join(wrapped(_heading(found), then="  "))]
    if found.ttft:
        blocks.append("\n".join(wrapped(f"Where TTFT went, on average: {ttft_split(found.ttft)}", then="  ")))
    blocks += [_finding_text(place, finding) for place, finding in enumerate(found.findings, 1)]
    if not found.findings:
        blocks.append(NOTHING)
    blocks.append("\n".join(line for words in looked_at(found) for line in wrapped(words, then="  ")))
    return "\n\n".join(blocks)


def diagnosis_markdown(found: Diagnosis) -> str:
    blocks = [f"## {escaped(_heading(found))}"]
    if found.ttft:
        blocks.append(f"Where TTFT went, on average: {escaped(ttft_split(found.ttft))}.")
    blocks += [_finding_markdown(finding) for finding in found.findings]
    if not found.findings:
        blocks.append(NOTHING)
    return joined([*blocks, bullets(looked_at(found))])


def _heading(found: Diagnosis) -> str:
    against = f" against {found.against}" if found.against else ""
    return f"Diagnosis of {found.run}{against}"


def ttft_split(figures: Sequence[Figure]) -> str:
    """TTFT 306 ms over 16 requests = 169 queue + 120 prefill + 17 first decode turn."""
    requests, ttft, *parts = figures
    sums = " + ".join(f"{number(part.value)} {part.name}" for part in parts)
    return f"{number(ttft.value)} ms = {sums} ({number(requests.value)} requests)"


def _finding_text(place: int, finding: Finding) -> str:
    lines = wrapped(f"{place}. {finding_title(finding)}", then="   ")
    for figure in finding.evidence:
        shown = figure_value(figure)
        name = wrapped(figure.name, width=WIDTH - max(_VALUE, len(shown) + 2), first="   ", then="     ")
        lines += [*name[:-1], f"{name[-1]:<{WIDTH - max(_VALUE, len(shown) + 2)}}  {shown}".rstrip()]
    return "\n".join([*lines, *wrapped(f"Cannot tell: {finding.cannot_tell}", first="   ", then="   ")])


def _finding_markdown(finding: Finding) -> str:
    rows = [(figure.name, figure_value(figure)) for figure in finding.evidence]
    return joined(
        [
            f"### {escaped(finding_title(finding))}",
            table(("evidence", "value"), rows, "ll"),
            f"Cannot tell: {escaped(finding.cannot_tell)}",
        ]
    )


def finding_title(finding: Finding) -> str:
    sure = "" if finding.confidence is None else f", {finding.confidence:.0%} confidence"
    return f"{finding.title} ({finding.rule}{sure})"


def figure_value(figure: Figure) -> str:
    unit = figure.unit
    if figure.value is None or (figure.value == 1 and unit in _PLURALS):
        unit = "" if figure.value is None else unit[:-1]
    shown = f"{number(figure.value)} {unit}".rstrip()
    return shown if figure.before is None else f"{shown} (before: {number(figure.before)})"


def looked_at(found: Diagnosis) -> list[str]:
    """What was looked at in vain, and what could not be, with the reason once for all it is the same of."""
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    for rule, why in found.unable.items():
        reasons[why].append(rule)
    lines = [f"Looked at, and nothing found: {', '.join(found.nothing)}"] if found.nothing else []
    return lines + [f"Could not look at {', '.join(names)}: {why}" for why, names in reasons.items()]


FORMS: dict[str, Callable[[Diagnosis], str]] = {"text": diagnosis_text, "markdown": diagnosis_markdown}
