"""`tokentick report --diagnose`: from run directories to what is printed of their diagnoses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ledgers.printable import printable
from ledgers.rows import encode
from ledgers.rundir import Run
from reports.diagnosis import Diagnosis, diagnose
from reports.diagnosis_facts import Facts, facts_of
from reports.diagnosis_text import FORMS
from reports.show import refreshed_summary


def diagnoses(runs: Sequence[Path], against: Path | None, form: str) -> str:
    """Of each run, beside the baseline if there is one; JSON is one object, by path of several."""
    baseline = read_facts(against) if against else None
    found = [diagnose(read_facts(path), baseline) for path in runs]
    if form == "json":
        return _json(found)
    return "\n\n".join(printable(FORMS[form](each)) for each in found)


def read_facts(path: Path) -> Facts:
    run = Run(path)
    return facts_of(run, refreshed_summary(run))


def _json(found: Sequence[Diagnosis]) -> str:
    return encode({each.run: each for each in found} if len(found) > 1 else found[0]).decode()
