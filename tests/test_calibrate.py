"""A calibration says how exact the instrument is, up to which load; a run repeats what holds for its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ledgers import calibration_file
from ledgers.calibration import PATTERNS, Calibration, Load, Machine, Pattern, Rung, instrument
from ledgers.client import TokenRate, load
from ledgers.distributions import Distribution
from ledgers.metrics import Observations
from ledgers.rows import RequestRow
from ledgers.rundir import LedgerInfo, Run, RunConfig, RunInfo, RunWriter, tool_version
from ledgers.settings import Slo
from ledgers.summary import summarize
from mock_server.policies import make_scheduler
from mock_server.simulate import simulate
from reports.calibration import Driven, judged, planned, settings, truths
from reports.calibration_markdown import calibration_markdown
from reports.calibration_text import answer, calibration_text
from reports.cli import save_widest
from reports.text import instrument as instrument_line
from tests.conftest import COMMAND, MockServer, refused, tokentick

MS, S = 1_000_000, 1_000_000_000
HERE = Machine(system="Linux 6", machine="x86_64", cpu="Fast", cpus=2, python="3.11.2", event_loop="uvloop")


def errors(p99: float, p50: float = 0.01) -> Distribution:
    return Distribution(mean=p50, p50=p50, p90=p99, p95=p99, p99=p99, max=p99, n=1000)


def rung(pattern: Pattern, streams: int, first: float = 0.1, every: float = 0.2, **fields: Any) -> Rung:
    known: dict[str, Any] = {
        "pattern": pattern,
        "streams": streams,
        "tokens_per_s": streams * 50.0,
        "first_ms": errors(first),
        "token_ms": errors(every, 0.02),
        "upper_bound_share": 0.004,
        "send_lag_p99_ms": 1.5,
        "cpu_share": 0.2,
        "workers": 1,
        "verdict": "ok",
        "reasons": [],
    }
    return Rung(**{**known, **fields})


def calibration(*rungs: Rung, **fields: Any) -> Calibration:
    known = {"calibrated_at": "2026-11-30T10:00:00.000Z", "version": tool_version(), "machine": HERE}
    return Calibration(**{**known, **fields}, rungs=list(rungs))


TWO = calibration(
    rung("staggered", 10, first=0.05, every=0.3),
    rung("staggered", 100, first=0.12, every=0.5),
    rung("lock step", 10, first=0.08, every=0.2),
    rung("lock step", 100, first=0.11, every=0.9),
)


# What a calibration says of a load


def test_the_rung_at_or_above_the_load_counts_and_the_worse_of_both_patterns() -> None:
    """11 streams are more than the rung of 10: TTFT is 0.12 ms off staggered, tokens 0.9 in lock step."""
    found = instrument(TWO, Load(11, 550))
    assert found is not None
    assert (found.streams, found.tokens_per_s, found.pattern) == (100, 5_000, "lock step")
    assert (found.error_p50_ms, found.error_p99_ms, found.token_error_p99_ms) == (0.01, 0.12, 0.9)
    assert (found.calibrated_streams, found.calibrated_tokens_per_s, found.within) == (100, 5_000, True)
    lower = instrument(TWO, Load(10, 500))
    assert lower is not None
    assert (lower.streams, lower.pattern, lower.error_p99_ms) == (10, "staggered", 0.08)


@pytest.mark.parametrize(
    ("streams", "tokens_per_s", "rung"),
    [(1, 500, 10), (1, 525, 10), (1, 526, 100), (100, 5_250, 100), (100, 5_251, None), (101, 1, None)],
)
def test_a_rung_must_carry_the_streams_and_the_tokens(
    streams: int, tokens_per_s: float, rung: int | None
) -> None:
    """Few fast streams are as much load as many slow ones; 5 % more tokens still count as the same."""
    found = instrument(TWO, Load(streams, tokens_per_s))
    assert found is not None
    assert (found.streams, found.within) == (rung, rung is not None)
    assert (found.error_p99_ms is None) is (rung is None)


def test_a_pattern_that_ends_earlier_ends_the_calibration() -> None:
    """Nobody knows which pattern a run has: lock step up to 100 does not help where staggered ends at 10."""
    short = calibration(rung("staggered", 10), rung("lock step", 10), rung("lock step", 100))
    found = instrument(short, Load(50, 10))
    assert found is not None
    assert (found.within, found.calibrated_streams, found.error_p99_ms) == (False, 10, None)


def test_a_rung_at_which_the_server_was_the_limit_tells_nothing_of_the_client() -> None:
    """Nor does what is above it; a rung at which the client was the limit does."""
    limited = calibration(
        rung("staggered", 10, verdict="client-limited"),
        rung("staggered", 100, verdict="server-limited"),
        rung("staggered", 1000),
        rung("lock step", 10),
        rung("lock step", 100, first_ms=None, token_ms=None, verdict="client-limited"),
    )
    assert [[found.streams for found in limited.usable(pattern)] for pattern in PATTERNS] == [[10], [10]]


def test_without_a_calibration_nothing_is_said() -> None:
    assert instrument(None, Load(1, 1)) is None
    assert instrument(calibration(rung("staggered", 10)), Load(1, 1)) is None


# The load of a run


def stream(id: str, first_s: float, last_s: float, tokens: int, **fields: Any) -> RequestRow:
    return RequestRow(
        id=id, prompt_tokens=1, output_tokens=tokens, tokens=tokens, outcome="completed", arrival_ns=0,
        sent_ns=round(first_s * S), first_token_ns=round(first_s * S), last_token_ns=round(last_s * S),
        end_ns=round(last_s * S), **fields,
    )  # fmt: skip


def busiest(*rows: RequestRow) -> float:
    rate = TokenRate()
    for row in rows:
        rate.add(row)
    return rate.busiest()


def test_tokens_are_spread_over_the_stream() -> None:
    """10 from 0.5 to 2.5 s: 2.5 in the first second, 5 in the next; with 3 more in that, 8."""
    assert busiest(stream("A", 0.5, 2.5, 10)) == pytest.approx(5)
    assert busiest(stream("A", 0.5, 2.5, 10), stream("B", 1.2, 1.9, 3)) == pytest.approx(8)
    assert busiest(stream("A", 0.5, 2.5, 10), stream("B", 2.2, 2.2, 1)) == pytest.approx(5)


def test_of_streams_one_after_another_the_busiest_second_is_that_of_one() -> None:
    """Seconds 0 to 9 at 5 a second, 20 to 29 at 7; nothing is left over from the first."""
    rows = [stream("A", 0, 10, 50), stream("B", 20, 30, 70)]
    assert busiest(*rows) == pytest.approx(7)
    assert busiest(*reversed(rows)) == pytest.approx(7)


def test_events_are_what_the_client_has_to_date() -> None:
    """A server that sends four tokens at a time makes a quarter of the stamps."""
    assert busiest(stream("A", 0.1, 0.9, 40, events=10)) == 10
    assert busiest(RequestRow(id="A", prompt_tokens=1, output_tokens=1, outcome="timeout")) == 0


def test_streams_count_from_their_send_to_their_end() -> None:
    """All three arrived at 0 and were held back: two overlap, the third leaves when the first has ended."""
    requests = Observations(Slo())
    for row in (stream("A", 1, 3, 4), stream("B", 2, 4, 4), stream("C", 3, 5, 4)):
        requests.add(row)
    assert load(requests, TokenRate()) == Load(2, 0.0)


def written(path: Path, rows: list[RequestRow], found: Calibration | None, planned: int) -> Path:
    info = RunInfo(
        kind="measured",
        config=RunConfig(),
        ledger=LedgerInfo(name="test", requests=planned),
        calibration=found,
    )
    writer = RunWriter(path, info)
    for row in rows:
        writer.add(row)
    writer.close(complete=True)
    return path


ROWS = [stream("A", 0, 2, 100), stream("B", 0.5, 2.5, 100)]


def test_a_summary_says_what_the_calibration_in_its_run_json_says(tmp_path: Path) -> None:
    """Two streams of 50 tokens/s, both in second 1: 100 tokens. A copy says the same on any machine."""
    run = written(tmp_path / "run", ROWS, TWO, 2)
    found = summarize(Run(run))["client"]["instrument"]
    assert (found["load_streams"], found["load_tokens_per_s"]) == (2, pytest.approx(100))
    assert (found["streams"], found["error_p99_ms"], found["within"]) == (10, 0.08, True)
    copy = shutil.copytree(run, tmp_path / "copy")
    assert summarize(Run(copy)) == summarize(Run(run))


def test_a_summary_without_a_calibration_says_null(tmp_path: Path) -> None:
    assert summarize(Run(written(tmp_path / "run", ROWS, None, 2)))["client"]["instrument"] is None


def test_the_load_of_a_run_that_lost_rows_is_not_known(tmp_path: Path) -> None:
    """One of three requests left no row: it may have been a stream beside the two."""
    client = summarize(Run(written(tmp_path / "run", ROWS, TWO, 3)))["client"]
    assert (client["instrument"]["within"], client["instrument"]["load_streams"]) == (None, None)
    assert instrument_line(client) == (
        "instrument: calibrated 2026-11-30 up to 100 streams, 5,000 tokens/s; how much load this was is not "
        "known"
    )


# In words


def line(found: Calibration | None, load: Load) -> str:
    known = msgspec.to_builtins(instrument(found, load))
    return instrument_line({"instrument": known, "client_limited": False})


def test_nothing_is_vouched_for_where_the_client_was_the_limit() -> None:
    """An instrument that stood still for a second was not right to a tenth of a millisecond."""
    known = msgspec.to_builtins(instrument(TWO, Load(10, 500)))
    line = instrument_line({"instrument": known, "client_limited": True})
    assert line == "instrument: no word on these figures, for the client was the limit"


def test_a_report_says_how_exact_the_instrument_is_at_its_load() -> None:
    assert line(TWO, Load(11, 550)) == (
        "instrument: TTFT right to 0.12 ms, every token to 0.90 (p99) at this load "
        "(calibrated 2026-11-30 up to 100 streams, 5,000 tokens/s)"
    )


def test_no_error_is_shown_as_none() -> None:
    """Two digits cannot show 4 µs, and no clock is exact to 0.00 ms."""
    exact = calibration(*(rung(pattern, 10, first=0.004, every=0.004) for pattern in PATTERNS))
    assert line(exact, Load(1, 1)).startswith("instrument: TTFT right to 0.01 ms, every token to 0.01 (p99)")


def test_a_report_warns_above_what_was_calibrated() -> None:
    assert line(TWO, Load(1200, 60_000)) == (
        "warning: instrument: 1,200 streams, 60,000 tokens/s are more than it was calibrated for "
        "(calibrated 2026-11-30 up to 100 streams, 5,000 tokens/s)"
    )


def test_a_report_of_an_uncalibrated_run_says_how_to_change_that() -> None:
    assert line(None, Load(1, 1)) == "instrument: not calibrated on this machine (tokentick calibrate)"


def test_the_table_fits_80_columns_and_ends_with_the_answer() -> None:
    """Five digits and the longest verdict are no reason to be wider."""
    wide = {"verdict": "server-limited", "reasons": ["54% of the ticks were late"], "cpu_share": 0.999}
    found = calibration(
        *TWO.rungs[:2],
        rung("staggered", 10_000, first=12.25, every=123.4, send_lag_p99_ms=1017.2, **wide),
        rung("lock step", 10, every=2.0, verdict="over 1 ms"),
        rung("lock step", 100),
    )
    text = calibration_text(found)
    assert max(map(len, text.splitlines())) <= 80
    (first,) = (
        line.split() for line in text.splitlines() if line.startswith("staggered ") and " 500 " in line
    )
    assert " ".join(first) == "staggered 10 500 0.01 0.05 0.05 0.30 0.4% 1.5 20% ok"
    said = " ".join(text.split())
    assert "staggered, 10,000 streams: 54% of the ticks were late; the mock cannot go higher" in said
    assert said.endswith(
        "p99 error under 1 ms: staggered up to 100 streams, 5,000 tokens/s; "
        "in lock step up to 100 streams, 5,000 tokens/s (but not at 10)"
    )


def test_markdown_has_the_same_cells_and_the_answer_first() -> None:
    """A row per load, the reasons below the table."""
    limited = {"verdict": "server-limited", "reasons": ["54% of the ticks were late"]}
    text = calibration_markdown(calibration(*TWO.rungs[:2], rung("lock step", 100, **limited)))
    answered = "staggered up to 100 streams, 5,000 tokens/s; in lock step at no load that was tried"
    assert text.startswith(f"## Calibration\n\n**p99 error under 1 ms: {answered}**\n\n| pattern | streams |")
    assert "| staggered | 10 | 500 | 0.01 | 0.05 | 0.05 | 0.30 | 0.4% | 1.5 | 20% | ok |" in text
    said = "- lock step, 100 streams: 54% of the ticks were late; the mock cannot go higher"
    assert text.splitlines()[-1] == said


def test_the_answer_can_be_that_there_is_none() -> None:
    found = calibration(rung("staggered", 1, verdict="client-limited"), rung("lock step", 1))
    assert " ".join(answer(found).split()) == (
        "p99 error under 1 ms: staggered at no load that was tried; in lock step up to 1 stream, 50 tokens/s"
    )


# What is asked of the server


@pytest.mark.parametrize(
    ("pattern", "streams", "slots", "tick_ns"),
    [
        ("staggered", 1, 1, 20 * MS),
        ("staggered", 10, 1, 2 * MS),
        ("staggered", 30, 2, 1_333_333),  # 15 turns of two in 20 ms
        ("staggered", 1000, 50, MS),
        ("lock step", 1000, 1000, 20 * MS),
    ],
)
def test_a_pattern_is_a_matter_of_slots_and_ticks(
    pattern: Pattern, streams: int, slots: int, tick_ns: int
) -> None:
    hardware = settings(pattern, streams).hardware
    assert (hardware.decode_slots, hardware.tick_ns) == (slots, tick_ns)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("streams", [1, 30, 100])
def test_each_stream_gets_a_token_every_20_ms_and_all_of_a_batch_run_together(
    pattern: Pattern, streams: int
) -> None:
    """As the simulator has it: in lock step all at one instant, staggered never more than the slots."""
    scheduler = make_scheduler(settings(pattern, streams))
    rows = list(simulate(scheduler, planned(streams, 1.0)))
    gaps = {after - before for row in rows for before, after in pairwise(row.token_ns or ())}
    assert all(abs(gap - 20 * MS) < 1_000 for gap in gaps)  # to what a tick of 1/750 s is rounded by
    at: dict[int, int] = {}
    for row in rows:
        for ns in row.token_ns or ():
            at[ns] = at.get(ns, 0) + 1
    assert set(at.values()) == {scheduler.hardware.decode_slots}
    batches = max(2, min(10, 30 // streams))
    assert (len(rows), {row.output_tokens for row in rows}) == (batches * streams, {round(50 / batches)})


def test_requests_are_sent_while_others_stream() -> None:
    """100 at 300 a second; then 100 more over the second for which the first ones stream."""
    arrivals = [row.arrival_ns or 0 for row in planned(100, 2.0)]
    assert (arrivals[0], arrivals[99]) == (0, 330_000_000)
    assert (arrivals[100], arrivals[150], arrivals[199]) == (333_333_333, 833_333_333, 1_323_333_333)


# What a rung comes to

TOKENS = {"token_ns": [100 * MS, 120 * MS], "events": 2}
CLIENT = {
    "client_limited": False,
    "reasons": [],
    "send_lag_ms": {"p50": 0.1, "p99": 0.5, "max": 0.6},
    "cpu_share_mean": 0.25,
}


def sent(id: str, off_ns: int = 0, **fields: Any) -> RequestRow:
    """Its tokens are dated `off_ns` late."""
    times = [100 * MS + off_ns, 120 * MS + off_ns]
    known: dict[str, Any] = {
        "id": id, "request_id": f"x-{id}", "prompt_tokens": 1, "output_tokens": 2, "tokens": 2, "events": 2,
        "shared_reads": 0, "outcome": "completed", "sent_ns": 5 * MS, "first_token_ns": times[0],
        "last_token_ns": times[1], "token_ns": times,
    }  # fmt: skip
    return RequestRow(**{**known, **fields})


def served(id: str) -> RequestRow:
    """The same on the server's clock, which began 7 ms earlier: written at 107 and 127 ms."""
    return RequestRow(
        id="S", request_id=f"x-{id}", prompt_tokens=1, output_tokens=2, outcome="completed",
        received_ns=13 * MS, first_token_ns=107 * MS, last_token_ns=127 * MS, token_ns=[107 * MS, 127 * MS],
    )  # fmt: skip


def driven(rows: list[RequestRow], **fields: Any) -> Driven:
    known: dict[str, Any] = {
        "requests": len(rows),
        "rows": rows,
        "truths": truths([served(row.id) for row in rows], rows, 7 * MS),
        "ticks_late_ns": [0] * 100,
        "client": CLIENT,
        "workers": 1,
    }
    return Driven(**{**known, **fields})


def test_an_error_is_the_stamp_minus_the_write_whatever_reading_the_request_took() -> None:
    """Dated 0.25 ms late and 0.5 ms early, that is 0.5 off at most; the 1 ms to the receipt is not in it."""
    found = judged("lock step", 2, driven([sent("A", 250_000), sent("B", -500_000)]))
    assert found.first_ms is not None
    assert found.token_ms is not None
    assert (found.first_ms.p50, found.first_ms.max, found.first_ms.n) == (0.25, 0.5, 2)
    assert (found.token_ms.max, found.token_ms.n) == (0.5, 4)
    assert (found.verdict, found.reasons, found.send_lag_p99_ms, found.cpu_share) == ("ok", [], 0.5, 0.25)


def test_the_rate_is_that_while_tokens_came() -> None:
    """Two streams of two tokens each, 20 ms apart, so 4 in 40 ms; a later batch adds as many in as long."""
    rows = [sent("A"), sent("B")]
    assert judged("lock step", 2, driven(rows)).tokens_per_s == pytest.approx(100)
    later = [sent(id, off_ns=900 * MS) for id in "CD"]
    assert judged("lock step", 2, driven([*rows, *later])).tokens_per_s == pytest.approx(100)


def test_the_error_must_stay_under_1_ms() -> None:
    assert judged("lock step", 1, driven([sent("A", MS - 1)])).verdict == "ok"
    assert judged("lock step", 1, driven([sent("A", MS)])).verdict == "over 1 ms"


def test_tokens_dated_by_the_read_of_another_are_counted() -> None:
    assert judged("lock step", 2, driven([sent("A", shared_reads=1), sent("B")])).upper_bound_share == 0.25


def test_a_client_that_was_its_own_bottleneck_is_called_so() -> None:
    """However exact its stamps were."""
    limited = {**CLIENT, "client_limited": True, "reasons": ["it used 95% of a core"]}
    found = judged("lock step", 1, driven([sent("A")], client=limited))
    assert (found.verdict, found.reasons) == ("client-limited", ["it used 95% of a core"])


def test_a_server_that_is_a_gap_late_proves_nothing_of_the_client() -> None:
    """5 of 100 ticks are a hiccup, 6 are not; and a client that was limited then may not be to blame."""
    late = [21 * MS] * 5 + [20 * MS] * 95
    assert judged("lock step", 1, driven([sent("A")], ticks_late_ns=late)).verdict == "ok"
    late[-1] = 30 * MS
    limited = {**CLIENT, "client_limited": True, "reasons": ["it used 95% of a core"]}
    found = judged("lock step", 1, driven([sent("A")], ticks_late_ns=late, client=limited))
    assert (found.verdict, found.tells) == ("server-limited", False)
    assert found.reasons == ["6% of the ticks ran more than 20 ms late, up to 30 ms"]


def test_a_request_that_failed_leaves_no_figure() -> None:
    """One that is left out would make the others look like all; whose fault it was, the client knows."""
    failed = sent("B", outcome="timeout", error="no token within 5 s")
    found = judged("lock step", 2, driven([sent("A"), failed]))
    assert (found.first_ms, found.verdict) == (None, "server-limited")
    assert found.reasons == ["request B: timeout, no token within 5 s"]
    limited = {**CLIENT, "client_limited": True, "reasons": ["out of files"]}
    assert judged("lock step", 2, driven([sent("A"), failed], client=limited)).verdict == "client-limited"


# Where it is kept


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file, in a directory that is not there yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "tokentick" / "calibration.json"


def of_here(**fields: Any) -> Calibration:
    machine = msgspec.structs.replace(calibration_file.this_machine("uvloop"), **fields)
    return msgspec.structs.replace(TWO, machine=machine)


def test_what_was_saved_is_found_again(state: Path) -> None:
    assert calibration_file.load("uvloop") == (None, [])
    assert calibration_file.save(of_here()) == state
    assert calibration_file.load("uvloop") == (of_here(), [])
    assert [file.name for file in state.parent.iterdir()] == ["calibration.json"]


def test_a_calibration_holds_for_its_machine_its_loop_and_its_version(state: Path) -> None:
    """A home directory may be shared by machines; nothing is said, for nothing is wrong."""
    for other in (
        of_here(cpu="Slow"),
        of_here(cpus=512),
        of_here(system="Linux 2.4"),
        of_here(python="3.99.0"),
        msgspec.structs.replace(of_here(), version="0.0.1"),
    ):
        calibration_file.save(other)
        assert calibration_file.load("uvloop") == (None, [])
    calibration_file.save(of_here())
    assert calibration_file.load("asyncio") == (None, [])


def test_a_wider_calibration_is_kept_unless_another_was_to_go_as_far(state: Path) -> None:
    """It is said which one there was, how far it went, and where it is."""
    ten = msgspec.structs.replace(of_here(), rungs=[rung("staggered", 10), rung("lock step", 10)])
    assert save_widest(of_here(), 100) == f"saved: {state}"
    assert save_widest(ten, 10) == (
        f"not saved: the one of 2026-11-30, up to 100 streams, is kept (remove {state} to have this one)"
    )
    assert calibration_file.load("uvloop") == (of_here(), [])
    assert save_widest(ten, 100) == f"saved: {state}, in place of the one of 2026-11-30, up to 100 streams"
    assert calibration_file.load("uvloop") == (ten, [])


@pytest.mark.parametrize(
    "content", [b"", b'{"rungs": [', b"[]", b'{"calibrated_at": 1}', b"\xff", b"[" * 9999]
)
def test_a_broken_file_is_a_note_and_no_calibration(state: Path, content: bytes) -> None:
    state.parent.mkdir(parents=True)
    state.write_bytes(content)
    found, (note,) = calibration_file.load("uvloop")
    assert found is None
    assert note.startswith(f"{state}: not used")


def test_a_directory_in_its_place_is_a_note_too(state: Path) -> None:
    state.mkdir(parents=True)
    assert calibration_file.load("uvloop") == (None, [f"{state}: not used as a calibration: Is a directory"])


def test_without_a_state_directory_of_its_own_it_is_below_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the XDG specification says, also of a path that is not absolute."""
    monkeypatch.setenv("HOME", "/home/someone")
    for unset in ("", "relative/state"):
        monkeypatch.setenv("XDG_STATE_HOME", unset)
        found = calibration_file.calibration_file()
        assert found == Path("/home/someone/.local/state/tokentick/calibration.json")


# The commands


def test_a_run_says_what_a_calibration_of_its_machine_has_found(server: MockServer, state: Path) -> None:
    """Three processes on the real clock; which errors they find is the machine's affair."""
    cwd = state.parents[2]
    lengths = ["--num-prompts", "5", "--random-input-len", "6", "--random-output-len", "4"]
    run = ["run", *lengths, "--base-url", server.url]
    before = tokentick(*run, "--out", "a", cwd=cwd)
    assert "instrument: not calibrated on this machine (tokentick calibrate)" in before.stdout
    result = tokentick("calibrate", "--quick", "--streams", "40", "--json", "--out", "kept", cwd=cwd)
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    found = json.loads(result.stdout)
    assert [(one["pattern"], one["streams"], one["first_ms"]["n"]) for one in found["rungs"]] == [
        ("staggered", 40, 80),
        ("lock step", 40, 80),
    ]
    assert all(one["token_ms"]["n"] == 80 * 12 for one in found["rungs"])  # a quarter of a second each
    assert all(0 < one["tokens_per_s"] < 2_200 for one in found["rungs"])
    assert json.loads(state.read_text()) == json.loads((cwd / "kept/calibration.json").read_text()) == found
    assert Run(cwd / "kept" / "lock-step-40" / "served").info.complete
    shorter = tokentick("calibrate", "--quick", "--streams", "2", "--quiet", cwd=cwd)
    assert "up to 2 streams" in " ".join(shorter.stdout.split())
    assert json.loads(state.read_text()) == found
    tokentick(*run, "--out", "b", cwd=cwd)
    assert json.loads((cwd / "b" / "run.json").read_text())["calibration"] == found
    state.unlink()
    again = tokentick("report", "b", cwd=cwd).stdout
    assert "instrument: TTFT right to " in again
    assert "up to 40 streams" in " ".join(again.split())


def test_interrupting_a_calibration_leaves_nothing_behind(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a load: exit code 130, no process, no file, no directory."""
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "TMPDIR": str(tmp_path)}
    command = [*COMMAND, "calibrate", "--streams", "20", "--seconds", "30"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 30
        while not list(tmp_path.glob("tokentick-*/*/measured/requests.jsonl")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for _ in range(3):  # the first lets what is in flight finish
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        assert process.wait(30) == 130
        assert process.stderr is not None
        assert process.stderr.read().splitlines()[-1] == "interrupted: nothing is saved"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("streams", ["0", "ten", "1,,2", "1000000", ""])
def test_a_ladder_is_numbers(tmp_path: Path, streams: str) -> None:
    refused(tokentick("calibrate", "--streams", streams, cwd=tmp_path), 2, "--streams")
