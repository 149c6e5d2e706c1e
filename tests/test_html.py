"""`tokentick report RUN --html FILE`: one file that needs nothing else, whatever is in the run."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ledgers.health import HealthSample
from ledgers.metrics import ttft_ns
from ledgers.rows import RequestRow, TickRow
from ledgers.rundir import LedgerInfo, Run, RunConfig, RunInfo, RunWriter
from ledgers.settings import Hardware, Slo
from ledgers.summary import summarize
from reports.charts import Table
from reports.page import Section, render
from reports.run_page import run_page
from reports.run_rows import RunRows
from reports.run_state_charts import TickColumns, in_flight_chart, kv_chart
from tests.conftest import on_full_disk, refused, tokentick
from tests.diagnosed import MS, S, answered

VOID = {"meta", "link", "br", "hr", "img", "input"}
HOSTILE = "</td><script>alert('x')</script>\x00\x1b[31m\u202e\u2028\"'&"


class Page(HTMLParser):
    """The elements of a page, which must be balanced, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs)
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def said(self, tag: str) -> list[str]:
        return [text for inside, text in self.texts if inside == tag and text.strip()]

    @property
    def text(self) -> str:
        return "".join(text for inside, text in self.texts if inside not in ("style", "script"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulation of the toy ledger under load, in which some requests end after the window."""
    path = tmp_path_factory.mktemp("html")
    arguments = ["simulate", "toy", "--preset", "overload", "--out", "run", "--quiet"]
    assert tokentick(*arguments, cwd=path).returncode == 0
    assert tokentick("report", "run", "--html", "page.html", cwd=path).returncode == 0
    return path / "run"


def page_of(path: Path, text: str = "") -> str:
    run = Run(path)
    return run_page(run, summarize(run), text)


def measured(path: Path, rows: list[RequestRow], **fields: Any) -> Path:
    """A measured run, written by hand, whose client was the limit in its second second."""
    config = RunConfig(slo=Slo(ttft_ms=500), base_url="http://localhost:8000", **fields)
    info = RunInfo(kind="measured", config=config, ledger=LedgerInfo("by hand", requests=len(rows)))
    writer = RunWriter(path, info)
    for row in rows:
        writer.add(row)
    for second in (1, 2, 3):
        sample = HealthSample(t_ns=second * S, sent=second, sends=1, cpu_share=0.95 if second == 2 else 0.1)
        sample.judge()
        writer.add_health(sample)
    writer.close(complete=True)
    return path


def test_a_page_needs_nothing_but_itself(run: Path) -> None:
    """Balanced markup; no script, no link that leaves the page, and a policy that would allow neither."""
    page = Page((run.parent / "page.html").read_text())
    names = Counter(tag for tag, _ in page.tags)
    assert names["html"] == names["main"] == names["h1"] == names["style"] == 1
    assert not names["script"]
    assert not names["img"]
    for tag, attributes in page.tags:
        assert "style" not in attributes
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith("#"), tag  # type: ignore[union-attr]
        assert not any(name.startswith("on") for name in attributes)
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "@import" not in page.said("style")[0]
    assert "url(" not in page.said("style")[0]


def test_a_page_can_be_read_by_its_headings(run: Path) -> None:
    """No level is left out, no id is there twice, each link of the contents has its section."""
    page = Page((run.parent / "page.html").read_text())
    levels = [int(tag[1]) for tag, _ in page.tags if tag in ("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [(attributes["href"] or "")[1:] for tag, attributes in page.tags if tag == "a"]
    assert set(links) <= set(ids)


def test_every_chart_has_its_numbers(run: Path) -> None:
    """A finding, a description, a picture with both, and a table with heads; the toy has seven charts."""
    page = Page((run.parent / "page.html").read_text())
    names = Counter(tag for tag, _ in page.tags)
    assert names["figure"] == names["figcaption"] == names["details"] == names["desc"] == 7
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in page.tags if tag == "th")


def test_the_figures_are_those_of_the_summary(run: Path) -> None:
    """In the titles, the tables and the curves."""
    summary = summarize(Run(run))
    text = Page((run.parent / "page.html").read_text()).text
    p99, p50 = summary["ttft_ms"]["p99"], summary["ttft_ms"]["p50"]
    largest = f"the largest of {summary['completed']}"
    assert f"TTFT p99, {largest}, is {p99 / 1000:.3g} s, {p99 / p50:.1f} times p50" in text
    assert f"Up to {summary['concurrency_peak']} requests in flight" in text
    assert f"16 scheduled = {summary['completed']} completed" in text
    rows = RunRows(Run(run), summary)
    assert len(rows.completed) == summary["completed"] < 16
    assert sorted(rows.known("ttft", rows.completed))[-1] == summary["ttft_ms"]["max"] * MS
    assert {ttft_ns(row) for row in Run(run).rows()} == set(rows["ttft"])
    levels = [level for _, level in rows.levels()]
    assert max(levels) == summary["concurrency_peak"]


def test_the_kv_title_tells_the_peak(run: Path) -> None:
    """Of the ticks: the most reserved, the first tick with it."""
    ticks = list(Run(run).ticks())
    most = max(tick.kv_reserved for tick in ticks)
    first = next(tick.tick for tick in ticks if tick.kv_reserved == most)
    title = next(text for text in Page(page_of(run)).said("h3") if text.startswith("KV"))
    assert f"tick {first}" in title
    assert ("reached its budget" in title) == (most == 72)


def test_the_kv_chart_tells_reserved_from_cached(run: Path) -> None:
    """The peak of the summary is that of the cached ones."""
    summary = summarize(Run(run))
    text = Page(page_of(run)).text
    reserved = max(tick.kv_reserved for tick in Run(run).ticks())
    assert reserved > summary["kv_peak_tokens"]
    assert f"At most {reserved} of 72 were reserved; at most {summary['kv_peak_tokens']} were cached" in text


def test_the_chart_of_load_goes_to_the_end_of_the_run(run: Path) -> None:
    """In flight and the queue both, with the end of the window marked, after which three ended."""
    summary, found = summarize(Run(run)), Run(run)
    rows, columns = RunRows(found, summary), TickColumns(found.ticks())
    chart = in_flight_chart(rows, columns, summary, found.info.config)
    assert chart is not None
    assert ">end of window<" in chart.svg
    assert chart.table is not None
    last = chart.table.rows[-1]
    assert float(last[0]) * S > rows.t_obs_ns
    assert last[1:] == ["0", "0"]


def test_long_words_break_in_their_cell(tmp_path: Path) -> None:
    """An error without a space does not push its column out of the page."""
    failed = RequestRow(id="R1", prompt_tokens=1, output_tokens=1, arrival_ns=0, end_ns=MS)
    failed.outcome, failed.error = "http_error", "A" * 5_000
    text = page_of(measured(tmp_path / "run", [failed]))
    assert '<td class="long">AAAA' in text
    assert "td.long { min-width: 14rem; overflow-wrap: anywhere; }" in text


def test_equal_input_gives_equal_bytes(run: Path, tmp_path: Path) -> None:
    """Wherever the directory is, and whenever the page is made."""
    other = shutil.copytree(run, tmp_path / "elsewhere")
    assert page_of(run) == page_of(other)
    assert str(run.parent) not in page_of(run)


def test_the_diagnosis_has_its_evidence_and_its_limits(run: Path) -> None:
    """Each finding with a table, and what it cannot tell; what was looked at in vain."""
    page = Page(page_of(run))
    assert "Diagnosis" in page.said("h2")
    assert "What was looked at" in page.said("h3")
    assert sum("Cannot tell: " in text for text in page.said("p")) == page.said("th").count("evidence") > 0


def test_hostile_text_stays_text(run: Path, tmp_path: Path) -> None:
    """In ids, classes, errors and names: no tag, no control character, and not 100 kB of it."""
    path = shutil.copytree(run, tmp_path / "run")
    rows = [json.loads(line) for line in (path / "requests.jsonl").read_text().splitlines()]
    rows[0] |= {"id": HOSTILE, "class": HOSTILE}
    rows[1] |= {"id": "x" * 100_000, "class": "y" * 100_000}
    rows[2] |= {"outcome": "http_error", "error": HOSTILE + "z" * 100_000}
    (path / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    info = json.loads((path / "run.json").read_text())
    info["ledger"]["name"] = info["command"][0] = HOSTILE
    info["notes"] = [HOSTILE]
    (path / "run.json").write_text(json.dumps(info))
    text = page_of(path, HOSTILE)
    page = Page(text)
    assert not any(tag == "script" for tag, _ in page.tags)
    assert page.text.count("<script>alert('x')</script>") > 4
    assert not {"\x00", "\x1b", "\u202e", "\u2028"} & set(text)
    assert len(text) < 300_000


def test_a_measured_run_shows_its_client_and_the_uncorrected_curve(tmp_path: Path) -> None:
    """Ten requests, each sent 200 ms late, of which one failed at 9.5 s."""
    rows = [answered(i, ttft_ms=300, sent_ns=i * S + 200 * MS) for i in range(10)]
    failed = RequestRow(id="R11", prompt_tokens=1, output_tokens=1, arrival_ns=9 * S, end_ns=9_500 * MS)
    failed.outcome, failed.error = "timeout", "took too long"
    text = Page(page_of(measured(tmp_path / "run", [*rows, failed]))).text
    assert "from the send (uncorrected)" in text
    assert "TTFT p99, the largest of 10, is 300 ms" in text
    assert "Counted from the send, p99 would be 100 ms" in text
    assert "Counted from the send, p99 would be 300 ms" in text  # E2E, which is 500
    assert "1 of 11 requests ended without completing in the window: 1 timeout" in text
    assert "the first at 9.5 s" in text
    assert "CLIENT-LIMITED: 10 of 10 requests were sent more than 10 ms late" in text
    assert "it used 95% of a core" in text
    assert "A client cannot tell queue from prefill" in text
    assert "before the send" in text


def test_a_run_in_which_nothing_completed_has_a_page(tmp_path: Path) -> None:
    """Without a request even."""
    refused_row = RequestRow(id="R1", prompt_tokens=1, output_tokens=1, arrival_ns=0, end_ns=MS)
    refused_row.outcome = "connect_error"
    for name, rows in (("one", [refused_row]), ("none", [])):
        assert "Verdict" in Page(page_of(measured(tmp_path / name, rows))).said("h2")


def test_many_requests_make_a_small_page(tmp_path: Path) -> None:
    """10,000 of them: what is thinned is said, and intervals have percentiles."""
    rows = [answered(i, ttft_ms=100 + i % 97, gap_s=0.01) for i in range(10_000)]
    text = page_of(measured(tmp_path / "run", rows))
    assert len(text) < 1_000_000
    assert "The 40 of 10,000 requests that waited longest" in text
    assert "p99 of an interval" in text
    assert "of 20,000 points the extremes" in text


def test_a_burst_of_few_requests_is_drawn_whole(tmp_path: Path) -> None:
    """Twenty that come and go within a thousandth of the picture's width, with nothing said of thinning."""
    rows = [answered(i, ttft_ms=1, tokens=1, gap_s=0.002) for i in range(20)]
    run = Run(measured(tmp_path / "run", [*rows, answered(1, ttft_ms=100_000, tokens=1)]))
    summary = summarize(run)
    chart = in_flight_chart(RunRows(run, summary), TickColumns([]), summary, run.info.config)
    assert chart is not None
    drawn = re.search(r'd="(M[^"]*)" class="line', chart.svg)
    assert drawn is not None
    assert drawn[1].count("V") >= 2 * 20
    assert chart.note == ""


@pytest.mark.parametrize("count", [1_199, 1_200, 1_201])
def test_a_kv_curve_says_that_it_is_thinned_where_it_is(count: int) -> None:
    """Every other tick was idle, so that each that was not makes two points."""
    ticks = TickColumns(
        TickRow(tick=2 * k, queue=0, prefill=0, ready=1, emitted=1, kv_reserved=k % 7 + 1, kv_cached=1)
        for k in range(count)
    )
    chart = kv_chart(ticks, Hardware())
    assert chart is not None
    thinned = len(ticks.drawn("kv_reserved")) < len(list(ticks.steps("kv_reserved")))
    assert thinned == ("the extremes of each column" in chart.note)


def test_files_that_cannot_be_written(run: Path) -> None:
    """One line that names the file, exit code 2, and nothing is left behind."""
    (run.parent / "directory").mkdir()
    before = sorted(run.parent.iterdir())
    for file in ("missing/page.html", "directory", ".", "run/run.json/page.html", "x" * 300):
        refused(tokentick("report", "run", "--html", file, cwd=run.parent), 2, file[:50])
    full = tokentick("report", "run", "--html", "full.html", cwd=run.parent, command=on_full_disk(10_000))
    assert (full.returncode, full.stderr) == (2, "tokentick: full.html: File too large\n")
    assert "verdict: " in full.stdout
    assert sorted(run.parent.iterdir()) == before


def test_what_is_there_and_is_no_page_stays(run: Path) -> None:
    """The run's own files, a user's text, a device: refused before anything is read, and named."""
    (run.parent / "notes.txt").write_text("mine")
    before = (run / "run.json").read_bytes()
    for file in ("run/run.json", "notes.txt", "/dev/null"):
        refused(tokentick("report", "run", "--html", file, cwd=run.parent), 2, f"--html {file}: exists")
    refused(tokentick("report", "no", "--html", "no/x.html", cwd=run.parent), 2, "--html no/x.html: No such")
    assert (run / "run.json").read_bytes() == before
    assert (run.parent / "notes.txt").read_text() == "mine"
    assert not Path("/dev/null").is_file()
    (run.parent / "notes.txt").unlink()


def test_a_page_is_the_same_beside_text_for_a_screen_reader(run: Path) -> None:
    plain = tokentick("report", "run", "--plain", "--html", "plain.html", cwd=run.parent)
    assert "\nTTFT: p50 " in plain.stdout
    assert (run.parent / "plain.html").read_bytes() == (run.parent / "page.html").read_bytes()


def test_verdict_and_counts_are_those_of_text_and_markdown(tmp_path: Path) -> None:
    """Of a run that was interrupted, with a request that has no row and one that was tried again."""
    rows = [answered(i, sent_ns=i * S) for i in range(4)]
    rows[3].retry_of = rows[2].id
    path = measured(tmp_path / "run", rows)
    info = json.loads((path / "run.json").read_text())
    info["interrupted"], info["ledger"]["requests"] = True, 5
    (path / "run.json").write_text(json.dumps(info))
    text, markdown = (
        " ".join(tokentick("report", "run", *form, cwd=tmp_path).stdout.split())
        for form in ([], ["--format", "markdown"])
    )
    said = Page(page_of(path)).said("p")
    counts = next(each for each in said if " scheduled " in each).removesuffix(".")
    verdict = said[said.index(f"{counts}.") - 1].removesuffix(".")
    assert "(1 of them retries) = " in counts
    for other in (text, markdown):
        assert f"{counts} " in other
        assert (
            f"verdict: {verdict[0].lower() if verdict.startswith('Valid') else verdict[0]}{verdict[1:]} "
            in other
        )


def test_what_does_not_go_with_a_page_is_refused(run: Path) -> None:
    """Several runs are for compare."""
    for arguments in (["run", "run"], ["run", "--ticks"], ["run", "--diagnose"]):
        result = tokentick("report", *arguments, "--html", "no.html", cwd=run.parent)
        refused(result, 2, "--html", "tokentick compare")
    assert not (run.parent / "no.html").exists()


def test_a_page_goes_to_stdout_and_beside_the_text(run: Path) -> None:
    """`-` prints the page and nothing else; with a file the report is printed as ever."""
    piped = tokentick("report", "run", "--html", "-", cwd=run.parent)
    assert piped.stdout == (run.parent / "page.html").read_text()
    beside = tokentick("report", "run", "--html", "beside.html", cwd=run.parent)
    assert beside.stdout == tokentick("report", "run", cwd=run.parent).stdout
    shown = tokentick("report", "run", "--html", "beside.html", "--json", cwd=run.parent).stdout
    assert msgspec.json.decode(shown)["scheduled"] == 16


def test_a_baseline_stands_beside_the_diagnosis(run: Path) -> None:
    """Named by its directory; the rules that need a pair have looked."""
    result = tokentick("report", "run", "--html", "-", "--against", "run", cwd=run.parent)
    assert "Against run." in Page(result.stdout).text
    assert "ttft-up" in Page(result.stdout).text


def test_sections_with_the_same_heading_have_ids_of_their_own() -> None:
    """And text in any script gets one."""
    page = Page(render("t", [Section("A b"), Section("A b"), Section("目录"), Section("", id="own")]))
    ids = [attributes["id"] for tag, attributes in page.tags if tag == "section"]
    assert ids == ["a-b", "a-b.2", "part", "own"]


def test_columns_of_numbers_are_aligned_by_their_last_digit() -> None:
    """A column with one cell of words is text."""
    table = Table(["name", "n", "value"], [["a", "1,024", "3"], ["b", "-", "3 to 4"], ["c", "9.5†", "5"]])
    page = Page(render("t", [Section("s", tables=[table])]))
    heads = [attributes.get("class") for tag, attributes in page.tags if attributes.get("scope") == "col"]
    assert heads == [None, "n", None]
