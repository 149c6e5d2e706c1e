"""What people read in a terminal: 80 columns, nothing cut, marks where they belong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ledgers.health import HealthSample
from ledgers.rows import RequestRow, TickRow
from ledgers.rundir import LedgerInfo, Run, RunConfig, RunInfo, RunWriter
from ledgers.settings import Slo
from ledgers.summary import summarize
from reports.text import run_text
from reports.ticks_text import tick_lines
from tests.conftest import COMMAND, tokentick

MS = 1_000_000


@pytest.fixture(scope="module")
def overload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy ledger at a rate at which some requests do not complete."""
    cwd = tmp_path_factory.mktemp("text")
    result = tokentick("simulate", "toy", "--preset", "overload", "--record-events", "--out", "run", cwd=cwd)
    assert result.returncode == 0
    return cwd


def test_a_report_fits_80_columns_and_marks_what_is_censored(overload: Path) -> None:
    """Every latency of a censored run carries the mark; the counts and an estimate stand beside it."""
    lines = tokentick("report", "run", cwd=overload).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "16 scheduled = 13 completed + 3 unfinished" in lines
    (ttft,) = (line for line in lines if line.startswith("TTFT  "))
    assert ttft.count("†") == 6
    assert any(line.startswith("E2E, estimate") for line in lines)
    assert sum(line.endswith("unfinished") for line in lines) == 1 + 3  # the sum, and R11, R14, R16


def test_the_tick_table_accounts_for_every_token(overload: Path) -> None:
    """Each tick's tokens are named, a line per kind, in 80 columns."""
    lines = tokentick("report", "run", "--ticks", cwd=overload).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    table = [line.split() for line in lines[1:]]
    emitted = sum(int(cells[4]) for cells in table if cells[0].isdigit())
    named = sum(len(line.split(" token ")[1].split()) for line in lines if " token " in line)
    assert emitted == named == 63


def test_columns_of_the_tick_table_never_run_together() -> None:
    """Seven digits of KV tokens are as readable as two."""
    tick = TickRow(tick=7, queue=1, prefill=2, ready=3, emitted=3, kv_reserved=4000000000, kv_cached=1234567)
    *_, line = tick_lines([tick], {})
    assert line.split() == ["7", "1", "2", "3", "3", "4000000000", "1234567"]


def test_a_report_does_not_need_utf_8(overload: Path) -> None:
    """A terminal that knows only ASCII gets a table, not a traceback."""
    command = ["env", "LC_ALL=C", "PYTHONUTF8=0", "PYTHONCOERCECLOCALE=0", "PYTHONIOENCODING=ascii"]
    result = tokentick("report", "run", cwd=overload, command=[*command, *COMMAND])
    assert result.returncode == 0, result.stderr
    assert "16 scheduled" in result.stdout


def measured(number: int, **fields: Any) -> RequestRow:
    """A request every 100 ms, sent at once, with 20 tokens from 50 to 800 ms after its arrival."""
    arrival = number * 100 * MS
    known: dict[str, Any] = {
        "id": f"R{number:03}",
        "prompt_tokens": 100,
        "output_tokens": 20,
        "arrival_ns": arrival,
        "sent_ns": arrival,
        "first_token_ns": arrival + 50 * MS,
        "first_content_ns": arrival + 50 * MS,
        "last_token_ns": arrival + 800 * MS,
        "end_ns": arrival + 801 * MS,
        "tokens": 20,
        "events": 20,
        "shared_reads": 0,
        "token_source": "usage",
        "usage_prompt_tokens": 100,
        "streamed": True,
        "outcome": "completed",
    }
    return RequestRow(**known | fields)


def failed(number: int, outcome: str, phase: str, error: str) -> RequestRow:
    nothing = dict.fromkeys(("first_token_ns", "first_content_ns", "last_token_ns", "events", "tokens"))
    return measured(number, outcome=outcome, phase=phase, error=error, **nothing)


def text_of(
    path: Path,
    rows: list[RequestRow],
    *,
    config: RunConfig | None = None,
    loop_lags_ms: tuple[int, ...] = (),
    health: Sequence[HealthSample] = (),
) -> list[str]:
    """The lines printed of a measured run; all fit the terminal."""
    info = RunInfo(kind="measured", config=config or RunConfig(), ledger=LedgerInfo("trace.jsonl"))
    writer = RunWriter(path / "run", info)
    for row in rows:
        writer.add(row)
    for sample in (*health, *(HealthSample(t_ns=1, loop_lag_max_ns=lag * MS) for lag in loop_lags_ms)):
        writer.add_health(sample)
    writer.close(complete=True)
    lines = run_text(info, summarize(Run(path / "run")), rows).splitlines()
    assert max(map(len, lines)) <= 80
    return lines


def test_a_plain_run_is_shown_without_what_it_has_not(tmp_path: Path) -> None:
    """No row for requests held back, for reasoning, no warning."""
    lines = text_of(tmp_path, [measured(i) for i in range(100)])
    shown = [line.split("  ")[0] for line in lines]
    assert {"TTFT", "TPOT", "E2E", "send lag"} <= set(shown)
    assert not {"held back", "TTFC", "TTFT, estimate"} & set(shown)
    assert not any(line.startswith("warning") for line in lines)
    assert "prompt and output tokens as planned in all 100 requests" in lines
    assert not any("counted by" in line for line in lines)
    assert any("| output 186.90 tokens/s" in line for line in lines)


def test_a_client_that_waited_for_a_core_is_said_to_have(tmp_path: Path) -> None:
    """Where it is enough to matter, though not yet enough to spoil the run."""
    for name, share in (("much", 0.12), ("little", 0.01)):
        (tmp_path / name).mkdir()
        samples = [HealthSample(t_ns=1, starved_share=share), HealthSample(t_ns=2, starved_share=0.0)]
        text = " ".join(text_of(tmp_path / name, [measured(0)], health=samples))
        assert ("waits for a core up to 12% of a second" in text) is (name == "much")
        assert ("waits for a core" in text) is (name == "much")


def test_a_single_request_is_spoken_of_as_one(tmp_path: Path) -> None:
    lines = text_of(tmp_path, [measured(0, tokens=26)])
    assert "prompt tokens as planned in the one request" in lines
    assert "output tokens off by +6 in the one request" in lines
    assert not any("1 requests" in line for line in lines)


def test_counts_by_other_sources_than_usage_are_said(tmp_path: Path) -> None:
    rows = [measured(0), measured(1, token_source="tokenizer")]
    assert "tokens counted by tokenizer, usage" in text_of(tmp_path, rows)


def test_two_choices_are_said_once_and_are_no_excess(tmp_path: Path) -> None:
    """20 tokens planned, and 20 of each of two choices delivered."""
    rows = [measured(i, tokens=40, events=40, choices=2, decode_ns=1_500 * MS) for i in range(3)]
    lines = text_of(tmp_path, rows)
    assert "prompt and output tokens as planned in all 3 requests" in lines
    assert sum("2 choices per request" in line for line in lines) == 1
    (row,) = (line for line in lines if line.startswith("R000"))
    assert row.split()[2] == "40"


def test_the_request_table_shows_what_was_delivered(tmp_path: Path) -> None:
    """Where it is known, and not what was planned; an event may carry several tokens, so it is no count."""
    rows = [measured(0), measured(1, tokens=7), measured(2, tokens=9, token_source="events")]
    rows += [failed(3, "timeout", "first_token", "late")]
    lines = text_of(tmp_path, rows)
    table = [line.split() for line in lines if line.startswith("R0")]
    assert [cells[2] for cells in table] == ["20", "7/20", "20", "20"]


def test_requests_that_never_arrived_stand_last(tmp_path: Path) -> None:
    """A turn whose session had ended has no place in time: it does not come before the first request."""
    lost = msgspec.structs.replace(measured(9), id="R009", arrival_ns=None, sent_ns=None, outcome="not_sent")
    table = [
        line.split()[0] for line in text_of(tmp_path, [measured(1), lost, measured(0)]) if line[:2] == "R0"
    ]
    assert table == ["R000", "R001", "R009"]


def test_a_column_for_the_slo_needs_an_slo(tmp_path: Path) -> None:
    """Without one the column is of outcomes, where there are others than completed."""
    rows = [measured(i) for i in range(3)]

    def columns(name: str, rows: list[RequestRow], **config: Any) -> list[str]:
        lines = text_of(tmp_path / name, rows, config=RunConfig(**config))
        (header,) = (line for line in lines if line.startswith("id "))
        return header.split()

    assert columns("plain", rows)[-1] == "E2E"
    assert columns("slo", rows, slo=Slo(e2e_ms=1))[-1] == "SLO"
    assert columns("failed", [*rows, failed(3, "empty", "first_token", "")])[-1] == "outcome"


def test_notes_stand_in_one_block(tmp_path: Path) -> None:
    """Those of the run and those of whoever read its files."""
    info = RunInfo(kind="measured", config=RunConfig(), ledger=LedgerInfo("x"), notes=["one", "two"])
    writer = RunWriter(tmp_path / "run", info)
    writer.add(measured(0))
    writer.close(complete=True)
    text = run_text(info, summarize(Run(tmp_path / "run")), None, ["three"])
    assert "\n\nnote: one\nnote: two\nnote: three" in text


def test_requests_without_a_row_are_no_ordinary_unfinished_ones(tmp_path: Path) -> None:
    """Five planned, two rows, one of them unfinished: three were in flight or not sent at the kill."""
    info = RunInfo(kind="measured", config=RunConfig(), ledger=LedgerInfo("x", requests=5))
    writer = RunWriter(tmp_path / "run", info)
    for row in (measured(0), measured(1, outcome="unfinished")):
        writer.add(row)
    text = run_text(info, summarize(Run(tmp_path / "run")), None)
    assert "5 scheduled = 1 completed + 1 unfinished + 3 without a row" in text
    assert "  3 without a row: in flight or not sent when the run was killed" in text
    assert not any(word in text for word in ("asked", "L mean", "estimate"))
    writer.close(complete=True)
    assert "3 without a row: requests.jsonl has lost them" in run_text(
        info, summarize(Run(tmp_path / "run")), None
    )


def test_failures_that_differ_in_numbers_are_one_line_of_text(tmp_path: Path) -> None:
    """The first is the example, however long it is; how many are alike is not cut off."""
    for name, filling in (("short", ""), ("long", "and this is what it said about it " * 9)):
        rows = [measured(0)]
        rows += [
            failed(i, "http_error", "headers", f"HTTP 400: {4999 + i} tokens {filling}") for i in range(1, 13)
        ]
        lines = text_of(tmp_path / name, rows)
        above = " ".join("\n".join(lines).partition("TTFT")[0].split())
        assert above.count("http_error") == 1
        assert "12 http_error in headers" in above
        assert "HTTP 400: 5000 tokens" in above
        assert "(and 11 alike)" in above


def test_percentiles_lead_and_the_mean_comes_last(tmp_path: Path) -> None:
    (header,) = (line for line in text_of(tmp_path, [measured(0)]) if line.startswith("ms "))
    assert header.split() == ["ms", "p50", "p90", "p95", "p99", "max", "mean", "n"]


def test_reasoning_has_a_row_for_the_answer_behind_it(tmp_path: Path) -> None:
    rows = [measured(i, first_content_ns=(i * 100 + 700) * MS, reasoning_tokens=12) for i in range(100)]
    lines = text_of(tmp_path, rows)
    (ttfc,) = (line for line in lines if line.startswith("TTFC"))
    assert ttfc.split()[1:3] == ["700.0", "700.0"]
    assert any("reasoning in 100 requests, 1200 tokens" in line for line in lines)


def test_requests_held_back_and_tried_again_are_named_as_such(tmp_path: Path) -> None:
    rows = [failed(0, "http_error", "headers", "HTTP 429: slow down")]
    again = {"id": "R000~1", "retry_of": "R000", "due_ns": 900 * MS, "sent_ns": 900 * MS}
    rows += [measured(0, **again, first_token_ns=950 * MS, last_token_ns=990 * MS)]
    rows += [measured(i) for i in range(1, 5)]
    lines = text_of(tmp_path, rows)
    assert "6 scheduled (1 of them retries) = 5 completed + 1 failed" in lines
    assert "  every attempt counts here and in attainment; estimates count requests" in lines
    assert any(line.startswith("held back") for line in lines)
    (row,) = (line for line in lines if line.startswith("R000~1"))
    assert "900.0" in row.split()


def test_every_kind_of_failure_stands_above_the_latencies(tmp_path: Path) -> None:
    """Five kinds, one of them with an error of its own for each request: none is left out."""
    rows = [measured(i) for i in range(20)]
    rows += [failed(20 + i, "http_error", "headers", f"HTTP 503: {i} is too many " * 9) for i in range(9)]
    kinds = {"timeout": "first_token", "connect_error": "connect", "empty": "first_token"}
    rows += [failed(30, outcome, phase, f"this is {outcome}") for outcome, phase in kinds.items()]
    rows += [measured(31, outcome="truncated", phase="streaming", error="broken", tokens=7)]
    above = "\n".join(text_of(tmp_path, rows)).partition("TTFT")[0]
    assert "33 scheduled = 20 completed + 13 failed" in above
    for outcome in (*kinds, "truncated", "http_error"):
        assert outcome in above
    assert "7 tokens of failed requests" in above
    assert "801.0 ms after the send" in above


def test_nothing_completed_is_said_first(tmp_path: Path) -> None:
    """And there is no table of latencies that nobody had."""
    lines = text_of(tmp_path, [failed(i, "http_error", "headers", "HTTP 401: bad key") for i in range(5)])
    assert "NOTHING COMPLETED" in lines[0]
    assert "5 scheduled = 5 failed" in lines
    assert not any(line.startswith(("TTFT", "E2E")) for line in lines)


def test_clumped_streams_are_warned_of(tmp_path: Path) -> None:
    lines = text_of(tmp_path, [measured(i, shared_reads=18) for i in range(3)])
    assert any(line.startswith("warning: clumped streams: 95%") for line in lines)


def test_the_client_line_says_how_late_its_loop_was_and_how_long_uploads_took(tmp_path: Path) -> None:
    """The loop always; uploads from more than 5 ms on."""
    rows = [measured(i, send_start_ns=i * 100 * MS) for i in range(3)]
    (line,) = (line for line in text_of(tmp_path, rows, loop_lags_ms=(2, 7)) if line.startswith("asked"))
    assert "loop lag max 7.00 ms" in line
    assert "uploads" not in line
    rows[1].sent_ns = 106 * MS
    assert "uploads up to 6.00 ms" in "\n".join(text_of(tmp_path / "slow", rows))


def test_a_closed_loop_shows_what_was_sent_and_nothing_that_was_asked(tmp_path: Path) -> None:
    closed = RunConfig(extra={"closed_loop": True})
    lines = text_of(tmp_path, [measured(i) for i in range(3)], config=closed)
    assert any(line.startswith("sent 10.00 req/s") for line in lines)
    assert not any("asked" in line for line in lines)


HOSTILE = "é 中 🎉 \x1b[2J\u202eesrever\u202c \x1b]0;owned\x07 \x9b31m \u2028 \r "


def test_what_a_server_says_cannot_drive_the_terminal(tmp_path: Path) -> None:
    """Errors, ids, notes, names: controls are shown, other signs stay, and 80 columns hold."""
    rows = [measured(i, id=f"R{i}{HOSTILE}", class_=HOSTILE) for i in range(3)]
    rows += [failed(9, "http_error", "headers", f"HTTP 500: {HOSTILE * 9}")]
    info = RunInfo(kind="measured", config=RunConfig(), ledger=LedgerInfo(f"trace{HOSTILE}"), notes=[HOSTILE])
    writer = RunWriter(tmp_path / "run", info)
    for row in rows:
        writer.add(row)
    writer.close(complete=True)
    text = run_text(info, summarize(Run(tmp_path / "run")), rows)
    assert max(map(len, text.split("\n"))) <= 80
    assert not set(text) & set("\x1b\x07\x9b\r\u202e\u202c\u2028")
    failure = text.partition("http_error")[2].partition("TTFT")[0]
    assert all(sign in failure for sign in (r"\x1b[2J", r"\u202eesrever", "é", "中", "🎉"))


def test_ids_of_requests_cannot_drive_the_terminal_from_the_tick_table() -> None:
    tick = TickRow(tick=1, queue=0, prefill=0, ready=1, emitted=1, kv_reserved=1, kv_cached=1)
    tick.events = [("token", "A")]
    text = "\n".join(tick_lines([tick], {"A": HOSTILE}))
    assert "\x1b" not in text
    assert "\x1b[2J" in text.replace(r"\x1b", "\x1b")


@pytest.mark.parametrize(("by_then", "shown"), [(9, False), (10, True)])
def test_the_rate_before_the_drain_needs_some_who_completed_before_it(
    tmp_path: Path, by_then: int, shown: bool
) -> None:
    """12 requests in 1.1 s; all but those take five seconds."""
    slow = [measured(i, last_token_ns=5_000 * MS) for i in range(by_then, 12)]
    rows = [measured(i, last_token_ns=(i * 100 + 90) * MS) for i in range(by_then)] + slow
    assert any("until the last arrival" in line for line in text_of(tmp_path, rows)) is shown


def test_a_straggler_does_not_hide_the_throughput_before_it(tmp_path: Path) -> None:
    rows = [measured(i) for i in range(101)] + [measured(0, id="slow", last_token_ns=60_000 * MS)]
    (line,) = (line for line in text_of(tmp_path, rows) if line.startswith("throughput"))
    assert "throughput 1.70 req/s | until the last arrival 9.30 req/s" in line


def test_the_verdict_stands_near_the_top(tmp_path: Path) -> None:
    """Valid, and with what in mind; or not, and why not."""
    for name in ("good", "bad", "limited", "none"):
        (tmp_path / name).mkdir()
    good = [measured(i) for i in range(5)]
    bad = [*good, failed(5, "timeout", "first_token", "late")]
    busy = [HealthSample(t_ns=i * 1_000 * MS, cpu_share=0.99, sent=5) for i in range(1, 4)]
    none = [failed(i, "empty", "first_token", "") for i in range(3)]

    def verdict(name: str, rows: list[RequestRow], **how: Any) -> str:
        lines = [line for line in text_of(tmp_path / name, rows, **how)[:6] if line.strip()]
        (at,) = (place for place, line in enumerate(lines) if line.startswith("verdict: "))
        return " ".join(f"{lines[at]} {lines[at + 1].strip()}".split())

    seen = [HealthSample(t_ns=1_000 * MS, sent=5)]
    assert verdict("good", good, health=seen).startswith(
        "verdict: valid; the client kept up; all completed; steadiness not known"
    )
    assert "valid; the client kept up; 1 of 6 did not complete (†)" in verdict("bad", bad, health=seen)
    assert "NOT VALID, CLIENT-LIMITED: " in verdict("limited", good, health=busy)
    assert "NOT VALID, nothing completed" in verdict("none", none)
