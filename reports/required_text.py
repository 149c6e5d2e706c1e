"""What was required of a run, and whether it was met, for a terminal. Values in, lines out."""

from __future__ import annotations

from collections.abc import Sequence

from ledgers.requirements import LATENCIES, Judged, parse_requirement
from reports.tables import ms, wrapped

UNPROVEN = "Required, but nothing is proven: the load generator or the machine was the limit"


def required_text(judged: Sequence[Judged], *, unproven: bool) -> str:
    """A line for each requirement; empty without any."""
    if not judged:
        return ""
    lines = [heading(unproven=unproven) + ("" if unproven else ":")]
    for each in judged:
        lines += wrapped(found_words(each), first="  ", then="          ")
    return "\n".join(lines)


def heading(*, unproven: bool) -> str:
    return UNPROVEN if unproven else "Required"


def found_words(judged: Judged) -> str:
    """Met, missed, or nobody can tell; the requirement, and what was found."""
    word = {True: "met", False: "MISSED", None: "CANNOT TELL"}[judged.met]
    return f"{word:<6}  {judged.requirement}: {_found(judged)}"


def _found(judged: Judged) -> str:
    metric = parse_requirement(judged.requirement).metric
    if judged.met is None:
        good = "" if judged.good is None else f"{judged.good} of {judged.n} requests do; "
        return f"{good}{judged.lost} left no row"
    if judged.value is None:
        value = "beyond all bounds"
    elif metric in LATENCIES:
        value = f"{ms(judged.value)} ms"
    else:
        value = f"{judged.value:.4g}" + (" req/s" if metric in ("goodput", "throughput") else "")
    return value if judged.good is None else f"{value} ({judged.good} of {judged.n} requests)"
