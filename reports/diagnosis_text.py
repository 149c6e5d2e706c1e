"""A diagnosis for a terminal of 80 columns, and as Markdown. Values in, lines out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from reports.diagnosis import Diagnosis
from reports.findings import Figure, Finding
from reports.markdown import escaped as _marked
from reports.text import DASH, WIDTH, wrapped

NOTHING = "Nothing stands out."
_VALUE = 32  # columns for the value and its unit
_PLURALS = ("requests", "ticks", "tokens", "request ticks")


def diagnosis_text(found: Diagnosis) -> str:
    blocks = ["\n".join(wrapped(_heading(found), then="  "))]
    if found.ttft:
        blocks.append("\n".join(wrapped(f"Where TTFT went, on average: {ttft_split(found.ttft)}", then="  ")))
    blocks += [_finding_text(number, finding) for number, finding in enumerate(found.findings, 1)]
    if not found.findings:
        blocks.append(NOTHING)
    blocks.append("\n".join(line for words in looked_at(found) for line in wrapped(words, then="  ")))
    return "\n\n".join(blocks)


def diagnosis_markdown(found: Diagnosis) -> str:
    blocks = [f"## {_marked(_heading(found))}"]
    if found.ttft:
        blocks.append(f"Where TTFT went, on average: {_marked(ttft_split(found.ttft))}.")
    blocks += [_finding_markdown(finding) for finding in found.findings]
    if not found.findings:
        blocks.append(NOTHING)
    blocks.append("\n".join(f"- {_marked(words)}" for words in looked_at(found)))
    return "\n\n".join(blocks)


def _heading(found: Diagnosis) -> str:
    against = f" against {found.against}" if found.against else ""
    return f"Diagnosis of {found.run}{against}"


def ttft_split(figures: Sequence[Figure]) -> str:
    """TTFT 306 ms over 16 requests = 169 queue + 120 prefill + 17 first decode turn."""
    requests, ttft, *parts = figures
    sums = " + ".join(f"{_number(part.value)} {part.name}" for part in parts)
    return f"{_number(ttft.value)} ms = {sums} ({_number(requests.value)} requests)"


def _finding_text(number: int, finding: Finding) -> str:
    lines = wrapped(f"{number}. {finding_title(finding)}", then="   ")
    for figure in finding.evidence:
        shown = figure_value(figure)
        name = wrapped(figure.name, width=WIDTH - max(_VALUE, len(shown) + 2), first="   ", then="     ")
        lines += [*name[:-1], f"{name[-1]:<{WIDTH - max(_VALUE, len(shown) + 2)}}  {shown}".rstrip()]
    return "\n".join([*lines, *wrapped(f"Cannot tell: {finding.cannot_tell}", first="   ", then="   ")])


def _finding_markdown(finding: Finding) -> str:
    rows = [f"| {_marked(figure.name)} | {_marked(figure_value(figure))} |" for figure in finding.evidence]
    table = "\n".join(["| evidence | value |", "|---|---|", *rows])
    return f"### {_marked(finding_title(finding))}\n\n{table}\n\nCannot tell: {_marked(finding.cannot_tell)}"


def finding_title(finding: Finding) -> str:
    sure = "" if finding.confidence is None else f", {finding.confidence:.0%} confidence"
    return f"{finding.title} ({finding.rule}{sure})"


def figure_value(figure: Figure) -> str:
    unit = figure.unit
    if figure.value is None or (figure.value == 1 and unit in _PLURALS):
        unit = "" if figure.value is None else unit[:-1]
    shown = f"{_number(figure.value)} {unit}".rstrip()
    return shown if figure.before is None else f"{shown} (before: {_number(figure.before)})"


def _number(value: float | int | None) -> str:
    if value is None:
        return DASH
    return str(value) if isinstance(value, int) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def looked_at(found: Diagnosis) -> list[str]:
    """What was looked at in vain, and what could not be, with the reason once for all it is the same of."""
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    for rule, why in found.unable.items():
        reasons[why].append(rule)
    lines = [f"Looked at, and nothing found: {', '.join(found.nothing)}"] if found.nothing else []
    return lines + [f"Could not look at {', '.join(names)}: {why}" for why, names in reasons.items()]


FORMS: dict[str, Callable[[Diagnosis], str]] = {"text": diagnosis_text, "markdown": diagnosis_markdown}
