"""Pages of comparisons, sweeps, searches, agreements and calibrations: what they say; text stays text."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ledgers.rows import RequestRow, TickRow
from ledgers.settings import Hardware
from reports.agree_charts import Ledgers, kv_chart, time_charts, timeline_of
from reports.agree_page import agreement_page
from reports.agreement import Agreement, RequestAgreement
from reports.agreement_text import FIGURES, MEANING, PolicyResult, side_rows
from reports.calibration_page import calibration_page
from reports.calibration_text import answer_words, cells, reasons
from reports.charts import Chart, Effect, effects
from reports.compare import Sides, compare
from reports.compare_metrics import Metric
from reports.compare_page import comparison_page
from reports.curves import Curve, Load
from reports.find import Found
from reports.find_page import find_page
from reports.find_text import answer_lines
from reports.find_text import tried as tried_rows
from reports.plan import Plan
from reports.schedule import Schedule
from reports.search import Answer, Verdict
from reports.sweep_page import sweep_page
from reports.sweep_text import notes
from reports.text import CENSORED
from reports.timing import Timing
from reports.trial import Candidate, Evidence
from tests.compared import by_hand
from tests.test_calibrate import calibration, rung

HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e&\"'"
SHOWN = "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[2J\\u202e&amp;"
MS, S = 1_000_000, 1_000_000_000
VOID = {"meta", "link", "br", "input"}


class Balanced(HTMLParser):
    """Fails where a tag is closed that is not open, or is left open; keeps headings and cells."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: dict[str, list[str]] = {}

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert tag != "script"
        if tag not in VOID:
            self.open.append(tag)
            self.text.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in self.open:
            self.text[tag][-1] += data


def parsed(page: str) -> dict[str, list[str]]:
    """The texts of a page's elements by tag."""
    parser = Balanced()
    parser.feed(page)
    parser.close()
    assert not parser.open
    assert not re.search(r"(src|href)=\"(?!#)|url\(|@import", page)
    return {tag: [" ".join(text.split()) for text in texts] for tag, texts in parser.text.items()}


def rows(page: str) -> list[list[str]]:
    """The cells of all table rows."""
    found = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    return [[unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in found]


# Calibration


def test_a_calibration_says_how_far_stamps_are_right() -> None:
    found = calibration(
        rung("staggered", 10, 0.02, 0.3),
        rung("staggered", 100, 0.04, 0.9, cpu_share=0.62),
        rung("lock step", 10, 0.03, 0.4),
        rung("lock step", 100, 0.05, 3.2, verdict="over 1 ms"),
    )
    page = calibration_page(found)
    texts = parsed(page)
    answer = "staggered up to 100 streams, 5,000 tokens/s; in lock step up to 10 streams"
    assert any(answer in text for text in texts["p"])
    assert texts["h3"] == [
        "First tokens are off by 0.05 ms at p99 at most, in lock step at 100 streams, 5,000 tokens/s",
        "All tokens are off by 3.20 ms at p99 in lock step at 100 streams, 5,000 tokens/s",
        "The load generator took 62% of a core at most, staggered at 100 streams, 5,000 tokens/s",
    ]
    assert page == calibration_page(found)


def test_a_calibration_in_which_nothing_was_found_has_a_page() -> None:
    lost = rung("staggered", 1, first_ms=None, token_ms=None, verdict="server-limited", reasons=["late"])
    texts = parsed(calibration_page(calibration(lost)))
    assert "staggered, 1 stream: late; the mock cannot go higher" in texts["p"]
    assert any("at no load that was tried" in text for text in texts["p"])


def test_a_calibration_has_the_answer_the_reasons_and_the_cells_of_a_terminal() -> None:
    found = calibration(
        rung("staggered", 10, 0.02, 0.3),
        rung("staggered", 1_000, 0.04, 2.0, cpu_share=0.62, verdict="server-limited", reasons=["late"]),
    )
    page = calibration_page(found)
    assert {answer_words(found), *reasons(found.rungs[1])} <= set(parsed(page)["p"])
    assert all(cells(each) in rows(page) for each in found.rungs)


# Sweep


def load(rate: float, goodput: float, ttft_p99: float, **fields: Any) -> Load:
    tails = {"p50": ttft_p99 / 4, "p95": ttft_p99 / 2, "p99": ttft_p99}
    known: dict[str, Any] = {
        "rate": rate,
        "repeats": 3,
        "offered_rps": rate,
        "throughput_rps": rate - 0.25,
        "goodput_rps": goodput,
        "attainment": goodput / rate,
        "concurrency_mean": 1.0,
        "ttft_ms": tails,
        "tpot_ms": None,
        "e2e_ms": tails,
        "scheduled": 100,
        "completed": 100,
        "censored": False,
    }
    return Load(**{**known, **fields})


def asked(**fields: Any) -> dict[str, Any]:
    return {
        "ledger": {"name": "made", "requests": 100},
        "rates": [2.0, 4.0, 8.0],
        "repeats": 3,
        "measured": None,
        "window": {"slo": {"ttft_ms": 500.0, "tpot_ms": None, "e2e_ms": None}},
        **fields,
    }


def curves() -> list[Curve]:
    slow = [load(2, 2, 40), load(4, 3.5, 80, goodput_interval=(3.25, 3.75)), load(8, 1, 4_000)]
    fast = [load(2, 2, 30), load(4, 4, 30), load(8, 7.5, 60, censored=True)]
    return [Curve({}, "slow", slow, 1, "inside", 1), Curve({}, "fast", fast, 2, "last", 2)]


def test_a_sweep_says_what_was_most_and_where_tails_grew() -> None:
    page = sweep_page(asked(), curves())
    texts = parsed(page)
    assert texts["h1"] == ["Sweep of made over 3 rates"]
    assert "100 requests of made; simulated; 3 repeats each; SLO TTFT 500 ms." in texts["p"]
    assert "Goodput is 7.50 req/s at most with fast, at 8 req/s offered" in texts["h3"]
    assert "TTFT p99 is 40.0 ms at 2 and 4000 ms at 8 req/s with slow" in texts["h3"]
    assert ["slow", "4", "7.75", "3.50", "4", "88%", "40"] in rows(page)
    assert ["fast", ">= 8", "7.75", "7.50", "8", "94%", "30"] in rows(page)
    assert any(row[0] == "4 k" and row[2] == "3.50 ± 0.25" for row in rows(page))
    assert any(row[0] == "8 †" for row in rows(page))
    assert page == sweep_page(asked(), curves())


def test_tails_of_those_that_completed_are_not_drawn_as_those_of_all() -> None:
    """No line leads to a load of which some did not complete; its points and the titles have the mark."""
    loads = [load(2, 2, 40), load(4, 4, 80), load(8, 4, 4_000, censored=True, completed=60, rejected=40)]
    page = sweep_page(asked(), [Curve({}, "", loads, 1, "inside", 1)])
    texts = parsed(page)
    assert "TTFT p99 is 40.0 ms at 2 and 4000 ms † at 8 req/s" in texts["h3"]
    assert "40 of 300 requests rejected" in page
    tails = page.split('id="tails"')[1].split("</section>")[0]
    lines = re.findall(r'd="(M[^"]*)" class="line s1"', tails)
    assert [line.count("L") for line in lines if "L" in line] == [1, 1]
    assert tails.count("TTFT p99 †") >= 1
    assert tails.count("Points that no line joins, †") == 2


def test_settings_that_do_as_much_are_all_named() -> None:
    """Neither is the best alone; where they do it at other rates, both rates are."""
    one = Curve({}, "one", [load(2, 2, 40), load(4, 3.0, 80)], None, None, 1)
    same = Curve({}, "same", [load(2, 2, 40), load(4, 3.001, 80)], None, None, 1)
    other = Curve({}, "other", [load(2, 2, 40), load(5, 3.0, 80)], None, None, 1)
    title = "Goodput is 3.00 req/s at most with one and same, at 4 req/s offered"
    assert title in parsed(sweep_page(asked(), [one, same]))["h3"]
    title = "Goodput is 3.00 req/s at most with one and other, at 4 and 5 req/s offered"
    assert title in parsed(sweep_page(asked(), [one, other]))["h3"]


def test_a_sweep_has_the_notes_of_a_terminal_and_no_others() -> None:
    """The rule of the knee, what the dagger means, and how far the repeats can be trusted."""
    said = parsed(sweep_page(asked(), curves()))["p"]
    assert len(notes(curves(), True)) == 3
    assert [words for words in said if words[0] in "k†*!m"] == notes(curves(), True)


def test_the_knee_and_the_intervals_are_drawn() -> None:
    """One knee lies inside what was tried, and one load has an interval."""
    page = sweep_page(asked(), curves())
    assert page.count("knee: slow") == 4  # on each of four charts
    drawn = re.findall(r'd="M[^"]+" class="whisker', page)
    assert len(drawn) == 1


def test_a_sweep_of_a_ledger_at_its_own_times_has_a_table_and_no_curve() -> None:
    alone = Curve(
        {}, "", [msgspec.structs.replace(load(2, 2, 40), rate=None, offered_rps=None)], None, None, 0
    )
    texts = parsed(sweep_page(asked(rates=[None]), [alone]))
    assert "figure" not in texts
    assert texts["h1"] == ["Sweep of made"]
    assert "1.75" in texts["td"]


# Search


def candidate(
    rate: float, verdict: Verdict, value: float, low: float, high: float, growth: float
) -> Candidate:
    seen = Evidence("ttft.p95<=500", 0.95, value, low, high, 4_000, 3_000.0, value, verdict)
    return Candidate(rate, verdict, "" if verdict == "kept" else "ttft.p95<=500", 4_000, 4, 1, growth, [seen])


SEARCH = {
    "require": ["ttft.p95<=500"],
    "max_requests": 20_000,
    "confidence": 0.95,
    "resolution": 0.05,
    "measured": None,
}


def test_a_search_says_the_rate_and_the_evidence_at_each() -> None:
    tried = [
        candidate(10, "kept", 0.99, 0.98, 0.995, 0.001),
        candidate(10.4, "missed", 0.9, 0.88, 0.92, 0.12),
    ]
    found = [Found({}, "chunked", Answer("found", 10, 10.4, [], []), 8_000, tried)]
    page = find_page(SEARCH, found)
    texts = parsed(page)
    assert texts["h1"] == ["Highest rate that keeps ttft.p95<=500"]
    assert "chunked: highest rate that keeps it: 10 req/s." in texts["p"]
    assert (
        "chunked: by itself, ttft.p95<=500 is kept up to 10 req/s and is missed from 10.4 req/s on"
        in texts["h3"]
    )
    assert "chunked: at 10.4 req/s the queue grows by 12.0% of what arrives" in texts["h3"]
    assert ["10.4", "missed", "90.00%", "88.00%", "92.00%", "95.00%", "4,000", "3,000"] in rows(page)
    assert page == find_page(SEARCH, found)


def test_a_search_has_the_answer_and_the_evidence_of_a_terminal() -> None:
    """Also that a rate above was kept again; a share is in percent where no second half is known."""
    seen = candidate(10, "kept", 0.99, 0.98, 0.995, 0.001)
    late = msgspec.structs.replace(seen.evidence[0], second_half=None)
    tried = [msgspec.structs.replace(seen, evidence=[late])]
    found = Found({}, "", Answer("found", 10, 10.4, [], [12]), 8_000, tried)
    first, *others = answer_lines(found, 0.95)
    assert "not monotone: kept again at 12 req/s" in others
    assert {f"{first}.", *others} <= set(parsed(find_page(SEARCH, [found]))["p"])
    assert "99.00%" in tried_rows(found)[1][0]


def test_what_needs_load_is_not_called_missed_from_the_lowest_rate_on() -> None:
    """Missed at 1 for want of load, kept at 5 and 10, missed again at 20; and missed at each of two."""
    verdicts: list[tuple[float, Verdict]] = [(1, "missed"), (5, "kept"), (10, "kept"), (20, "missed")]
    tried = [candidate(rate, verdict, 0.95, 0.9, 0.97, 0.0) for rate, verdict in verdicts]
    answer = Answer("open", 10, 20, [], [], [1])
    texts = parsed(find_page(SEARCH, [Found({}, "", answer, 4_000, tried)]))
    assert "by itself, ttft.p95<=500 is kept from 5 to 10 req/s and is missed from 20 req/s on" in texts["h3"]
    never = Found({}, "", Answer("never", None, 1, [], []), 4_000, [tried[0], tried[3]])
    assert "by itself, ttft.p95<=500 is missed at every rate" in parsed(find_page(SEARCH, [never]))["h3"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            Answer("never", None, 10, [], []),
            "kept at no rate tried, down to 10 req/s: the highest lies below.",
        ),
        (
            Answer("always", 10, None, [], []),
            "kept at every rate tried, up to 10 req/s: the highest lies beyond.",
        ),
        (
            Answer("open", 10, 12, [11], []),
            "kept up to 10 req/s, missed from 12 req/s; "
            "what is between is not resolvable in 4,000 requests: ttft.p95<=500.",
        ),
    ],
)
def test_a_search_without_an_answer_says_what_it_knows(answer: Answer, said: str) -> None:
    tried = [candidate(rate, "open", 0.95, 0.9, 0.97, 0.0) for rate in (10, 11)]
    page = find_page(SEARCH, [Found({}, "", answer, 4_000, tried)])
    assert said in parsed(page)["p"]


# Comparison


def compared(*, name: str = "after") -> str:
    before = by_hand([200 + (37 * i) % 400 for i in range(200)])._replace(path=Path("before"))
    after = by_hand([400 + 2 * (37 * i) % 800 for i in range(200)])._replace(path=Path(name))
    found = compare(
        Sides([before], [after]), [Metric("e2e", "mean")], tolerances={}, judged_at_once=1, settings={}
    )
    return comparison_page([found], {before.path: before, after.path: after})


def test_a_comparison_says_verdict_effect_and_percentiles() -> None:
    """Of E2E from 200 to 599 ms, twice as long: the mean doubles, p95 goes from 580 to 1160 ms or so."""
    page = compared()
    texts = parsed(page)
    assert texts["h1"] == ["after against before"]
    assert "Verdict: REGRESSION beyond the tolerance: e2e.mean" in texts["p"]
    assert any(title.startswith("1 worse of 1 figures; most changed e2e.mean, +") for title in texts["h3"])
    curve = next(title for title in texts["h3"] if title.startswith("E2E p95 is"))
    assert re.fullmatch(r"E2E p95 is 5\d\d\.\d ms in before and 1\d\d\d ms in after", curve)
    assert page == compared()


def effect(name: str, middle: float | None, low: float | None, high: float | None, verdict: str) -> Effect:
    return Effect(name, middle, low, high, 5.0, verdict, "")


def whiskers(chart: Chart) -> list[str]:
    return re.findall(r'd="([^"]+)" class="whisker"', chart.svg)


def test_an_effect_stands_where_its_change_is_on_its_side_of_none() -> None:
    """The axis goes as far to either side, so no change stands in its middle."""
    both = effects("t", "d", [effect("a", 40, 30, 50, "worse"), effect("b", -40, -50, -30, "better")])
    zero = re.search(r'd="M([\d.]+) [^"]*" class="axis"', both.svg)
    worse = re.findall(r'<rect x="([\d.]+)"[^>]*class="worse"', both.svg)[-1]
    better = re.findall(r'<circle cx="([\d.]+)"[^>]*class="better"', both.svg)[-1]
    assert zero
    half = 4.5  # of the square, whose place is its corner
    assert float(worse) + half - float(zero[1]) == pytest.approx(float(zero[1]) - float(better), abs=0.02)


def test_an_end_without_a_bound_is_an_arrow() -> None:
    """Both ends have a stroke across; where one is not known there is a tip in its place."""
    known, unbound = whiskers(
        effects("t", "d", [effect("a", 1, 0, 2, "worse"), effect("b", 1, None, 2, "cannot tell")])
    )
    assert known.count("v8") == 2
    assert unbound.count("v8") == 1
    assert "l-5 4 5 4" in unbound


# Agreement


def request(id: str, first_ms: float, last_ms: float, arrival_ms: float = 0.0) -> RequestRow:
    return RequestRow(
        id=id,
        prompt_tokens=4,
        output_tokens=2,
        tokens=2,
        arrival_ns=round(arrival_ms * MS),
        prefill_start_ns=round((arrival_ms + 10) * MS),
        first_token_ns=round(first_ms * MS),
        last_token_ns=round(last_ms * MS),
        end_ns=round(last_ms * MS),
        outcome="completed",
    )


def tick(number: int, reserved: int) -> TickRow:
    return TickRow(tick=number, queue=0, prefill=1, ready=0, emitted=0, kv_reserved=reserved, kv_cached=1)


def agreement(*, off_plan: str = "") -> Agreement:
    each = [
        RequestAgreement(id=id, schedule_equal=True, moved=[], plan_differs=id == off_plan)
        for id in ("R01", "R02")
    ]
    none: list[str] = []
    return Agreement(
        verdict="agree",
        reasons=[],
        schedule=Schedule(agrees=True, requests=2, requests_equal=2, ticks=2, ticks_equal=2, different=[]),
        timing=Timing(
            agrees=True,
            limit_ms=5,
            tokens=None,
            ttft=None,
            tpot=None,
            e2e=None,
            missing_tokens=none,
            outcome_different=none,
            slo_met_measured=None,
            slo_met_served=None,
            on_edge=none,
            slo_different=none,
        ),
        plan=Plan(
            agrees=True,
            moved=none,
            first_moved_tick=None,
            equal=2,
            differ_later=none,
            differ_before=none,
            lengths_different=none,
        ),
        parts={},
        tick_late_max_ms=0,
        client_lag_max_ms=0,
        requests=each,
    )


SIMULATED = {"R01": request("R01", 100, 200), "R02": request("R02", 300, 400, 50)}
MEASURED = {"R01": request("R01", 101, 202), "R02": request("R02", 303, 407, 50)}


def ledgers(served_reserved: int = 8) -> Ledgers:
    return Ledgers(
        measured=MEASURED,
        served=SIMULATED,
        simulated=SIMULATED,
        served_ticks={0: tick(0, 8), 1: tick(1, served_reserved)},
        simulated_ticks={0: tick(0, 8), 1: tick(1, 8)},
        hardware=Hardware(kv_budget_tokens=16),
    )


def test_measured_stands_against_simulated_with_the_differences() -> None:
    """TTFT is 1 and 3 ms late, E2E 2 and 7 ms."""
    against, residuals = time_charts("chunked", agreement(), ledgers())
    assert against.title == "chunked: measured times lie within 7.00 ms of the simulated ones"
    assert (
        residuals.title
        == "chunked: at the median measured TTFT 2.00 ms later and E2E 4.50 ms later than simulated"
    )
    assert residuals.table is not None
    assert ["E2E", "2.000", "4.500", "7.000", "2"] in [list(row) for row in residuals.table.rows]
    assert "identity" in against.svg


def test_who_was_served_off_plan_is_told_apart() -> None:
    against, _ = time_charts("chunked", agreement(off_plan="R02"), ledgers())
    assert against.title == (
        "chunked: measured times lie within 2.00 ms of the simulated ones; served off plan: 1"
    )
    assert "E2E, served off plan" in against.svg


def test_kv_by_tick_says_how_many_ticks_are_the_same() -> None:
    (same,) = kv_chart("chunked", ledgers())
    assert same.title == "chunked: 2 of 2 ticks are as simulated; KV reserved at most 8 of 16 tokens"
    (other,) = kv_chart("chunked", ledgers(served_reserved=9))
    assert other.title == "chunked: 1 of 2 ticks are as simulated; KV reserved at most 9 of 16 tokens"
    assert ">budget<" in same.svg


def test_each_request_has_its_measured_bar_above_the_simulated_one() -> None:
    chart = timeline_of("chunked", agreement(), ledgers())
    assert re.findall(r">((?:R0\d )?(?:measured|simulated))<", chart.svg) == [
        "R01 measured",
        "simulated",
        "R02 measured",
        "simulated",
    ]


def test_an_agreement_says_what_a_terminal_says() -> None:
    """Its verdict, and measured beside simulated: the queue delay of the one is the server's."""
    latency = dict.fromkeys(("p50", "p95", "p99"), 20.0)
    simulated = {**dict.fromkeys(FIGURES, 3), "censored": True, "rests_on_largest": {}}
    simulated |= dict.fromkeys(("queue_delay_ms", "ttft_ms", "tpot_ms", "e2e_ms"), latency)
    measured = {**simulated, "censored": False, "queue_delay_ms": None}
    served = {**measured, "queue_delay_ms": {**latency, "p50": 10.0}}
    results = [PolicyResult("chunked", agreement(), measured, served, simulated)]
    page = agreement_page("toy", "agree", results, [ledgers()])
    assert f"AGREE: {MEANING['agree']}." in parsed(page)["p"]
    assert "2 of 2" in rows(page)[1]
    assert ["queue ms p50", "10.0", "20.0†"] in rows(page)
    assert ["TTFT ms p99", "20.0", "20.0†"] in rows(page)
    columns, text_rows, marks = side_rows(results)
    assert ["queue ms p50", "10.0|20.0†"] in text_rows
    assert (columns, marks) == (["measured|sim.", "chunked"], [CENSORED])
    assert CENSORED in parsed(page)["p"]


def test_a_long_id_is_cut_once_and_keeps_which_bar_it_is() -> None:
    id = "request-of-one-long-session-0042"
    found = agreement()
    found.requests = [RequestAgreement(id=id, schedule_equal=True, moved=[], plan_differs=False)]
    svg = timeline_of("chunked", found, ledgers()).svg
    (name,) = re.findall(r">(r[^<]* measured)<", svg)
    assert re.fullmatch(r"r\w+~\S*42 measured", name)


# What comes from elsewhere


def hostile_pages() -> dict[str, str]:
    machine = calibration(rung("staggered", 1, verdict="server-limited", reasons=[HOSTILE]))
    tried = [candidate(10, "kept", 0.99, 0.98, 0.995, 0.001)]
    named = [Curve({}, HOSTILE, curves()[0].loads, 1, "inside", 1), curves()[1]]
    return {
        "calibration": calibration_page(machine),
        "sweep": sweep_page(asked(ledger={"name": HOSTILE, "requests": 1}), named),
        "find": find_page(SEARCH, [Found({}, HOSTILE, Answer("always", 10, None, [], []), 1, tried)]),
        "comparison": compared(name=HOSTILE.replace("/", "")),
    }


@pytest.mark.parametrize("kind", ["calibration", "sweep", "find", "comparison"])
def test_text_from_elsewhere_stays_text(kind: str) -> None:
    """Markup is escaped, and what would turn or erase a line is shown."""
    page = hostile_pages()[kind]
    parsed(page)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "\\x1b[2J\\u202e" in page
    assert not re.search("[\x1b\u202e]", page)


def test_a_name_that_is_no_text_can_be_written() -> None:
    """A file name may hold bytes that are no UTF-8."""
    assert compared(name="run-\udcff").encode()
