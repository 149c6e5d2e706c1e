"""The answer of a search for a terminal of 80 columns: the rate, its evidence, and all that was tried."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ledgers.requirements import parse_requirement
from reports.find import Found, Search
from reports.numbers import percent
from reports.tables import DASH, table, wrapped
from reports.trial import RATES, Candidate, Evidence


def find_text(found: Sequence[Found], search: Search, path: Path) -> str:
    parts = [_found_text(each, search) for each in found]
    if len(found) > 1:
        parts.append(table(*overview(found), left=2))
    return "\n\n".join([*parts, f"files: {path}"])


def _found_text(found: Found, search: Search) -> str:
    lines = [found.label] if found.label else []
    for line in answer_lines(found, search.confidence, repeatable=search.repeatable):
        lines += wrapped(line, then="  ")
    return "\n".join([*lines, table(*tried(found))])


def answer_lines(found: Found, confidence: float, *, repeatable: bool = True) -> list[str]:
    """The answer first, then what it rests on. Where it is not `repeatable`, no repeat would show more."""
    answer = found.answer
    lines = [_headline(found, repeatable=repeatable)]
    for candidate in _at(found, answer.rate):
        lines += [_sentence(each) for each in candidate.evidence]
    for candidate in _at(found, answer.missed):
        lines.append(f"lowest rate that failed: {candidate.rate:g} req/s ({candidate.reason})")
        lines += [_sentence(each) for each in candidate.evidence if each.verdict == "missed"]
    if answer.kept_above:
        again = ", ".join(f"{rate:g}" for rate in answer.kept_above)
        lines.append(f"not monotone: kept again at {again} req/s")
    if answer.rate is not None and answer.underloaded:
        lines.append(f"up to {answer.underloaded[-1]:g} req/s the load is too low for it")
    tried = f"{len(found.candidates)} rates tried with {found.requests:,} requests"
    sure = f"each verdict at {confidence:.4g} over all looks"
    return [*lines, f"{tried}; {sure}"]


def _headline(found: Found, *, repeatable: bool) -> str:
    answer, candidates = found.answer, found.candidates
    rate = "" if answer.rate is None else f"{answer.rate:g} req/s"
    if answer.verdict == "found":
        return f"highest rate that keeps it: {rate}"
    if answer.verdict == "always":
        return f"kept at every rate tried, up to {rate}: the highest lies beyond"
    if answer.verdict == "never":
        return _never(candidates, answer.underloaded)
    most = max((candidate.requests for candidate in candidates), default=0)
    reason = next((each.reason for each in candidates if each.rate in answer.open), "more rates to try")
    more = "" if repeatable else "; nothing here is drawn, so repeats are the same (--arrival draws)"
    failed = "" if answer.missed is None else f"{answer.missed:g} req/s"
    known = {
        (True, True): f"kept up to {rate}, missed from {failed}; what is between is ",
        (True, False): f"kept up to {rate}; what is above is ",
        (False, True): f"missed from {failed}; what is below is ",
        (False, False): "",
    }[bool(rate), bool(failed)]
    return f"{known}not resolvable in {most:,} requests: {reason}{more}"


def _never(candidates: Sequence[Candidate], underloaded: Sequence[float]) -> str:
    """Lower rates may keep it only if what the lowest one misses is no rate itself."""
    low, high = candidates[0], candidates[-1]
    missed = [parse_requirement(each.requirement) for each in low.evidence if each.verdict != "kept"]
    if not (underloaded or any(each.metric in RATES for each in missed)):
        return f"kept at no rate tried, down to {low.rate:g} req/s: the highest lies below"
    return f"kept at no rate tried, from {low.rate:g} to {high.rate:g} req/s"


def _at(found: Found, rate: float | None) -> list[Candidate]:
    """The one, or none."""
    return [each for each in found.candidates if each.rate == rate]


def _sentence(each: Evidence) -> str:
    """`ttft.p95<=800: 96.1 % of 12,000 requests, 95.4 to 96.8 %; 95 % needed`."""
    if not is_share(each):
        interval = "" if each.low is None or each.high is None else f", {each.low:.4g} to {each.high:.4g}"
        value = "without bound" if each.value is None else f"{each.value:.4g}"
        return f"{each.requirement}: {value}{interval}"
    worth = f" (worth {each.worth:,.0f} independent ones)" if each.worth else ""
    half = "" if each.second_half is None else f"; second half {_percent(each.second_half)}"
    return (
        f"{each.requirement}: {_percent(each.value)} of {each.n:,} requests{worth}, "
        f"{_percent(each.low)} to {_percent(each.high)}; {_percent(each.needed)} needed{half}"
    )


def _percent(share: float | None) -> str:
    return DASH if share is None else f"{100 * share:.4g} %"


def tried(found: Found) -> tuple[list[str], list[list[str]]]:
    """Columns and a row per rate, with the requirement that decides it."""
    rows = []
    for candidate in found.candidates:
        tightest = min(candidate.evidence, key=_margin)
        rows.append(
            [
                tightest.requirement,
                f"{candidate.rate:g}",
                candidate.verdict,
                f"{candidate.requests:,}",
                *(cell(tightest, value) for value in (tightest.value, tightest.low, tightest.high)),
                f"{candidate.growth:+.1%}",
            ]
        )
    return ["tightest", "req/s", "verdict", "requests", "value", "low", "high", "growth"], rows


def is_share(each: Evidence) -> bool:
    return each.worth is not None or each.second_half is not None


def cell(each: Evidence, value: float | None) -> str:
    return percent(value, 2) if value is None or is_share(each) else f"{value:.4g}"


def _margin(each: Evidence) -> tuple[int, float]:
    order = {"missed": 0, "open": 1, "kept": 2}
    return order[each.verdict], (each.low or 0.0) - each.needed


def overview(found: Sequence[Found]) -> tuple[list[str], list[list[str]]]:
    """Columns and a row per setting."""
    rows = []
    for each in found:
        answer = each.answer
        cells = [DASH if rate is None else f"{rate:g}" for rate in (answer.rate, answer.missed)]
        rows.append([each.label or "all", answer.verdict, *cells, f"{each.requests:,}"])
    return ["setting", "verdict", "kept up to", "missed from", "requests"], rows
