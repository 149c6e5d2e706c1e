"""`tokentick report --diagnose`: from run directories to their diagnoses, and the forms of these."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ledgers.rows import encode
from ledgers.rundir import Run
from reports.diagnosis import Diagnosis, diagnose
from reports.diagnosis_facts import Facts, facts_of
from reports.diagnosis_text import FORMS
from reports.forms import Form
from reports.show import refreshed_summary


def diagnoses(runs: Sequence[Path], against: Path | None) -> list[Diagnosis]:
    """Of each run, beside the baseline if there is one."""
    baseline = read_facts(against) if against else None
    return [diagnose(read_facts(path), baseline) for path in runs]


def read_facts(path: Path) -> Facts:
    run = Run(path)
    return facts_of(run, refreshed_summary(run))


def _in_words(form: str, found: Sequence[Diagnosis]) -> str:
    return "\n\n".join(map(FORMS[form], found))


def _json(found: Sequence[Diagnosis]) -> bytes:
    """One object, by path of several."""
    return encode({each.run: each for each in found} if len(found) > 1 else found[0])


DIAGNOSES: dict[str, Form] = {**{form: partial(_in_words, form) for form in FORMS}, "json": _json}
"""The forms of several diagnoses."""
