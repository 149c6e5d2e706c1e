"""Is one run better or worse than another? Pure: samples in, a comparison with its verdicts out.

The primary metrics are judged, and the exit code goes by them alone. Their intervals hold all at once with
95 %: each of m has a confidence of 1 − 5 %/m (Bonferroni). Holm's steps would show a little more, but have no
interval that could be printed beside the verdict. All other figures are there to be read, each with 95 % of
its own: of many such some look different by chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from ledgers.intervals import CONFIDENCE
from reports.compare_effects import Effect
from reports.compare_metrics import (
    NEED_SLO,
    Between,
    Group,
    Metric,
    all_metrics,
    any_value,
    common_order,
    effect_of_repeats,
    group,
)
from reports.compare_samples import Sample
from reports.compare_settings import Difference, notes

Verdict = Literal["better", "worse", "no difference shown", "cannot tell"]
Regression = Literal["yes", "no", "possible"]
MOST_CLASSES = 12
USUAL_TOLERANCE = 0.05


class Line(msgspec.Struct, kw_only=True, frozen=True):
    """One figure of both sides. `low` and `high` bound the ratio, or, of a share, the difference.

    `regression`: whether it is worse by more than the tolerance, which is a part of the baseline, and of a
    share a number of points; "possible" where the interval leaves that open. `beyond`: how many independent
    values lie beyond a percentile; of few the interval is wide.
    """

    metric: str
    class_: str | None = msgspec.field(name="class")
    unit: str
    primary: bool
    before: float
    after: float
    difference: float
    ratio: float | None
    interval_of: str
    low: float | None
    high: float | None
    confidence: float
    paired: bool
    verdict: Verdict
    regression: Regression
    tolerance: float
    why: str | None
    beyond: float | None = None


class Comparison(msgspec.Struct, kw_only=True, frozen=True):
    """`settings` says what was allowed to differ, `notes` what differs and may matter all the same.

    `marks` is what stands against the figures of each run. `absent` are primary metrics that not both sides
    have, `lost` those of them that the baseline had: of no request that completed there is a latency.
    """

    baseline: list[str]
    candidate: list[str]
    pairing: str
    settings: dict[str, Difference]
    notes: list[str]
    marks: dict[str, list[str]]
    confidence: float
    lines: list[Line]
    absent: list[str]
    lost: list[str]
    regressions: list[str]


class Sides(NamedTuple):
    """One run of each, or several of each: then what varies between them makes the intervals."""

    baseline: Sequence[Sample]
    candidate: Sequence[Sample]

    @property
    def repeated(self) -> bool:
        return len(self.baseline) > 1

    def in_pairs(self) -> bool:
        """Whether the runs of both sides had the same ledgers, in this order."""
        digests = [[run.info.ledger.sha256 for run in side] for side in self]
        return digests[0] == digests[1] and None not in digests[0]


def compare(
    sides: Sides,
    primary: Sequence[Metric],
    *,
    tolerances: Mapping[str, float],
    judged_at_once: int,
    settings: dict[str, Difference],
) -> Comparison:
    """All figures of both sides. `judged_at_once` counts the primary ones of all candidates together."""
    sure = 1 - (1 - CONFIDENCE) / max(1, judged_at_once)
    lines: list[Line] = []
    absent, lost = [], []
    for class_ in _classes(sides, primary):
        judged = [metric for metric in primary if metric.class_ == class_]
        read = [metric for metric in all_metrics(class_) if metric not in judged]
        find = _Finder(sides, class_)
        for metric in [*judged, *read]:
            is_primary = metric in judged
            confidence = sure if is_primary else CONFIDENCE
            found = find(metric, confidence)
            if found is not None:
                lines.append(line(metric, found, confidence, _tolerance(metric, tolerances), is_primary))
            elif is_primary:
                absent.append(metric.label)
                lost += [metric.label] if find.lost(metric) else []
    return Comparison(
        baseline=[str(run.path) for run in sides.baseline],
        candidate=[str(run.path) for run in sides.candidate],
        pairing=_pairing(sides),
        settings=settings,
        notes=notes(sides.baseline[0].info, sides.candidate[0].info),
        marks={str(run.path): run.marks() for side in sides for run in side},
        confidence=CONFIDENCE,
        lines=lines,
        absent=absent,
        lost=lost,
        regressions=lost + [_label(line) for line in lines if line.primary and line.regression == "yes"],
    )


class _Finder:
    """The effects of one class, or of all requests."""

    def __init__(self, sides: Sides, class_: str | None) -> None:
        self._sides = sides
        self._groups: list[list[Group]] = [[group(run, class_) for run in side] for side in sides]
        self._between = None if sides.repeated else Between(self._groups[0][0], self._groups[1][0])

    def __call__(self, metric: Metric, confidence: float) -> Effect | None:
        if self._between:
            return self._between.effect(metric, confidence)
        before, after = self._groups
        return effect_of_repeats(metric, before, after, confidence, paired=self._sides.in_pairs())

    def lost(self, metric: Metric) -> bool:
        """Whether all runs of the baseline have this figure, and not all of the other side.

        An SLO that was not given and times of tokens that were not recorded are settings, and no loss.
        """
        if metric.name in NEED_SLO or (metric.name == "itl" and metric.class_ is not None):
            return False
        before, after = ([any_value(metric, run) is not None for run in side] for side in self._groups)
        return all(before) and not all(after)


def _classes(sides: Sides, primary: Sequence[Metric]) -> list[str | None]:
    """All requests first, then the classes that are asked for, then those that all runs have."""
    common = [
        name
        for name in sides.baseline[0].classes()
        if all(name in run.classes() for side in sides for run in side)
    ]
    asked = [metric.class_ for metric in primary if metric.class_ is not None]
    return [None, *dict.fromkeys([*asked, *(common[:MOST_CLASSES] if len(common) > 1 else [])])]


def _tolerance(metric: Metric, tolerances: Mapping[str, float]) -> float:
    return tolerances.get(metric.label, tolerances.get(metric.figure, tolerances.get("", USUAL_TOLERANCE)))


def _label(line: Line) -> str:
    return line.metric if line.class_ is None else f"class={line.class_} {line.metric}"


def _pairing(sides: Sides) -> str:
    if sides.repeated:
        pairs = ", in pairs of one ledger each" if sides.in_pairs() else ""
        return f"between {len(sides.baseline)} and {len(sides.candidate)} runs{pairs}"
    order = common_order(*(group(side[0], None) for side in sides))
    return f"{len(order)} requests, paired by id" if order else "separate requests"


# Verdicts


def line(metric: Metric, found: Effect, confidence: float, tolerance: float, primary: bool) -> Line:
    return Line(
        metric=metric.figure,
        class_=metric.class_,
        unit=metric.unit,
        primary=primary,
        before=found.before,
        after=found.after,
        difference=found.difference,
        ratio=found.ratio,
        interval_of=found.scale,
        low=found.low,
        high=found.high,
        confidence=confidence,
        paired=found.paired,
        verdict=verdict(found, more_is_better=metric.more_is_better),
        regression=regression(found, tolerance, more_is_better=metric.more_is_better),
        tolerance=tolerance,
        why=found.why,
        beyond=found.beyond,
    )


def worsening(found: Effect, *, more_is_better: bool) -> tuple[float, float]:
    """Between which limits it became worse, as a part of the baseline or in points; below 0: better."""
    neutral = 1.0 if found.scale == "ratio" else 0.0
    low = float("-inf") if found.low is None else found.low - neutral
    high = float("inf") if found.high is None else found.high - neutral
    return (-high, -low) if more_is_better else (low, high)


def verdict(found: Effect, *, more_is_better: bool) -> Verdict:
    """Only what the whole interval says."""
    if found.low is None and found.high is None:
        return "cannot tell"
    low, high = worsening(found, more_is_better=more_is_better)
    return "worse" if low > 0 else "better" if high < 0 else "no difference shown"


def regression(found: Effect, tolerance: float, *, more_is_better: bool) -> Regression:
    low, high = worsening(found, more_is_better=more_is_better)
    return "yes" if low > tolerance else "no" if high <= tolerance else "possible"


def exit_code(found: Sequence[Comparison]) -> int:
    """4, nothing is proven: a load generator was the limit, or a primary figure could not be judged.

    A figure that only the baseline has is a regression: a side that completes nothing has no slow requests.
    """
    if any("client-limited" in marks for each in found for marks in each.marks.values()):
        return 4
    if any(each.regressions for each in found):
        return 1
    lines = [line for each in found for line in each.lines if line.primary]
    untold = any(each.absent for each in found) or any(line.verdict == "cannot tell" for line in lines)
    return 4 if untold or not lines else 0
