"""The charts of requests one by one: whose wait a title names, how it is drawn, and how many waited when."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ledgers.rows import RequestRow
from ledgers.rundir import LedgerInfo, Run, RunConfig, RunInfo, RunWriter
from ledgers.settings import Slo
from ledgers.summary import summarize
from reports.charts import Chart
from reports.request_charts import LONGEST, MOST_IN_ORDER, mean_levels, request_charts
from reports.run_charts import failures_over_time, latency_over_time, percentile_charts
from reports.run_rows import RunRows
from tests.diagnosed import MS, S, answered, staged


def read(
    path: Path, rows: list[RequestRow], kind: Any = "measured", tail_s: Any = "drain"
) -> tuple[RunRows, Any]:
    config = RunConfig(slo=Slo(ttft_ms=5_000), tail_s=tail_s)
    writer = RunWriter(
        path / "run", RunInfo(kind=kind, config=config, ledger=LedgerInfo("by hand", requests=len(rows)))
    )
    for row in rows:
        writer.add(row)
    writer.close(complete=True)
    run = Run(path / "run")
    summary = summarize(run)
    return RunRows(run, summary), summary


def charts(path: Path, rows: list[RequestRow], kind: Any = "measured") -> list[Chart]:
    return request_charts(read(path, rows, kind)[0], measured=kind == "measured")


def unanswered(i: int, waited_ms: int) -> RequestRow:
    """It left without a token, after so long."""
    row = RequestRow(id=f"R{i + 1}", prompt_tokens=1, output_tokens=1, arrival_ns=i * S, sent_ns=i * S)
    row.end_ns, row.outcome = i * S + waited_ms * MS, "timeout"
    return row


def named(chart: Chart) -> list[str | None]:
    root = ElementTree.fromstring(f"<div>{chart.svg}</div>")
    return [each.text for each in root.iter("text") if each.get("class") == "named"]


@pytest.mark.parametrize(
    ("ttfts", "title", "marked"),
    [
        ([100, 300, 200], "R2 waited longest for a first token: 300 ms", ["R2"]),
        ([100, 300, 300], "R2 and 1 more waited longest for a first token: 300 ms", ["R2", "R3"]),
        ([300, 300, 300], "All 3 requests waited 300 ms for a first token", []),
        ([300], "R1 waited 300 ms for a first token", []),
        ([0, 0], "No request waited", []),
    ],
)
def test_a_title_names_the_longest_wait_and_its_line_is_marked(
    tmp_path: Path, ttfts: list[int], title: str, marked: list[str]
) -> None:
    """Whether one waited longest, or several, or all as long."""
    (chart,) = charts(tmp_path, [answered(i, ttft_ms=each) for i, each in enumerate(ttfts)])
    assert chart.title == title
    assert named(chart) == marked


def test_who_waited_in_vain_has_waited(tmp_path: Path) -> None:
    """A request that never had a token, two seconds long, beside one that had its own after 0.3 s."""
    (chart,) = charts(tmp_path, [answered(0, ttft_ms=300), unanswered(1, 2_000)])
    assert chart.title == "R2 waited longest for a first token, in vain: 2 s"


def test_the_queue_of_a_scheduler_counts_and_not_prefill(tmp_path: Path) -> None:
    """R1 queued longer, R2 had its first token later."""
    (chart,) = charts(tmp_path, [staged(0, 300, 100, 0), staged(1, 200, 900, 0)], "simulated")
    assert chart.title == "R1 queued longest: 300 ms"


def test_of_many_the_longest_waits_are_drawn_from_their_arrival_on(tmp_path: Path) -> None:
    """In descending order with their ids and when they came; the one of the title is the first."""
    rows = [answered(i, ttft_ms=100 + (i * 37) % 1000, gap_s=0.5) for i in range(1000)]
    longest, together = charts(tmp_path, rows)
    waits = sorted(((100 + (i * 37) % 1000, i) for i in range(1000)), reverse=True)
    root = ElementTree.fromstring(f"<div>{longest.svg}</div>")
    drawn = [(group[1].text, float(group[2].get("x", "")), group[-1].text) for group in root.iter("g")]
    assert [name for name, _, _ in drawn] == [f"R{i + 1}" for _, i in waits[:LONGEST]]
    assert len({x for _, x, _ in drawn}) == 1
    assert [mark for _, _, mark in drawn] == [f"at {i / 2:,.1f} s" for _, i in waits[:LONGEST]]
    first = waits[0][1]
    assert longest.title == f"R{first + 1} waited longest for a first token: 1.1 s"
    assert named(longest) == [f"R{first + 1}"]
    assert longest.table is not None
    assert longest.table.rows[0][0] == f"R{first + 1}"
    assert "of 1,000 requests" in longest.description
    assert together.title.startswith("Most requests waited for a first token around ")


def test_so_many_requests_stay_in_order(tmp_path: Path) -> None:
    """Each with a line of its own, in one chart."""
    (chart,) = charts(tmp_path, [answered(i, ttft_ms=100 + i) for i in range(MOST_IN_ORDER)])
    root = ElementTree.fromstring(f"<div>{chart.svg}</div>")
    assert [group[1].text for group in root.iter("g")] == [f"R{i + 1}" for i in range(MOST_IN_ORDER)]


def test_the_chart_of_all_says_when_most_waited(tmp_path: Path) -> None:
    """Ninety come at once at 50 s and wait 10 s; the others wait for nothing."""
    calm = [answered(i, ttft_ms=1, tpot_ms=1) for i in range(100)]
    crowd = [answered(i, ttft_ms=10_000, gap_s=0, id=f"C{i}") for i in range(90)]
    for row in crowd:
        for field in ("arrival_ns", "sent_ns", "first_token_ns", "last_token_ns", "end_ns"):
            setattr(row, field, getattr(row, field) + 50 * S)
    longest, together = charts(tmp_path, [*calm, *crowd])
    assert longest.title == "C0 and 89 more waited longest for a first token: 10 s"
    around = float(together.title.split("around ")[1].split(" s")[0])
    assert 50 < around < 60
    assert ": 90 " in together.title


def test_the_mean_of_an_interval_is_weighted_by_time() -> None:
    """One from 0.5 to 3 s and one for half a second, in four intervals of a second."""
    spans = [("queue", 0.5, 3.0), ("queue", 1.25, 1.75), ("decode", 3.0, 4.0)]
    assert mean_levels(spans, 4.0, 4) == {"queue": [0.5, 1.5, 1.0, 0.0], "decode": [0.0, 0.0, 0.0, 1.0]}


def test_attempts_are_no_requests(tmp_path: Path) -> None:
    """Of three requests one failed and its retry completed, one failed twice."""
    rows = [answered(0), unanswered(1, 100), unanswered(2, 100)]
    again = [answered(3, id="R2.1", retry_of="R2", due_ns=3 * S), unanswered(4, 100)]
    again[1].id, again[1].retry_of, again[1].due_ns = "R3.1", "R3", 4 * S
    columns, _ = read(tmp_path, [*rows, *again])
    chart = failures_over_time(columns)
    assert chart is not None
    assert chart.title == (
        "3 of 5 attempts ended without completing in the window: 3 timeout; "
        "of 3 requests 1 had not completed by its end"
    )
    assert chart.table is not None
    assert chart.table.head[1] == "attempts"


@pytest.mark.parametrize(
    ("ttfts", "title"),
    [
        ([375, 100, 200], "TTFT of the 3 completed requests is from 100 ms to 375 ms"),
        ([100, 100], "TTFT of all 2 completed requests is 100 ms"),
        ([100], "TTFT of the one completed request is 100 ms"),
        ([400] * 14 + [100] * 14, "TTFT of the 28 completed requests is from 100 ms to 400 ms"),
        ([400] * 15 + [100] * 15, "TTFT p50 fell from 400 ms in the first half of the arrivals to 100 ms"),
    ],
)
def test_few_requests_have_no_trend(tmp_path: Path, ttfts: list[int], title: str) -> None:
    """From thirty on a median may be said to move."""
    chart = latency_over_time(*read(tmp_path, [answered(i, ttft_ms=each) for i, each in enumerate(ttfts)]))
    assert chart is not None
    assert chart.title == title


def test_p99_of_few_is_said_to_be_the_largest(tmp_path: Path) -> None:
    columns, summary = read(tmp_path, [answered(i, ttft_ms=100 * (i + 1)) for i in range(4)])
    assert (
        percentile_charts(columns, summary)[0].title == "TTFT p99, the largest of 4, is 400 ms, 2.0 times p50"
    )
