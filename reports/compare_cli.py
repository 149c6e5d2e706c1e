"""The command `tokentick compare`: run directories in, a comparison printed, and the exit code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from ledgers.errors import InputError
from ledgers.formats.fields import shown
from ledgers.html_file import check_html, html_option, save_page
from ledgers.plain import plain_option
from ledgers.rows import encode
from ledgers.rundir import Run
from reports import diagnosis_text
from reports.compare import Comparison, Sides, compare, exit_code
from reports.compare_metrics import DEFAULT, NEED_SLO, Metric, parse_metric
from reports.compare_samples import Sample, read_sample
from reports.compare_settings import SETTINGS, Difference, parse_allowed, refuse_others
from reports.compare_text import FORMS
from reports.diagnosis import Diagnosis
from reports.forms import Form, form_option, print_form
from reports.show import refreshed_summary

_TOLERANCE = re.compile(r"(?:(?P<metric>[^%]+)=)?(?P<percent>\d+(?:\.\d+)?)\s*%?")


@click.command(
    name="compare",
    short_help="Is a run better than another?",
    epilog="Example: tokentick compare runs/before runs/after --metric ttft.p95 --tolerance 5%",
)
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--baseline",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="A run of the baseline, once for each repeat; all RUNS are then repeats of the other side.",
)
@click.option(
    "--metric",
    multiple=True,
    metavar="METRIC",
    help="What is judged, as in ttft.p95 or 'class=short e2e.p99'; repeatable.  "
    f"[default: {', '.join(metric.figure for metric in DEFAULT)}]",
)
@click.option(
    "--tolerance",
    multiple=True,
    metavar="[METRIC=]PERCENT",
    help="How much worse is no regression, of the baseline; of shares, in points.  [default: 5%]",
)
@click.option(
    "--allow",
    multiple=True,
    metavar="NAME,...",
    help=f"Compare although these differ: {', '.join(SETTINGS)}; or all.",
)
@form_option(about="json: one object with all comparisons.")
@html_option("the comparison")
@plain_option()
@click.option("--diagnose", is_flag=True, help="Say as well what stands out in each run beside the first.")
def compare_command(**options: Any) -> int:
    """Compare RUNS with the first of them, or with the repeats that --baseline names.

    Each figure gets its effect, an interval, and a verdict: better, worse, or no difference shown. Runs of
    one ledger are compared request by request. The exit code is 1 if a judged metric is worse by more than
    the tolerance with its whole interval, and 4 if nothing is proven.
    """
    if options["diagnose"] and options["form"] == "json":
        raise InputError("--diagnose: has JSON of its own, with tokentick report --diagnose --json")
    primary = [parse_metric(text) for text in options["metric"]]
    tolerances = parse_tolerances(options["tolerance"])
    sides = _sides(options["runs"], options["baseline"])
    check_html(options["html"])
    found, samples = _compare_all(sides, primary, tolerances, parse_allowed(options["allow"]))
    diagnosed = []
    if options["diagnose"]:
        from reports.diagnose import diagnoses

        diagnosed = diagnoses([path for _, candidate in sides for path in candidate], sides[0][0][0])
    print_form(COMPARISONS, options["form"], found, diagnosed, html=options["html"], plain=options["plain"])
    if options["html"]:
        from reports.compare_page import comparison_page

        save_page(options["html"], comparison_page(found, samples))
    return exit_code(found)


def _in_words(form: str, found: Sequence[Comparison], diagnosed: Sequence[Diagnosis]) -> str:
    return "\n\n".join([*map(FORMS[form], found), *map(diagnosis_text.FORMS[form], diagnosed)])


def _json(found: Sequence[Comparison], diagnosed: Sequence[Diagnosis]) -> bytes:
    return encode({"exit_code": exit_code(found), "comparisons": found})


COMPARISONS: dict[str, Form] = {**{form: partial(_in_words, form) for form in FORMS}, "json": _json}


Paths = tuple[Sequence[Path], Sequence[Path]]


def _sides(runs: Sequence[Path], baseline: Sequence[Path]) -> list[Paths]:
    """The runs of both sides of each comparison."""
    if not baseline:
        if len(runs) < 2:
            raise InputError("compare: takes two runs or more, the first is the baseline")
        return [((runs[0],), (run,)) for run in runs[1:]]
    if (len(baseline) == 1) != (len(runs) == 1):
        raise InputError(
            f"--baseline: {len(baseline)} of the baseline and {len(runs)} of the other side: "
            "an interval between repeats needs two runs or more of each"
        )
    repeated = [path for side in (baseline, runs) for path in side]
    if twice := next((path for path in repeated if repeated.count(path) > 1), None):
        raise InputError(f"--baseline: {twice} is named twice, and is no repeat of itself")
    return [(baseline, runs)]


def parse_tolerances(words: Sequence[str]) -> dict[str, float]:
    """`5%`, or `ttft.p95=10%`; the one without a metric is for all others, under an empty name."""
    found = {}
    for word in words:
        match = _TOLERANCE.fullmatch(word.strip())
        if not match:
            raise InputError(f"--tolerance {shown(word)}: expected a percentage, as in 5% or ttft.p95=10%")
        name = parse_metric(match["metric"], "--tolerance").label if match["metric"] else ""
        found[name] = float(match["percent"]) / 100
    return found


def _compare_all(
    paths: Sequence[Paths], primary: Sequence[Metric], tolerances: dict[str, float], allowed: frozenset[str]
) -> tuple[list[Comparison], dict[Path, Sample]]:
    """The comparisons, and what was read of each run."""
    runs = {path: Run(path) for sides in paths for side in sides for path in side}
    settings = [_settings(sides, runs, allowed) for sides in paths]  # before the rows of any are read
    samples = {path: read_sample(run, refreshed_summary(run)) for path, run in runs.items()}
    _check_classes(primary, samples)
    judged = list(primary) or _usual(samples)
    found = []
    for (baseline, candidate), differing in zip(paths, settings, strict=True):
        sides = Sides([samples[path] for path in baseline], [samples[path] for path in candidate])
        found.append(
            compare(
                sides,
                judged,
                tolerances=tolerances,
                judged_at_once=len(judged) * len(paths),
                settings=differing,
            )
        )
    return found, samples


def _settings(sides: Paths, runs: dict[Path, Run], allowed: frozenset[str]) -> dict[str, Difference]:
    """What differs and may. Repeats of a side differ in nothing but their ledgers."""
    named = [[(str(path), runs[path].info) for path in side] for side in sides]
    for first, *others in named:
        for other in others:
            refuse_others(first, other, frozenset({"ledger"}))
    found: dict[str, Difference] = {}
    for place, other in enumerate(named[1]):
        first = named[0][place] if len(named[0]) == len(named[1]) else named[0][0]
        found |= refuse_others(first, other, allowed)
    return found


def _usual(samples: dict[Path, Sample]) -> list[Metric]:
    """The default set, without what needs an SLO where there is none."""
    with_slo = all(sample.info.config.slo.given for sample in samples.values())
    return [metric for metric in DEFAULT if with_slo or metric.name not in NEED_SLO]


def _check_classes(primary: Sequence[Metric], samples: dict[Path, Sample]) -> None:
    for metric in primary:
        for path, sample in samples.items():
            if metric.class_ is not None and metric.class_ not in sample.classes():
                known = ", ".join(sample.classes()[:8]) or "none"
                raise InputError(f"--metric {shown(metric.label)}: {path} has no such class; it has: {known}")
