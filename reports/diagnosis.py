"""What stands out in a run, or in a run beside a baseline: all rules, and what each of them found.

Pure. A rule is a function of what was read (`Facts`); it gives a finding, or says why it cannot, or finds
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from reports import diagnosis_outcomes as outcomes
from reports import diagnosis_pairs as pairs
from reports import diagnosis_rules as rules
from reports.diagnosis_facts import Facts
from reports.findings import Figure, Finding, Spoken, Unable

RULES: dict[str, Callable[[Facts], Spoken]] = {
    "client-limited": outcomes.client_limited,
    "failures": outcomes.failures,
    "rejections": outcomes.rejections,
    "retries": outcomes.retries,
    "censored": outcomes.censored,
    "backlog": rules.backlog,
    "queueing": rules.queueing,
    "head-of-line": rules.head_of_line,
    "forming": rules.forming,
    "kv-limited": rules.kv_limited,
    "first-turn": rules.first_turn,
    "decode-share": rules.decode_share,
    "prefill-bound": outcomes.prefill_bound,
    "slo-misses": outcomes.slo_misses,
    "unfair": outcomes.unfair,
    "prefix-cache": outcomes.prefix_cache,
}
PAIRS: dict[str, Callable[[Facts, Facts], Spoken]] = {
    "ttft-up": pairs.ttft_up,
    "tpot-up": pairs.tpot_up,
    "goodput-down": pairs.goodput_down,
    "utilization-up": pairs.utilization_up,
}


class Diagnosis(msgspec.Struct, frozen=True):
    """`nothing` names the rules that looked in vain, `unable` those that could not look, and why."""

    run: str
    against: str | None
    ttft: Sequence[Figure] | None
    findings: Sequence[Finding]
    nothing: Sequence[str]
    unable: dict[str, str]


def diagnose(facts: Facts, baseline: Facts | None = None) -> Diagnosis:
    said: dict[str, Spoken] = {}
    if baseline:
        said = {name: pair(baseline, facts) for name, pair in PAIRS.items()}
    said |= {name: rule(facts) for name, rule in RULES.items()}
    return Diagnosis(
        run=facts.name,
        against=baseline.name if baseline else None,
        ttft=rules.ttft_split(facts),
        findings=[found for found in said.values() if isinstance(found, Finding)],
        nothing=[name for name, found in said.items() if found is None],
        unable={name: found.why for name, found in said.items() if isinstance(found, Unable)},
    )
