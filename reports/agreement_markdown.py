"""An agreement as Markdown: the verdict, what it rests on, and the figures side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ledgers.requirements import Judged
from reports.agreement import Agreement, Verdict
from reports.agreement_text import LISTED, MEANING, PolicyResult, parts_rows, side_rows
from reports.markdown import bullets, escaped, joined, table
from reports.required_text import found_words
from reports.tables import DASH, ms

COLUMNS = (
    "policy",
    "verdict",
    "served = simulated",
    "ticks",
    "stamp - write, ms p50/p95/max",
    "served = planned",
)


def agreement_markdown(
    results: Sequence[PolicyResult],
    verdict: Verdict,
    judged: Mapping[str, Sequence[Judged]],
    out: object,
) -> str:
    """`judged` are the requirements of each policy, where there are any."""
    columns, rows, legend = side_rows(results)
    required = [f"{policy}: {found_words(each)}" for policy, found in judged.items() for each in found]
    return joined(
        [
            f"## Agreement {escaped(str(out))}",
            f"**{verdict.upper()}: {MEANING[verdict]}**",
            bullets(f"{policy}: {reason}" for policy, found in _each(results) for reason in found.reasons),
            table(COLUMNS, [_cells(*each) for each in _each(results)], "llrrrr"),
            bullets(f"{policy}, {words}" for policy, found in _each(results) for words in _exceptions(found)),
            table(columns, rows),
            bullets(legend),
            table(*parts_rows(results)),
            bullets(required),
        ]
    )


def _each(results: Sequence[PolicyResult]) -> Iterator[tuple[str, Agreement]]:
    return ((result.policy, result.agreement) for result in results)


def _cells(policy: str, found: Agreement) -> list[str]:
    schedule, plan, tokens = found.schedule, found.plan, found.timing.tokens
    return [
        policy,
        found.verdict.upper(),
        f"{schedule.requests_equal}/{schedule.requests}",
        f"{schedule.ticks_equal}/{schedule.ticks}",
        DASH if tokens is None else "/".join(ms(value) for value in (tokens.p50, tokens.p95, tokens.max)),
        f"{plan.equal}/{plan.requests}",
    ]


def _exceptions(found: Agreement) -> Iterator[str]:
    """The requests that are not as the others."""
    timing, plan = found.timing, found.plan
    listed = {
        "different from the simulation": found.schedule.different,
        "counted differently": timing.slo_different,
        "tokens missing": timing.missing_tokens,
        "another outcome": timing.outcome_different,
        "received with other lengths than planned": plan.lengths_different,
        "not as planned": [*plan.differ_before, *plan.differ_later],
    }
    for what, ids in listed.items():
        if ids:
            more = f" and {len(ids) - LISTED} more" if len(ids) > LISTED else ""
            yield f"{what}: {' '.join(ids[:LISTED])}{more}"
