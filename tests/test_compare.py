"""What `tokentick compare` says: effects by hand, planted regressions, false alarms, marks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from ledgers.required import verdicts as verdicts_of
from ledgers.requirements import parse_requirement
from ledgers.rundir import Run
from ledgers.settings import Hardware, Slo
from ledgers.summary import summarize
from reports.compare import Comparison, Line, Sides, compare, exit_code, verdict
from reports.compare_metrics import (
    DEFAULT,
    Between,
    Metric,
    all_metrics,
    group,
    parse_metric,
    value,
)
from reports.compare_samples import Sample, read_sample
from reports.compare_text import FORMS, comparison_text, remarks, without_interval
from tests.compared import answered, by_hand, ledger, sample, simulated
from tests.conftest import tokentick


def compared(
    before: Sample | Sequence[Sample], after: Sample | Sequence[Sample], *metrics: str, **more: Any
) -> Comparison:
    sides = Sides(*([side] if isinstance(side, Sample) else side for side in (before, after)))
    primary = [parse_metric(name) for name in metrics] or list(DEFAULT)
    known: dict[str, Any] = {"tolerances": {}, "judged_at_once": len(primary), "settings": {}}
    return compare(sides, primary, **known | more)


def line(found: Comparison, metric: str) -> Line:
    """The only one of this name, of all requests."""
    (only,) = [line for line in found.lines if line.metric == metric and line.class_ is None]
    return only


# Effects


def test_the_effect_is_that_of_the_figures_in_the_summaries() -> None:
    """100 requests of 1 to 100 s, and each 10 % slower: nearest ranks, difference and ratio by hand."""
    order = [(7 * i) % 100 + 1 for i in range(100)]
    before, after = by_hand([1000 * v for v in order]), by_hand([1100 * v for v in order])
    found = compared(before, after, "e2e.mean")
    mean, p50, p90 = (line(found, f"e2e.{name}") for name in ("mean", "p50", "p90"))
    assert (mean.before, mean.after) == pytest.approx((50_500, 55_550))
    assert (p50.before, p50.after, p50.difference) == pytest.approx((50_000, 55_000, 5_000))
    assert (p90.before, p90.after, p90.ratio) == pytest.approx((90_000, 99_000, 1.1))
    assert mean.paired
    assert (mean.low, mean.high) == pytest.approx((1.1, 1.1))  # each pair says the same
    assert line(found, "ttft.p50").before == pytest.approx(25_000)
    assert line(found, "tpot.p50").before == pytest.approx(2_500)


def test_pairs_go_by_id_and_not_by_place() -> None:
    """One request is missing on one side: all others keep their partners."""
    values = [100.0 + (37 * i) % 400 for i in range(200)]
    before, after = by_hand(values), by_hand([v + 10 for v in values])
    without = after._replace(requests=after.requests[1:])
    found = line(compared(before, without, "e2e.mean"), "e2e.mean")
    assert found.paired
    assert found.low is not None
    assert found.low > 1.02


def test_separate_ledgers_are_not_paired() -> None:
    """The same numbers under another digest, or under none: what requests had in common does not count."""
    values = [100 + Random(i).expovariate(0.01) for i in range(200)]
    for digest in ("other", None):
        found = compared(by_hand(values), by_hand([v + 10 for v in values], digest), "e2e.mean")
        assert found.pairing == "separate requests"
        assert line(found, "e2e.mean").verdict == "no difference shown"
        assert not line(found, "e2e.mean").paired


def test_figures_are_those_of_the_summary(tmp_path: Path) -> None:
    """Every one of a simulation under overload, where a window ends early, of all and of each class."""
    words = (
        "toy",
        "--preset",
        "overload",
        "--out",
        "run",
        "--record-tokens",
        "--quiet",
        "--max-queue",
        "6",
        "--tail",
        "1",
    )
    tokentick("simulate", *words, cwd=tmp_path)
    run = Run(tmp_path / "run")
    summary = summarize(run)
    read = read_sample(run, summary)
    assert min(summary["rejected"], summary["unfinished"]) > 0
    for class_, figures in {None: summary, **summary["by_class"]}.items():
        errors = (figures["failed"] + figures["rejected"]) / figures["scheduled"]
        known = {"throughput": "throughput_rps", "token_throughput": "token_throughput_tps"}
        known |= {"goodput": "goodput_rps", "attainment": "attainment"}
        for metric in all_metrics(class_):
            found = value(metric, group(read, class_))
            if metric.name == "error_rate":
                assert found == pytest.approx(errors)
            elif metric.name == "completed":
                assert found == pytest.approx(figures["completed"] / figures["scheduled"])
            elif metric.statistic is None:
                assert found == pytest.approx(figures[known[metric.name]])
            elif metric.name != "itl":
                of = figures[f"{metric.name}_ms"]
                assert found == (of and pytest.approx(of[metric.statistic]))
            elif class_ is None:  # a histogram has three digits
                assert found == pytest.approx(figures["itl_ms"][metric.statistic], rel=1e-3)


def test_a_warm_up_that_is_left_out_is_left_out_here_as_well(tmp_path: Path) -> None:
    """Rates are over what is left of the window, shares over who arrived in it, as in the summary."""
    words = (
        "--num-prompts",
        "300",
        "--random-input-len",
        "9",
        "--random-output-len",
        "3",
        "--arrival",
        "poisson",
    )
    more = ("--request-rate", "3", "--goodput", "e2e:500", "--warmup", "20", "--cooldown", "10")
    tokentick(
        "simulate", *words, *more, "--out", "run", "--quiet", "--require", "error_rate<=0", cwd=tmp_path
    )
    run = Run(tmp_path / "run")
    summary = summarize(run)
    whole = group(read_sample(run, summary), None)
    assert len(whole.places) == summary["scheduled"] < 300
    assert value(Metric("goodput"), whole) == pytest.approx(summary["goodput_rps"])
    assert value(Metric("attainment"), whole) == pytest.approx(summary["attainment"])
    assert value(Metric("e2e", "p95"), whole) == pytest.approx(summary["e2e_ms"]["p95"])
    assert summary["attainment"] > 0
    (judged,) = verdicts_of(run, summary, [parse_requirement("attainment>=0")])
    assert judged.value == pytest.approx(summary["attainment"])


def test_itl_has_an_interval_where_the_times_of_tokens_were_kept() -> None:
    """Without them the figure is that of the histogram, and no interval is made up."""
    itl = {"itl_ms": {"mean": 5.0, "p50": 4.0, "p90": 6.0, "p95": 7.0, "p99": 9.0}}
    base = by_hand([100.0] * 50)
    without = base._replace(summary=base.summary | itl)
    assert line(compared(without, without, "itl.p95"), "itl.p95").before == 7.0
    assert line(compared(without, without, "itl.p95"), "itl.p95").verdict == "cannot tell"
    one, other = (
        _of(
            [answered(i, 100, token_ns=[i, i + gap * 1_000_000, i + 3 * gap * 1_000_000]) for i in range(100)]
        )
        for gap in (10, 12)
    )
    found = line(compared(one, other, "itl.p90"), "itl.p90")
    assert (found.before, found.after) == pytest.approx((20, 24))
    assert found.verdict == "worse"


def test_an_interval_of_few_values_beyond_a_percentile_has_a_mark() -> None:
    """Of 200 independent requests 10 lie beyond p95 and 20 beyond p90; a mean has no tail."""
    values = [[Random(seed).expovariate(0.01) for _ in range(200)] for seed in (1, 2)]
    found = compared(*(by_hand(side) for side in values), "e2e.p95", "e2e.mean")
    shown = {line.split()[0]: line for line in comparison_text(found).splitlines() if line.strip()}
    beyond = line(found, "e2e.p95").beyond
    assert beyond is not None
    assert 2 <= beyond < 10
    assert "%~ " in shown["e2e.p95"]
    assert "~" not in shown["e2e.mean"]
    assert "~ under 10 independent values lie beyond it: the interval is wide" in comparison_text(found)
    assert line(found, "e2e.mean").beyond is None


def test_few_requests_have_figures_and_no_interval() -> None:
    """24 requests are too few for batches; the exit code says that nothing is proven."""
    found = compared(by_hand([100.0] * 24), by_hand([200.0] * 24), "e2e.mean")
    assert line(found, "e2e.mean").ratio == pytest.approx(2)
    assert (line(found, "e2e.mean").low, line(found, "e2e.mean").verdict) == (None, "cannot tell")
    assert exit_code([found]) == 4


def test_failures_count_in_the_error_rate_and_not_in_the_latency() -> None:
    """A tenth times out: 10 points more errors, with Newcombe's interval, and the same E2E."""
    good = [answered(i, 500) for i in range(400)]
    bad = [
        msgspec.structs.replace(row, outcome="timeout", last_token_ns=None) if i % 10 == 0 else row
        for i, row in enumerate(good)
    ]
    before, after = (_of(rows) for rows in (good, bad))
    found = compared(before, after, "error_rate", "e2e.mean")
    errors = line(found, "error_rate")
    assert (errors.before, errors.after, errors.difference) == pytest.approx((0, 0.1, 0.1))
    assert (errors.verdict, errors.regression, errors.interval_of) == ("worse", "yes", "difference")
    assert line(found, "e2e.mean").verdict == "no difference shown"
    assert exit_code([found]) == 1


def test_a_candidate_that_completes_nothing_is_a_regression() -> None:
    """It has no slow request, and no latency at all; where neither side has a figure nothing is proven."""
    good = [answered(i, 500) for i in range(100)]
    dead = [
        msgspec.structs.replace(row, outcome="timeout", first_token_ns=None, last_token_ns=None)
        for row in good
    ]
    before, after = (_of(rows) for rows in (good, dead))
    found = compared(before, after, "ttft.p95")
    assert (found.lost, found.regressions) == (["ttft.p95"], ["ttft.p95"])
    assert exit_code([found]) == 1
    assert "REGRESSION beyond the tolerance: ttft.p95" in comparison_text(found)
    repeated = compared([before, before], [after, before], "ttft.p95")
    assert exit_code([repeated]) == 1
    for sides in ((after, before), (after, after)):
        found = compared(*sides, "ttft.p95")
        assert (found.absent, found.lost) == (["ttft.p95"], [])
        assert exit_code([found]) == 4
        assert "cannot tell" in comparison_text(found).splitlines()[-1]


def test_one_figure_that_is_not_there_leaves_the_verdict_open() -> None:
    """Goodput of runs without an SLO is not judged, however good E2E is."""
    values = [100.0 + (37 * i) % 400 for i in range(200)]
    found = compared(by_hand(values), by_hand(values), "e2e.mean", "goodput")
    assert (found.absent, found.lost, exit_code([found])) == (["goodput"], [], 4)


def test_requests_that_are_left_unfinished_are_a_regression_by_default() -> None:
    """A quarter is never answered when the window ends, and is no error; those that were are as fast."""
    good = [answered(i, 500) for i in range(400)]
    open_ = [
        msgspec.structs.replace(row, outcome="unfinished", end_ns=None, last_token_ns=None)
        if i % 4 == 3 and i < 399
        else row
        for i, row in enumerate(good)
    ]
    before, after = (_of(rows, Slo()) for rows in (good, open_))
    judged = [metric.label for metric in DEFAULT if metric.name != "goodput"]
    found = compared(before, after, *judged)
    assert line(found, "error_rate").after == 0
    assert line(found, "completed").after == pytest.approx(301 / 400)
    assert found.regressions == ["completed"]
    assert exit_code([found]) == 1


def _of(rows: Sequence[Any], slo: Slo | None = None) -> Sample:
    base = by_hand([1.0] * len(rows), slo=slo)
    return sample(rows, base.info)


def test_goodput_that_is_gone_is_a_regression() -> None:
    """No request meets the SLO any more: there is no ratio on a log scale, and there is a verdict."""
    slo = Slo(e2e_ms=1_000)
    found = compared(by_hand([900.0] * 100, slo=slo), by_hand([1_100.0] * 100, slo=slo), "goodput")
    goodput = line(found, "goodput")
    assert (goodput.after, goodput.ratio, goodput.low) == (0, 0, 0)
    assert goodput.high is not None
    assert goodput.high < 0.2
    assert goodput.regression == "yes"


def test_classes_are_compared_apart() -> None:
    """The long class became slower, the short one did not: each has a line, and one can be judged."""
    before, after = (
        _of(
            [
                answered(i, long if i % 4 == 0 else 100, class_="long" if i % 4 == 0 else "short")
                for i in range(400)
            ]
        )
        for long in (1_000, 1_500)
    )
    found = compared(before, after, "class=long e2e.mean")
    means = {line.class_: line for line in found.lines if line.metric == "e2e.mean"}
    assert means["long"].ratio == pytest.approx(1.5)
    assert means["short"].ratio == pytest.approx(1)
    assert found.regressions == ["class=long e2e.mean"]
    assert exit_code([found]) == 1


# Verdicts


def test_a_planted_regression_is_found_and_nothing_else() -> None:
    """Ticks that last 10 % longer, on the ledger of the baseline: TPOT and E2E are worse, errors are not."""
    rows = ledger(1, rate=3)
    slow = Hardware(tick_s=0.055, prefill_tokens_per_tick=200, decode_slots=8, kv_budget_tokens=100_000)
    found = compared(simulated(rows, "a"), simulated(rows, "a", hardware=slow))
    assert line(found, "tpot.p95").regression == "yes"
    assert line(found, "e2e.p95").regression == "yes"
    assert line(found, "error_rate").verdict == "no difference shown"
    assert exit_code([found]) == 1
    back = compared(simulated(rows, "a", hardware=slow), simulated(rows, "a"))
    assert line(back, "e2e.p95").verdict == "better"
    assert exit_code([back]) == 0


def test_a_planted_regression_is_found_between_separate_ledgers() -> None:
    """The same, with arrivals and lengths of its own on each side, and enough requests."""
    slow = Hardware(tick_s=0.06, prefill_tokens_per_tick=200, decode_slots=8, kv_budget_tokens=100_000)
    one, other = simulated(ledger(1, 3_000, 3), "a"), simulated(ledger(2, 3_000, 3), "b", hardware=slow)
    found = compared(one, other, "e2e.p90", "tpot.p50")
    assert found.regressions == ["e2e.p90", "tpot.p50"]


def test_within_the_tolerance_worse_is_no_regression() -> None:
    """2 % slower is shown to be worse, and is a regression only for whom 1 % is too much."""
    values = [100.0 + (37 * i) % 400 for i in range(200)]
    sides = by_hand(values), by_hand([1.02 * v for v in values])
    usual = compared(*sides, "e2e.mean")
    assert (line(usual, "e2e.mean").verdict, line(usual, "e2e.mean").regression) == ("worse", "no")
    assert exit_code([usual]) == 0
    strict = compared(*sides, "e2e.mean", tolerances={"e2e.mean": 0.01})
    assert exit_code([strict]) == 1


def test_a_point_beyond_the_tolerance_is_no_regression_if_its_interval_is_not() -> None:
    """Two draws of one distribution, over 5 % apart by chance: not shown, and said to be possible."""
    one, other = ([1 + Random(i).expovariate(0.01) for i in range(first, first + 100)] for first in (0, 100))
    if sum(one) > sum(other):
        one, other = other, one
    found = compared(by_hand(one), by_hand(other, "other"), "e2e.mean")
    mean = line(found, "e2e.mean")
    assert mean.ratio is not None
    assert mean.ratio > 1.05
    assert (mean.verdict, mean.regression, exit_code([found])) == ("no difference shown", "possible", 0)
    assert "not ruled out: e2e.mean" in comparison_text(found)


def verdicts(one: Sample, other: Sample, metrics: Sequence[Metric]) -> list[str]:
    """Those of metrics that are judged at once, without all the figures that are only read."""
    between, confidence = Between(group(one, None), group(other, None)), 1 - 0.05 / len(metrics)
    found = [(metric, between.effect(metric, confidence)) for metric in metrics]
    return [verdict(each, more_is_better=metric.more_is_better) for metric, each in found if each]


def test_no_false_alarm_between_separate_ledgers_of_one_setting() -> None:
    """100 pairs of seeds, six metrics judged at once: at most the 5 % that are stated, within chance (10).

    In at least half of them E2E can be judged, so that the silence means something.
    """
    alarms = judged = 0
    for seed in range(100):
        one, other = (simulated(ledger(2 * seed + side, 400, 4), str(side)) for side in (0, 1))
        found = verdicts(one, other, DEFAULT)
        alarms += bool({"better", "worse"} & set(found))
        judged += found[2] != "cannot tell"
    assert alarms <= 10
    assert judged >= 50


def test_no_false_alarm_between_measurements_of_one_ledger() -> None:
    """The same requests a hundred times over, each with noise of its own on both sides."""
    base, alarms = [300.0 + (37 * i) % 400 for i in range(200)], 0
    judged = [parse_metric(name) for name in ("ttft.p90", "e2e.p90", "e2e.mean")]
    for seed in range(100):
        random = Random(seed)
        one, other = (by_hand([v * random.uniform(0.9, 1.1) for v in base]) for _ in range(2))
        alarms += bool({"better", "worse"} & set(verdicts(one, other, judged)))
    assert alarms <= 10


def test_all_primary_intervals_are_wider_than_one_of_them() -> None:
    """Bonferroni: of six that are judged each has 99.2 %, and what is only read has 95 %."""
    values = [100.0 + (37 * i) % 400 for i in range(200)]
    sides = by_hand(values, slo=Slo(e2e_ms=300)), by_hand(values, "other", slo=Slo(e2e_ms=300))
    found = compared(*sides)
    assert {line.confidence for line in found.lines if line.primary} == {1 - 0.05 / 6}
    assert {line.confidence for line in found.lines if not line.primary} == {0.95}


# Repeats


def test_repeats_go_by_what_varies_between_runs() -> None:
    """Within each run all values are the same; between the runs they are not, and that is what counts."""
    levels = ((100, 110, 120), (112, 122, 132))
    sides = [[by_hand([v] * 30, f"{v}") for v in values] for values in levels]
    found = compared(*sides, "e2e.mean")
    assert found.pairing == "between 3 and 3 runs"
    assert line(found, "e2e.mean").verdict == "no difference shown"
    same = [[by_hand([v] * 30, str(i)) for i, v in enumerate(values)] for values in levels]
    pairs = compared(*same, "e2e.mean")
    assert pairs.pairing == "between 3 and 3 runs, in pairs of one ledger each"
    assert line(pairs, "e2e.mean").verdict == "worse"


# Marks


def test_what_stands_against_a_run_stands_beside_its_figures() -> None:
    """Client-limited, censored, unsteady and cut short: each has its sign at the figure, and a legend."""
    before = by_hand([100.0 + i for i in range(100)])
    summary = {
        **before.summary,
        "client": {"client_limited": True},
        "censored": True,
        "complete": False,
        "stability": {"verdict": "overload"},
    }
    found = compared(before, before._replace(path=Path("limited"), summary=summary), "e2e.mean")
    text = comparison_text(found)
    row = next(row for row in text.splitlines() if row.startswith("e2e.mean"))
    assert "149.5†‡§¶" in row
    assert row.count("149.5") == 2
    for words in ("not all completed", "load generator was the limit", "the queue grew", "cut short"):
        assert words in text
    assert exit_code([found]) == 4


def test_a_figure_without_an_interval_is_no_mark() -> None:
    """Why it has none is said apart, once for all figures of one reason; Markdown and text say both."""
    found = compared(by_hand([100.0] * 24), by_hand([200.0] * 24), "e2e.mean", "e2e.p50")
    (reason, *_) = without_interval(found)
    assert reason.startswith("no interval for e2e.mean, e2e.p50")
    assert not [line for line in remarks(found) if "no interval" in line]
    for text in (form(found) for form in FORMS.values()):
        assert " ".join(text.split()).count("no interval for e2e.mean, e2e.p50") == 1


def test_markdown_has_words_to_the_left_and_figures_to_the_right() -> None:
    found = compared(by_hand([100.0] * 24), by_hand([200.0] * 24), "e2e.mean")
    lines = FORMS["markdown"](found).splitlines()
    assert lines[lines.index("| metric | before | after | diff | change | interval | verdict |") + 1] == (
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |"
    )


@pytest.mark.parametrize("form", FORMS)
def test_names_from_outside_stay_text(form: str) -> None:
    """An escape sequence, a bar and a formula as the name of a class: nothing is obeyed or wider."""
    evil = "=1+1|\x1b[31m\u202e<b>" + "x" * 100
    before, after = (
        _of([answered(i, ms, class_=evil if i % 2 else "other") for i in range(100)]) for ms in (100, 150)
    )
    text = FORMS[form](compared(before, after, "e2e.mean"))
    assert "\x1b" not in text
    assert "\u202e" not in text
    if form == "text":
        assert max(map(len, text.splitlines())) <= 80
    else:
        assert "1+1\\|" in text


def test_another_machine_is_said_and_not_refused() -> None:
    """So are another version, and another model, which may be the very thing that is compared."""
    before = by_hand([100.0 + i for i in range(100)])
    info = msgspec.structs.replace(before.info, version="9.9", host={"cpus": 64})
    text = comparison_text(compared(before, before._replace(info=info), "e2e.mean"))
    assert "note: made on: cpus none | 64" in text
    assert "9.9" in text


def test_every_metric_has_a_name_that_can_be_asked_for() -> None:
    """What is printed is what `--metric` takes, with and without a class."""
    for class_ in (None, "short"):
        for metric in all_metrics(class_):
            assert parse_metric(metric.label) == metric
    assert parse_metric("e2el.p99") == Metric("e2e", "p99")
