"""`--require` of a run: the flag, what can be refused before the run, and the verdicts after it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click

from ledgers.errors import InputError
from ledgers.formats.fields import shown
from ledgers.metrics import Observations, origin_ns
from ledgers.requirements import Judged, Requirement, judge, needs_slo, parse_requirement
from ledgers.rundir import Run
from ledgers.settings import Slo
from ledgers.summary import kept_ns

NOTHING_COMPLETED, MISSED, UNPROVEN = 1, 1, 4

require_option = click.option(
    "--require",
    multiple=True,
    metavar="'[class=NAME ]METRIC<=NUMBER'",
    help="What must be true of the run, as in 'class=short e2e.p95<=1500' (ms) or 'attainment>=0.99'; "
    "repeatable. The exit code is 1 if one is missed, and 4 if nobody can tell.",
)


def requirements_from(
    words: Sequence[str], slo: Slo, classes: Iterable[str | None], *, measured: bool = False
) -> list[Requirement]:
    """InputError for what could never be judged: nobody should wait for the end of a run to learn that."""
    requirements = [parse_requirement(word) for word in words]
    if needs_slo(requirements) and not slo.given:
        raise InputError("--require: attainment and goodput need an SLO, as in --goodput e2e:1500")
    asked = {requirement.class_ for requirement in requirements} - {None}
    missing = sorted(name for name in asked - set(classes) if name) if asked else []
    if missing:
        raise InputError(f"--require: no request of the ledger is of class {shown(missing[0])}")
    if measured and any(requirement.metric == "queue_delay" for requirement in requirements):
        raise InputError("--require queue_delay: a client cannot see it: say ttft")
    return requirements


def verdicts(run: Run, summary: dict[str, Any], requirements: Sequence[Requirement]) -> list[Judged]:
    """Each requirement on the rows of a run that are in its summary. InputError if no request is."""
    if not requirements:
        return []
    first_ns, last_ns, t_obs_ns = kept_ns(summary)
    seen = Observations(run.info.config.slo)
    for row in run.rows():
        if first_ns <= (origin_ns(row) or 0) <= last_ns:
            seen.add(row)
    if not len(seen) and not summary["without_row"]:
        cut = " (--warmup and --cooldown leave none)" if summary["trim"] else ""
        raise InputError(f"--require: {run.path}: there is no request to judge{cut}")
    return judge(requirements, seen, t_obs_ns, lost=summary["without_row"])


def unproven(summary: dict[str, Any]) -> bool:
    """Whether the load generator was the limit: then no requirement is shown to be met or missed."""
    client = summary["client"]
    return bool(client and client["client_limited"])


def exit_code(summary: dict[str, Any], judged: Sequence[Judged]) -> int:
    """Of a run in which something completed, 0 if all are met, or none was asked for.

    One that is missed decides, then one that nobody can tell.
    """
    if not judged:
        return NOTHING_COMPLETED if summary["scheduled"] and not summary["completed"] else 0
    if unproven(summary):
        return UNPROVEN
    found = [each.met for each in judged]
    return MISSED if False in found else UNPROVEN if None in found else 0
