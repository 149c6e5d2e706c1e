"""Summaries rebuilt from run directories: the golden aggregates, accounting, edge cases and killed runs."""

from __future__ import annotations

import csv
import errno
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgers.errors import InputError
from ledgers.health import HealthSample
from ledgers.histograms import IntervalLog
from ledgers.rows import OUTCOMES, RequestRow, TickRow, Ticks
from ledgers.rundir import Kind, LedgerInfo, Run, RunConfig, RunInfo, RunWriter
from ledgers.settings import Hardware, Slo
from ledgers.summary import summarize, write_summary
from tests.memory import bytes_each

MS = 1_000_000
S = 1_000_000_000
TICK = 100 * MS
GOLDEN = Path(__file__).parent / "data" / "golden"
LENGTHS = {r["id"]: r for r in csv.DictReader((GOLDEN / "toy_ledger.csv").read_text().splitlines())}
FIGURES = {"mean", "p50", "p90", "p95", "p99", "max", "n"}


def write_run(
    path: Path,
    rows: Iterable[RequestRow],
    config: RunConfig,
    *,
    kind: Kind = "simulated",
    ticks: Iterable[TickRow] = (),
    requests: int | None = None,
    complete: bool = True,
) -> Path:
    info = RunInfo(kind=kind, config=config, ledger=LedgerInfo("test", requests=requests))
    writer = RunWriter(path, info)
    for row in rows:
        writer.add(row)
    for tick in ticks:
        writer.add_tick(tick)
    if complete:
        writer.close(complete=True)
    return path


def golden_row(made: dict[str, Any]) -> RequestRow:
    lengths = LENGTHS[made["id"]]
    tokens = int(lengths["output_tokens"])
    ticks = Ticks(None, *(made[f"{name}_tick"] for name in Ticks.__struct_fields__[1:5]))
    return RequestRow(
        id=made["id"],
        class_=lengths["class"],
        prompt_tokens=int(lengths["prompt_tokens"]),
        output_tokens=tokens,
        arrival_ns=made["arrival_ns"],
        received_ns=made["arrival_ns"],
        prefill_start_ns=made["prefill_start_tick"] * TICK,
        prefill_end_ns=made["prefill_end_tick"] * TICK,
        first_token_ns=made["first_token_tick"] * TICK,
        last_token_ns=made["last_token_tick"] * TICK,
        end_ns=made["last_token_tick"] * TICK,
        tokens=tokens,
        token_source="schedule",
        events=tokens,
        streamed=True,
        outcome="completed",
        finish_reason="length",
        ticks=ticks,
    )


def golden_run(path: Path, golden: dict[str, Any], ticks: Iterable[dict[str, int]] | None = None) -> Path:
    config = RunConfig(
        policy=golden["policy"],
        hardware=Hardware(**golden["hardware"]),
        slo=Slo(e2e_ms=golden["slo"]["e2e_s"] * 1000),
        tail_s=1.4,
    )
    rows = [golden_row(made) for made in golden["requests"]]
    tick_rows = [TickRow(**tick) for tick in (golden["ticks"] if ticks is None else ticks)]
    return write_run(path, rows, config, ticks=tick_rows)


def load(name: str) -> dict[str, Any]:
    golden: dict[str, Any] = json.loads((GOLDEN / name).read_text())
    return golden


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.glob("toy_*.json")))
def test_golden_aggregates(name: str, tmp_path: Path) -> None:
    golden = load(name)
    summary, want = summarize(Run(golden_run(tmp_path / "run", golden))), golden["aggregates"]
    for metric in ("queue_delay", "ttft", "tpot", "e2e"):
        found = {p: summary[f"{metric}_ms"][p] / 1000 for p in want[metric]}
        assert found == pytest.approx(want[metric], abs=6e-7), metric
    renamed = {"token_throughput": "token_throughput_tps", "slo_pass": "slo_met"}
    plain = {key: value for key, value in want.items() if not isinstance(value, dict)}
    assert {key: summary[renamed.get(key, key)] for key in plain} == pytest.approx(plain, abs=6e-7)


@pytest.mark.parametrize("name", ["toy_busy_chunked.json", "toy_overload_static.json"])
def test_idle_ticks_may_be_missing(name: str, tmp_path: Path) -> None:
    """A served run has no rows for idle ticks; its figures are those of the full table."""
    golden = load(name)
    busy = [t for t in golden["ticks"] if t["queue"] or t["prefill"] or t["ready"] or t["emitted"]]
    full = summarize(Run(golden_run(tmp_path / "full", golden)))
    assert summarize(Run(golden_run(tmp_path / "busy", golden, busy))) == full


def test_utilization_of_the_toy_by_hand(tmp_path: Path) -> None:
    """64 output and 127 prompt tokens; 26 ticks of 3 slots, 24 prompt tokens and 72 cached tokens."""
    golden = load("toy_busy_continuous.json")
    summary = summarize(Run(golden_run(tmp_path / "run", golden)))
    output = sum(int(r["output_tokens"]) for r in LENGTHS.values())
    prompt = sum(int(r["prompt_tokens"]) for r in LENGTHS.values())
    assert summary["batch_utilization"] == summary["utilization"]["decode"] == pytest.approx(output / 78)
    assert summary["utilization"]["prefill"] == pytest.approx(prompt / (26 * 24))
    cached = sum(tick["kv_cached"] for tick in golden["ticks"])
    assert summary["utilization"]["kv"] == pytest.approx(cached / (26 * 72))


def test_prefill_in_a_decode_slot_advances_under_chunked(tmp_path: Path) -> None:
    """Two slots: one request in prefill in ticks 0 and 1, emitting in 2 and 3: one sequence in each tick."""
    ticks = Ticks(prefill_start=0, prefill_end=2, first_token=2, last_token=3)
    row = RequestRow(
        id="A", prompt_tokens=16, output_tokens=2, arrival_ns=0, outcome="completed", ticks=ticks
    )
    row.last_token_ns = row.end_ns = 3 * TICK
    table = [
        TickRow(tick=k, queue=0, prefill=int(k < 1), ready=1, emitted=int(k > 1), kv_reserved=18, kv_cached=8)
        for k in range(4)
    ]
    config = RunConfig(policy="chunked", hardware=Hardware(decode_slots=2))
    summary = summarize(Run(write_run(tmp_path / "run", [row], config, ticks=table)))
    assert summary["batch_utilization"] == 0.5
    assert summary["utilization"]["decode"] == 0.25


def test_prefill_beyond_the_free_slots_does_not_advance(tmp_path: Path) -> None:
    """Three in prefill beside one that emits, on three slots: three advance, never four."""
    rows = [
        RequestRow(id=name, prompt_tokens=8, output_tokens=1, arrival_ns=0, ticks=Ticks(prefill_start=0))
        for name in "ABC"
    ]
    table = [TickRow(tick=0, queue=1, prefill=3, ready=1, emitted=1, kv_reserved=40, kv_cached=30)]
    config = RunConfig(policy="chunked", hardware=Hardware())
    summary = summarize(Run(write_run(tmp_path / "run", rows, config, ticks=table)))
    assert summary["batch_utilization"] == 1.0
    assert summary["head_of_line"]["ticks"] == 0


def test_the_kv_peak_is_that_of_the_window(tmp_path: Path) -> None:
    """Tick 2 fires at T_obs and counts; tick 3 is beyond it."""
    row = RequestRow(id="A", prompt_tokens=8, output_tokens=1, arrival_ns=0, outcome="completed")
    row.last_token_ns = row.end_ns = 3 * TICK
    table = [
        TickRow(tick=k, queue=0, prefill=0, ready=1, emitted=1, kv_reserved=60, kv_cached=10 * (k + 1))
        for k in range(4)
    ]
    config = RunConfig(hardware=Hardware(kv_mb_per_token=0.3), tail_s=0.2)
    summary = summarize(Run(write_run(tmp_path / "run", [row], config, ticks=table)))
    assert (summary["kv_peak_tokens"], summary["kv_peak_mb"]) == (30, 9.0)


def test_head_of_line_names_who_waited_at_the_head(tmp_path: Path) -> None:
    """A is admitted in tick 0; B and C wait behind it for ticks 0 to 2 while a slot is idle."""
    starts = {"A": (0, 0), "B": (3, 10), "C": (3, 20)}
    rows = [
        RequestRow(
            id=name,
            prompt_tokens=4,
            output_tokens=4,
            arrival_ns=arrival,
            end_ns=S,
            last_token_ns=S,
            outcome="completed",
            ticks=Ticks(prefill_start=start, prefill_end=start + 1),
        )
        for name, (start, arrival) in starts.items()
    ]
    table = [
        TickRow(tick=k, queue=2 * (k < 3), prefill=0, ready=1, emitted=2, kv_reserved=0, kv_cached=0)
        for k in range(6)
    ]
    summary = summarize(Run(write_run(tmp_path / "run", rows, RunConfig(hardware=Hardware()), ticks=table)))
    assert summary["head_of_line"] == {"ticks": 3, "share": 0.5, "heads": {"B": 3}}


# Measured rows


def measured(name: str, arrival_ms: float, end_ms: float | None, **fields: Any) -> RequestRow:
    """A request with 3 tokens, the first after 50 ms, sent when it should be."""
    arrival = round(arrival_ms * MS)
    end = None if end_ms is None else round(end_ms * MS)
    known: dict[str, Any] = {
        "id": name,
        "prompt_tokens": 4,
        "output_tokens": 3,
        "arrival_ns": arrival,
        "sent_ns": arrival,
        "first_token_ns": arrival + 50 * MS,
        "last_token_ns": end,
        "end_ns": end,
        "tokens": 3,
        "events": 3,
        "streamed": True,
        "outcome": "completed",
    }
    return RequestRow(**known | fields)


def failed(name: str, arrival_ms: float, end_ms: float, outcome: str = "http_error") -> RequestRow:
    return measured(
        name, arrival_ms, end_ms, outcome=outcome, first_token_ns=None, last_token_ns=None, tokens=0
    )


def summary_of(path: Path, rows: list[RequestRow], **config: Any) -> dict[str, Any]:
    return summarize(Run(write_run(path / "run", rows, RunConfig(**config), kind="measured")))


def summary_with_loop_lag(path: Path, rows: list[RequestRow], *lags_ms: int) -> dict[str, Any]:
    """The same with health samples, a second each, or as long as the loop was late."""
    writer = RunWriter(path / "run", RunInfo(kind="measured", config=RunConfig(), ledger=LedgerInfo("test")))
    for row in rows:
        writer.add(row)
    t_ns = 0
    for lag_ms in lags_ms:
        t_ns += max(1_000, lag_ms) * MS
        writer.add_health(HealthSample(t_ns=t_ns, loop_lag_max_ns=lag_ms * MS))
    writer.close(complete=True)
    return summarize(Run(path / "run"))


def test_the_fields_of_the_contract(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, [measured("A", 0, 100)])
    contract = (
        "window_s scheduled completed failed rejected cancelled unfinished not_sent censored queue_delay_ms "
        "send_lag_ms ttft_ms ttft_from_send_ms tpot_ms itl_ms e2e_ms kaplan_meier throughput_rps "
        "token_throughput_tps goodput_rps attainment attainment_completed concurrency_mean concurrency_peak "
        "kv_peak_tokens kv_peak_mb batch_utilization utilization littles_law by_class by_outcome client"
    )
    assert set(contract.split()) <= set(summary)
    assert set(summary["e2e_ms"]) == FIGURES
    assert set(summary["utilization"]) == {"prefill", "decode", "kv"}


def test_goodput_counts_every_miss(tmp_path: Path) -> None:
    """Six good, one late first token, two failed, one cancelled, in 2 s: 6/2 per s, 6 of 10, 6 of 7."""
    rows = [measured(f"G{i}", i * 10, 500) for i in range(6)]
    rows += [measured("late", 0, 900, first_token_ns=300 * MS)]
    rows += [failed("F1", 0, 100), failed("F2", 0, 100, "timeout"), failed("C", 0, 100, "cancelled")]
    summary = summary_of(tmp_path, rows, slo=Slo(ttft_ms=200), tail_s=1.95)
    assert summary["window_s"] == 2.0
    assert (summary["slo_met"], summary["goodput_rps"], summary["attainment"]) == (6, 3.0, 0.6)
    assert summary["goodput_rps"] == pytest.approx(
        summary["throughput_rps"] * summary["attainment_completed"]
    )
    assert (summary["failed"], summary["cancelled"], summary["censored"]) == (2, 1, True)
    assert summary["by_outcome"] == {"completed": 7, "http_error": 1, "timeout": 1, "cancelled": 1}


def test_failures_do_not_enter_latencies(tmp_path: Path) -> None:
    """Ten good with a first token after 50 ms, ten that failed after 5 s."""
    rows = [measured(f"G{i}", 0, 100) for i in range(10)] + [failed(f"F{i}", 0, 5_000) for i in range(10)]
    summary = summary_of(tmp_path, rows)
    assert (summary["ttft_ms"]["p50"], summary["ttft_ms"]["n"]) == (50.0, 10)
    assert summary["token_throughput_tps"] == pytest.approx(30 / 5)
    assert summary["failed"] == 10


def test_nothing_completed_is_zero_throughput_and_no_latency(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, [failed("F", 0, 1_000)], slo=Slo(e2e_ms=1))
    assert (summary["throughput_rps"], summary["token_throughput_tps"], summary["goodput_rps"]) == (
        0.0,
        0.0,
        0.0,
    )
    assert (summary["attainment"], summary["attainment_completed"]) == (0.0, None)
    assert all(summary[f"{name}_ms"] is None for name in ("ttft", "tpot", "itl", "e2e", "queue_delay"))


def test_without_an_slo_goodput_is_unknown_and_not_perfect(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, [measured("A", 0, 100)])
    assert [summary[name] for name in ("goodput_rps", "slo_met", "attainment", "attainment_completed")] == [
        None
    ] * 4


def test_an_empty_window_has_no_rates(tmp_path: Path) -> None:
    """A single request, all of whose bytes came at once and at time 0."""
    row = measured("A", 0, 0, first_token_ns=0)
    summary = summary_of(tmp_path, [row], slo=Slo(e2e_ms=1))
    assert summary["completed"] == 1
    assert [summary[name] for name in ("throughput_rps", "token_throughput_tps", "goodput_rps")] == [None] * 3
    assert (summary["concurrency_mean"], summary["littles_law"]) == (None, None)
    assert summary["e2e_ms"]["max"] == 0.0


def test_no_rows_at_all(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, [])
    assert (summary["scheduled"], summary["throughput_rps"], summary["attainment"]) == (0, None, None)
    assert not summary["censored"]


def test_a_rejected_request_censors_nothing_but_its_arrival_counts(tmp_path: Path) -> None:
    rejected = RequestRow(
        id="R", prompt_tokens=99, output_tokens=9, arrival_ns=S, end_ns=S, outcome="rejected"
    )
    path = write_run(tmp_path / "run", [measured("A", 0, 100), rejected], RunConfig(tail_s=1.4))
    summary = summarize(Run(path))
    assert (summary["window_s"], summary["rejected"], summary["unfinished"]) == (2.4, 1, 0)
    assert not summary["censored"]
    assert summary["concurrency_peak"] == 1
    assert summary["kaplan_meier"]["e2e_ms"]["n"] == 1


def test_late_completion_is_unfinished_and_censors(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, [measured("A", 0, 100), measured("B", 0, 1_000.001)], tail_s=1.0)
    assert (summary["completed"], summary["unfinished"], summary["censored"]) == (1, 1, True)
    assert (summary["e2e_ms"]["p50"], summary["kaplan_meier"]["e2e_ms"]["p99"]) == (100.0, None)
    assert summary["rests_on_largest"]["e2e_ms"] == ["p50", "p90", "p95", "p99"]


def test_late_sends_are_in_ttft_and_beside_it(tmp_path: Path) -> None:
    """Sent 40 ms late, first token 10 ms after: TTFT is 50 ms; 10 ms from send."""
    summary = summary_of(tmp_path, [measured(f"R{i}", i, 100 + i, sent_ns=(40 + i) * MS) for i in range(5)])
    assert summary["ttft_ms"]["p50"] == 50.0
    assert summary["ttft_from_send_ms"]["p50"] == 10.0
    assert summary["send_lag_ms"]["p50"] == 40.0
    assert summary["client"]["client_limited"]
    assert summary["client"]["reasons"] == ["5 of 5 requests were sent more than 10 ms late"]


def test_a_server_slow_to_accept_does_not_make_the_client_the_bottleneck(tmp_path: Path) -> None:
    """Sent 40 ms late, of which the connection took 35 to open: shown as lag, but not the client's fault."""
    rows = [measured(f"R{i}", i, 100 + i, sent_ns=(40 + i) * MS, connect_ns=35 * MS) for i in range(5)]
    summary = summary_of(tmp_path, rows)
    assert summary["send_lag_ms"]["p50"] == 40.0
    assert summary["client"]["connect_wait_ms"]["p50"] == 35.0
    assert not summary["client"]["client_limited"]


def test_a_server_slow_to_take_the_body_does_not_make_the_client_the_bottleneck(tmp_path: Path) -> None:
    """The first byte leaves 1 ms late, the last one 200 ms later: that is shown as upload, and no fault."""
    rows = [
        measured(f"R{i}", i, 900, send_start_ns=(i + 1) * MS, sent_ns=(i + 201) * MS, first_token_ns=800 * MS)
        for i in range(5)
    ]
    client = summary_of(tmp_path, rows)["client"]
    assert client["upload_ms"] == {"p50": 200.0, "p99": 200.0, "max": 200.0}
    assert (client["send_lag_ms"]["max"], client["client_limited"]) == (201.0, False)
    late = [msgspec.structs.replace(row, send_start_ns=(row.send_start_ns or 0) + 10 * MS) for row in rows]
    assert summary_of(tmp_path / "late", late)["client"]["client_limited"]


def test_where_no_row_tells_of_the_upload_there_is_no_figure_for_it(tmp_path: Path) -> None:
    assert summary_of(tmp_path, [measured("A", 0, 100)])["client"]["upload_ms"] is None


@pytest.mark.parametrize(("last_ms", "limited"), [(35, False), (60, True)])
def test_a_burst_may_take_its_time_to_leave(tmp_path: Path, last_ms: int, limited: bool) -> None:
    """500 at one instant, evenly sent until `last_ms`: 10 ms and 0.05 for each are allowed, 35 in all."""
    rows = [measured(f"R{i}", 0, 900, sent_ns=last_ms * MS * i // 499) for i in range(500)]
    client = summary_of(tmp_path, rows)["client"]
    assert client["client_limited"] is limited
    if limited:
        (reason,) = client["reasons"]
        assert reason.endswith(
            "sent more than 10 ms (+0.05 ms for each that is due at the same instant) late"
        )


def test_a_burst_excuses_nobody_who_is_not_in_it(tmp_path: Path) -> None:
    """100 at one instant leave in time; 3 of the 50 after them, each alone, leave 12 ms late."""
    rows = [measured(f"R{i}", 0, 900) for i in range(100)]
    rows += [measured(f"S{i}", i, 900, sent_ns=(i + 12 * (i < 4)) * MS) for i in range(1, 51)]
    (reason,) = summary_of(tmp_path, rows)["client"]["reasons"]
    assert reason.startswith("3 of 150 requests")


def test_places_that_come_free_apart_are_no_burst(tmp_path: Path) -> None:
    """500 arrive at once, but each is let go at its own time: 12 ms late is late."""
    rows = [
        measured(f"R{i}", 0, 900, due_ns=i * MS, sent_ns=(i + 12) * MS, first_token_ns=800 * MS)
        for i in range(500)
    ]
    assert summary_of(tmp_path, rows)["client"]["client_limited"]


def test_a_closed_loop_has_no_rate_that_was_asked_for(tmp_path: Path) -> None:
    rows = [measured(f"R{i}", i * 100, i * 100 + 90) for i in range(11)]
    client = summary_of(tmp_path, rows, extra={"closed_loop": True})["client"]
    assert (client["asked_rps"], client["achieved_rps"]) == (None, pytest.approx(10))


def test_one_hiccup_does_not_make_the_client_the_bottleneck(tmp_path: Path) -> None:
    rows = [measured(f"R{i}", i * 100, i * 100 + 90) for i in range(11)]
    rows[3].sent_ns = 330 * MS
    client = summary_of(tmp_path, rows)["client"]
    assert not client["client_limited"]
    assert client["send_lag_ms"] == {"p50": 0.0, "p99": 30.0, "max": 30.0}
    assert client["asked_rps"] == client["achieved_rps"] == pytest.approx(10)


def test_client_health_comes_from_its_samples(tmp_path: Path) -> None:
    info = RunInfo(kind="measured", config=RunConfig(), ledger=LedgerInfo("test"))
    writer = RunWriter(tmp_path / "run", info)
    writer.add(measured("A", 0, 100))
    for cpu, clumped in ((0.95, 1), (0.97, 3)):
        writer.add_health(
            HealthSample(
                t_ns=1,
                loop_lag_max_ns=2 * MS,
                cpu_share=cpu,
                reads=10,
                reads_with_several_events=clumped,
            )
        )
    writer.close(complete=True)
    client = summarize(Run(tmp_path / "run"))["client"]
    assert client["reads_with_several_events_share"] == 0.2
    assert client["cpu_share_mean"] == pytest.approx(0.96)
    assert client["loop_lag_max_ms"]["max"] == 2.0
    assert client["client_limited"]


def test_itl_is_weighted_by_gaps_and_tpot_by_requests(tmp_path: Path) -> None:
    """A: 2 tokens 100 ms apart; B: 101 tokens 10 ms apart. Mean gap 1100/101, mean TPOT 55."""
    slow, fast = [0, 100 * MS], [i * 10 * MS for i in range(101)]
    rows = [
        measured(
            name,
            0,
            stamps[-1] / MS,
            first_token_ns=0,
            token_ns=stamps,
            tokens=len(stamps),
            events=len(stamps),
        )
        for name, stamps in (("A", slow), ("B", fast))
    ]
    summary = summary_of(tmp_path, rows)
    assert summary["itl_ms"]["mean"] == pytest.approx(1100 / 101)
    assert summary["itl_ms"]["n"] == 101
    assert summary["tpot_ms"]["mean"] == pytest.approx(55)


def test_a_single_token_is_not_in_tpot(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, [measured("A", 0, 100), measured("B", 0, 50, tokens=1, events=1)])
    assert (summary["tpot_ms"]["n"], summary["tpot_ms"]["max"]) == (1, 25.0)


def test_a_request_without_a_gap_has_no_itl(tmp_path: Path) -> None:
    """One event that carried all tokens: nothing is known of gaps, which is not the same as 0."""
    row = measured("A", 0, 50, tokens=16, events=1, last_token_ns=50 * MS, token_ns=[50 * MS])
    assert summary_of(tmp_path, [row])["itl_ms"] is None


def test_unknown_token_counts_make_the_token_throughput_unknown(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, [measured("A", 0, 100), measured("B", 0, 100, tokens=None)])
    assert (summary["token_throughput_tps"], summary["throughput_rps"]) == (None, 20.0)


@pytest.mark.parametrize("kind", ["measured", "simulated"])
def test_itl_comes_from_the_histograms_of_the_run(tmp_path: Path, kind: Kind) -> None:
    path = write_run(tmp_path / "run", [measured("A", 0, 100)], RunConfig(), kind=kind)
    log = IntervalLog()
    log["itl"].record_all([10 * MS, 20 * MS, 90 * MS])
    (path / "histograms.hlog").write_bytes(log.lines(0, S))
    itl = summarize(Run(path))["itl_ms"]
    assert (itl["mean"], itl["max"], itl["n"]) == (40.0, 90.0, 3)
    assert itl["p50"] == pytest.approx(20.0, rel=1e-3)


@pytest.mark.parametrize(("counted", "partial"), [(2, False), (1, True)])
def test_itl_of_fewer_requests_than_completed_says_so(tmp_path: Path, counted: int, partial: bool) -> None:
    """Histograms that were lost with a killed process are missed by their count of requests."""
    path = write_run(
        tmp_path / "run", [measured("A", 0, 100), measured("B", 0, 100)], RunConfig(), kind="measured"
    )
    log = IntervalLog()
    log["ttft"].record_all([50 * MS] * counted)
    log["itl"].record_all([25 * MS] * 2 * counted)
    (path / "histograms.hlog").write_bytes(log.lines(0, S))
    assert summarize(Run(path))["itl_partial"] is partial


def test_token_times_in_the_rows_go_before_histograms(tmp_path: Path) -> None:
    """Rows are written as they end, histograms every few seconds: after a kill only the rows have it all."""
    rows = [measured(name, 0, 100, token_ns=[50 * MS, 60 * MS, 100 * MS]) for name in "AB"]
    path = write_run(tmp_path / "run", rows, RunConfig(), kind="measured")
    log = IntervalLog()
    log["ttft"].record(50 * MS)
    log["itl"].record(7 * MS)
    (path / "histograms.hlog").write_bytes(log.lines(0, S))
    summary = summarize(Run(path))
    assert (summary["itl_ms"]["n"], summary["itl_ms"]["mean"], summary["itl_partial"]) == (4, 25.0, False)


def test_classes_add_up_to_the_whole(tmp_path: Path) -> None:
    rows = [measured(f"R{i}", i, 100 + 10 * i, class_=("short", "long")[i % 2]) for i in range(9)]
    summary = summary_of(tmp_path, rows, slo=Slo(e2e_ms=130))
    classes = summary["by_class"]
    assert list(classes) == ["long", "short"]
    for name in ("scheduled", "completed", "slo_met", "goodput_rps", "throughput_rps"):
        assert sum(c[name] for c in classes.values()) == pytest.approx(summary[name])
    assert classes["long"]["e2e_ms"]["max"] == max(100 + 9 * i for i in (1, 3, 5, 7))


# Held back, tried again


def test_waiting_under_a_cap_is_in_ttft_and_no_fault_of_the_sender(tmp_path: Path) -> None:
    """Eight arrive every 100 ms, one at a time is served for 500: held 1400 ms on average, in E2E 1900."""
    rows = [
        measured(
            f"R{i}",
            i * 100,
            (i + 1) * 500,
            due_ns=i * 500 * MS if i else None,
            sent_ns=(i * 500 + 1) * MS,
            first_token_ns=(i * 500 + 50) * MS,
        )
        for i in range(8)
    ]
    summary = summary_of(tmp_path, rows)
    assert (summary["held_ms"]["mean"], summary["held_ms"]["max"], summary["held_ms"]["n"]) == (1400, 2800, 8)
    assert (summary["e2e_ms"]["mean"], summary["ttft_ms"]["mean"]) == (1900, 1450)
    assert (summary["send_lag_ms"]["max"], summary["client"]["client_limited"]) == (1.0, False)
    assert summary["client"]["asked_rps"] == pytest.approx(10)
    assert summary["client"]["achieved_rps"] == pytest.approx(2)


def test_where_nothing_was_held_back_there_is_no_figure_for_it(tmp_path: Path) -> None:
    assert summary_of(tmp_path, [measured("A", 0, 100)])["held_ms"] is None


def test_bursts_are_seen_where_places_come_free_together(tmp_path: Path) -> None:
    """Four places, all freed at once every second: four within 100 ms, twice."""
    rows = [measured(f"R{i}", i * 125, 4_000, sent_ns=(i // 4 * 1000 + i % 4 * 33) * MS) for i in range(8)]
    assert summary_of(tmp_path, rows)["client"]["most_sent_in_100_ms"] == 4
    assert summary_of(tmp_path / "none", [])["client"]["most_sent_in_100_ms"] is None


def test_retries_are_rows_but_nobody_asked_for_them(tmp_path: Path) -> None:
    """Two planned, one of them tried three times: four attempts, two asked for, one completed."""
    rows = [failed("A", 0, 10), measured("B", 100, 200)]
    rows += [
        msgspec.structs.replace(failed(f"A~{i}", 0, 300 * i), retry_of="A", due_ns=280 * i * MS)
        for i in (1, 2)
    ]
    path = write_run(tmp_path / "run", rows, RunConfig(), kind="measured", requests=2)
    summary = summarize(Run(path))
    assert [summary[name] for name in ("scheduled", "completed", "failed", "retries", "without_row")] == [
        4,
        1,
        3,
        2,
        0,
    ]
    assert summary["client"]["asked_rps"] == pytest.approx(10)
    assert summary["concurrency_peak"] == 1


def test_an_attempt_that_was_followed_by_another_is_no_end_for_its_client(tmp_path: Path) -> None:
    """A: done at its third attempt, after 900 ms. B: given up at its second, after 500. C: at once, in 100.

    Of each there are six. So a third were seen to end in 100 ms and a third in 900, and those that failed
    after 500 are censored: S = 2/3, then less than half where two of the six that are left have ended.
    """
    rows = [failed("A", 0, 10), failed("B", 0, 20), measured("C", 0, 100)]
    later = {"A~1": failed("A~1", 0, 400), "B~1": failed("B~1", 0, 500), "A~2": measured("A~2", 0, 900)}
    later["A~2"].first_token_ns = 850 * MS
    rows += [msgspec.structs.replace(row, retry_of=id[0], due_ns=300 * MS) for id, row in later.items()]
    copies = [
        msgspec.structs.replace(row, id=f"{copy}{row.id}", retry_of=row.retry_of and f"{copy}{row.retry_of}")
        for copy in range(6)
        for row in rows
    ]
    summary = summary_of(tmp_path, copies)
    e2e, ttft = summary["kaplan_meier"]["e2e_ms"], summary["kaplan_meier"]["ttft_ms"]
    assert (e2e["n"], e2e["censored"], e2e["p50"]) == (18, 6, 900.0)
    assert (ttft["n"], ttft["p50"]) == (18, 850.0)
    assert (summary["scheduled"], summary["completed"], summary["failed"]) == (36, 12, 24)


def test_a_retry_that_was_not_sent_ends_nothing(tmp_path: Path) -> None:
    """The first attempt is the last that was: its client was still waiting when it failed."""
    waiting = RequestRow(
        id="A~1", retry_of="A", prompt_tokens=4, output_tokens=3, arrival_ns=0, outcome="not_sent"
    )
    e2e = summary_of(tmp_path, [failed("A", 0, 10), measured("B", 0, 100), waiting])["kaplan_meier"]["e2e_ms"]
    assert (e2e["n"], e2e["censored"]) == (2, 1)


def test_throughput_without_the_drain_stands_beside(tmp_path: Path) -> None:
    """Ten a second for ten seconds, each done in 50 ms, and one that takes a minute."""
    rows = [measured(f"R{i}", i * 100, i * 100 + 50) for i in range(101)] + [measured("slow", 0, 60_000)]
    summary = summary_of(tmp_path, rows)
    assert summary["throughput_rps"] == pytest.approx(102 / 60)
    assert summary["throughput_arrivals_rps"] == pytest.approx(10.0)
    assert summary["completed_by_last_arrival"] == 100
    assert (summary["arrivals_s"], summary["window_s"]) == (10.0, 60.0)
    assert summary_of(tmp_path / "burst", [measured("A", 0, 50)])["throughput_arrivals_rps"] is None


# What was delivered


def test_lengths_are_held_against_the_plan(tmp_path: Path) -> None:
    """Prompts of 4 tokens came as 4, 4, 7 and unknown; outputs of 3 as 3, 3, 1, and once by events only."""
    rows = [
        measured("A", 0, 100, usage_prompt_tokens=4, token_source="usage"),
        measured("B", 0, 100, usage_prompt_tokens=4, token_source="usage"),
        measured("C", 0, 100, usage_prompt_tokens=7, token_source="usage", tokens=1),
        measured("D", 0, 100, token_source="events", tokens=9, events=9),
        failed("F", 0, 100),
    ]
    summary = summary_of(tmp_path, rows)
    lengths = summary["lengths"]
    assert lengths["prompt"] == {
        "n": 3,
        "as_planned": 2,
        "mean_difference": 1.0,
        "min_difference": 0,
        "max_difference": 3,
    }
    assert (lengths["output"]["n"], lengths["output"]["as_planned"]) == (3, 2)
    assert (lengths["output"]["min_difference"], lengths["output"]["max_difference"]) == (-2, 0)
    assert summary["token_sources"] == {"events": 1, "usage": 3}
    assert any("how many tokens came in 1 of 4 requests" in warning for warning in summary["warnings"])


def test_lengths_of_which_nothing_is_known_are_null(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, [measured("A", 0, 100, tokens=None)])
    assert summary["lengths"] == {"prompt": None, "output": None}
    assert summary["tokens_per_event"] is summary["cached_tokens_share"] is None
    assert summary["events_sharing_a_read_share"] is None


def test_two_choices_may_deliver_twice_the_length(tmp_path: Path) -> None:
    """And an event with a token of each is no event with two tokens."""
    both = measured("A", 0, 100, tokens=6, choices=2, events=3, decode_ns=100 * MS, token_source="usage")
    summary = summary_of(tmp_path, [both])
    assert summary["lengths"]["output"]["as_planned"] == 1
    assert (summary["tokens_per_event"], summary["tpot_ms"]["max"]) == (None, 25.0)
    assert summary["choices"] == {"min": 2, "max": 2}
    assert summary_of(tmp_path / "one", [measured("A", 0, 100)])["choices"] is None


def test_totals_are_of_completed_requests_and_say_who_counted(tmp_path: Path) -> None:
    """Prompts of 4 tokens, of which the server says 7 and nothing; outputs of 3 and 5. The others failed."""
    rows = [
        measured("A", 0, 100, usage_prompt_tokens=7, class_="a"),
        measured("B", 0, 100, tokens=5, class_="b"),
        msgspec.structs.replace(failed("F", 0, 100), usage_prompt_tokens=100),
        measured("late", 0, 2_000),
    ]
    summary = summary_of(tmp_path, rows, tail_s=1)
    assert (summary["prompt_tokens"], summary["output_tokens"]) == (11, 8)
    assert summary["prompt_token_sources"] == {"ledger": 1, "usage": 1}
    assert summary["token_throughput_tps"] == 8.0
    assert [summary["by_class"][name]["prompt_tokens"] for name in "ab"] == [7, 4]
    unknown = summary_of(tmp_path / "unknown", [measured("A", 0, 100, tokens=None)])
    assert (unknown["prompt_tokens"], unknown["output_tokens"]) == (4, None)


@pytest.mark.parametrize(("cached", "warned"), [(20, False), (21, True)])
def test_prompts_from_the_cache_of_the_server_are_warned_of(
    tmp_path: Path, cached: int, warned: bool
) -> None:
    """More than a fifth of 100 prompt tokens: TTFT is not that of new prompts."""
    row = measured("A", 0, 100, prompt_tokens=100, usage_prompt_tokens=100, cached_tokens=cached)
    warnings = summary_of(tmp_path, [row])["warnings"]
    assert [warning.startswith("21% of the prompt tokens") for warning in warnings] == [True] * warned


def test_an_answer_without_a_token_that_could_be_seen_explains_its_missing_ttft(tmp_path: Path) -> None:
    """The server counted one token, but no text came. An answer that was not streamed is no such case."""
    nothing = {"first_token_ns": None, "last_token_ns": None, "events": 0, "tokens": 1}
    rows = [measured("A", 0, 100), measured("B", 0, 200, **nothing)]
    rows += [measured("C", 0, 100, **nothing, streamed=False)]
    summary = summary_of(tmp_path, rows)
    assert (summary["completed"], summary["ttft_ms"]["n"], summary["e2e_ms"]["n"]) == (3, 1, 3)
    (warning,) = summary["warnings"]
    assert warning.startswith("in 1 of 3 completed requests no token was seen")


def test_tokens_per_event_stands_beside_and_warns(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, [measured("A", 0, 100, tokens=10, events=4)])
    assert summary["tokens_per_event"] == 2.5
    assert summary["warnings"] == ["an event carried 2.50 tokens on average: ITL is by event, TPOT by token"]


def test_cached_and_reasoning_tokens_are_told_beside_and_never_added(tmp_path: Path) -> None:
    """10 tokens, 6 of them reasoning, and 3 of 4 prompt tokens from a cache."""
    row = measured("A", 0, 100, tokens=10, events=10, token_source="usage", reasoning_tokens=6)
    row.first_content_ns, row.usage_prompt_tokens, row.cached_tokens = 80 * MS, 4, 3
    summary = summary_of(tmp_path, [row])
    assert summary["token_throughput_tps"] == pytest.approx(10 / 0.1)
    assert summary["reasoning"] == {"requests": 1, "tokens": 6}
    assert (summary["ttft_ms"]["p50"], summary["ttfc_ms"]["p50"]) == (50.0, 80.0)
    assert summary["cached_tokens_share"] == 0.75


CLUMPED: dict[str, Any] = {"tokens": 128, "events": 128, "output_tokens": 128, "token_source": "usage"}


def test_clumped_streams_are_said_and_change_no_figure(tmp_path: Path) -> None:
    """64 events in one read at 400 ms and 64 at 800: 126 of 127 gaps are 0, and that is nobody's ITL."""
    stamps = [400 * MS] * 64 + [800 * MS] * 64
    row = measured("A", 0, 800, **CLUMPED, shared_reads=126, token_ns=stamps, first_token_ns=400 * MS)
    summary = summary_with_loop_lag(tmp_path, [row], 1, 1, 900)
    assert summary["events_sharing_a_read_share"] == 126 / 127
    assert (summary["itl_ms"]["p50"], summary["itl_ms"]["max"], summary["itl_ms"]["n"]) == (0.0, 400.0, 127)
    clumped, piece = summary["warnings"]
    assert clumped.startswith("clumped streams: 99%")
    assert "a proxy or the server" in clumped
    assert piece.startswith("1 of 1 streams of at least 8 events")


def test_a_client_that_reads_late_is_not_taken_for_a_proxy(tmp_path: Path) -> None:
    summary = summary_with_loop_lag(tmp_path, [measured("A", 0, 800, **CLUMPED, shared_reads=126)], 1, 40, 60)
    late, clumped = summary["warnings"]
    assert late.startswith("this client's loop was late by 40 ms and more in half of all seconds")
    assert "this client was slow to read" in clumped
    assert "proxy" not in clumped


def test_a_server_is_not_blamed_for_a_client_that_did_not_run(tmp_path: Path) -> None:
    """Stopped for 4 s: what it then read together of A says nothing of who sent it, B's stream does."""
    away = measured("A", 900, 5_500, **CLUMPED, shared_reads=126, sent_ns=900 * MS, first_token_ns=5_400 * MS)
    late = measured("B", 7_100, 7_900, **CLUMPED, shared_reads=126, sent_ns=7_100 * MS)
    lags_ms = (1, 4_008, 1, 1, 1)
    summary = summary_with_loop_lag(tmp_path / "away", [away], *lags_ms)
    assert summary["warnings"] == []
    assert summary["events_sharing_a_read_share"] == 126 / 127
    summary = summary_with_loop_lag(tmp_path / "both", [away, late], *lags_ms)
    assert summary["warnings"][1].startswith("1 of 1 streams of at least 8 events came nearly in one piece")


@pytest.mark.parametrize(
    ("lags_ms", "warned"), [((9, 9, 900), False), ((10, 10), False), ((1, 11, 12), True)]
)
def test_a_loop_late_in_half_of_all_seconds_is_warned_of(
    tmp_path: Path, lags_ms: tuple[int, ...], warned: bool
) -> None:
    """One long stall is no habit; more than 10 ms in the median second is, though no stream is clumped."""
    warnings = summary_with_loop_lag(tmp_path, [measured("A", 0, 100)], *lags_ms)["warnings"]
    assert [warning.startswith("this client's loop was late by 11 ms") for warning in warnings] == [
        True
    ] * warned


def test_usage_below_the_events_is_used_and_said(tmp_path: Path) -> None:
    """Three events with output, of which A's server counts 1, B's 3; C has two choices, D failed."""
    rows = [
        measured("A", 0, 100, tokens=1, token_source="usage"),
        measured("B", 0, 100, token_source="usage"),
        measured("C", 0, 100, tokens=2, token_source="usage", choices=2, decode_ns=50 * MS),
        measured("D", 0, 100, tokens=1, token_source="usage", outcome="truncated"),
    ]
    (warning,) = summary_of(tmp_path, rows)["warnings"]
    assert warning.startswith("in 1 request the server counted fewer tokens than events with output came")


def test_an_answer_before_the_request_was_sent_has_no_ttft_from_send(tmp_path: Path) -> None:
    """Sent from 0 to 80 ms, the first token at 50: TTFT is 50 ms, and nothing is negative."""
    early = measured("A", 0, 100, send_start_ns=0, sent_ns=80 * MS)
    summary = summary_of(tmp_path, [early, measured("B", 0, 100)])
    assert (summary["ttft_ms"]["n"], summary["ttft_ms"]["max"]) == (2, 50.0)
    assert (summary["ttft_from_send_ms"]["n"], summary["ttft_from_send_ms"]["mean"]) == (1, 50.0)
    (warning,) = summary["warnings"]
    assert warning.startswith("in 1 requests the first token came before the request was wholly sent")


def test_a_refusal_before_the_request_was_sent_has_no_time_after_the_send(tmp_path: Path) -> None:
    refusal = msgspec.structs.replace(failed("F", 0, 20), sent_ns=80 * MS)
    (failure,) = summary_of(tmp_path, [refusal])["failures"]
    assert (failure["count"], failure["after_send_p50_ms"]) == (1, None)


def test_a_fifth_of_shared_reads_is_not_yet_clumped(tmp_path: Path) -> None:
    """Of 20 gaps 4 within a read are chance, 5 are not; of fewer nothing is said."""
    rows = [measured("A", 0, 800, tokens=5, events=5, shared_reads=4)]
    assert summary_of(tmp_path / "few", rows)["warnings"] == []
    rows = [measured("A", 0, 800, tokens=21, events=21, shared_reads=4)]
    assert summary_of(tmp_path / "4", rows)["warnings"] == []
    rows[0].shared_reads = 5
    assert len(summary_of(tmp_path / "5", rows)["warnings"]) == 1


# Failures


def test_no_class_of_failures_hides_behind_many_causes(tmp_path: Path) -> None:
    """A server with a name for every other error, and one timeout: the causes told add up to all failures."""
    rows = [
        msgspec.structs.replace(
            failed(f"H{i}", 0, 10 + i), error=f"HTTP 500: number {'abcdefghij'[i // 2]}", phase="headers"
        )
        for i in range(20)
    ]
    rows += [msgspec.structs.replace(failed("T", 0, 5_000, "timeout"), error="late", phase="first_token")]
    failures = summary_of(tmp_path, rows)["failures"]
    assert sum(failure["count"] for failure in failures) == 21
    assert failures[5:] == [
        {
            "outcome": "http_error",
            "phase": None,
            "error": "5 other causes",
            "count": 10,
            "alike": 0,
            "after_send_p50_ms": 24.0,
        },
        {
            "outcome": "timeout",
            "phase": "first_token",
            "error": "late",
            "count": 1,
            "alike": 0,
            "after_send_p50_ms": 5000.0,
        },
    ]


def test_failures_that_differ_in_numbers_are_one_cause(tmp_path: Path) -> None:
    """Four prompts too long, two of them by the same length; a status is no number to leave open."""
    errors = [f"HTTP 400: {length} tokens, at most 4096" for length in (5000, 5001, 5000, 6000)]
    errors += ["HTTP 500: 5000 tokens, at most 4096", "HTTP 400: 5000 words, at most 4096"]
    rows = [msgspec.structs.replace(failed(f"F{i}", 0, 10 + i), error=e) for i, e in enumerate(errors)]
    failures = summary_of(tmp_path, rows)["failures"]
    assert [(f["error"], f["count"], f["alike"]) for f in failures] == [
        (errors[0], 4, 2),
        (errors[4], 1, 0),
        (errors[5], 1, 0),
    ]
    assert failures[0]["after_send_p50_ms"] == 11.0


def test_a_server_with_a_thousand_errors_does_not_fill_the_memory(tmp_path: Path) -> None:
    """1,100 causes that nothing is common to: all are counted, the last hundred as one."""
    names = [f"{a}{b}{c}" for a in "abcdefghijk" for b in "abcdefghij" for c in "abcdefghij"]
    rows = [msgspec.structs.replace(failed(name, 0, 10), error=name) for name in names]
    failures = summary_of(tmp_path, rows)["failures"]
    assert sum(failure["count"] for failure in failures) == 1_100
    assert (failures[0]["error"], failures[0]["count"], failures[0]["alike"]) == ("other causes", 100, 0)
    assert (failures[-1]["error"], failures[-1]["count"]) == ("996 other causes", 996)


def test_tokens_of_failed_requests_are_told_apart(tmp_path: Path) -> None:
    """5 tokens came before the connection broke: they are not in the throughput, and not lost."""
    rows = [measured("A", 0, 100), measured("B", 0, 100, outcome="truncated", tokens=5)]
    summary = summary_of(tmp_path, rows)
    assert (summary["token_throughput_tps"], summary["failed_tokens"]) == (pytest.approx(30), 5)
    assert summary_of(tmp_path / "none", rows[:1])["failed_tokens"] is None


def test_send_lag_is_that_of_every_request_sent(tmp_path: Path) -> None:
    """A late send of a request that failed then is no less late."""
    rows = [measured("A", 0, 100), msgspec.structs.replace(failed("F", 0, 100), sent_ns=40 * MS)]
    assert summary_of(tmp_path, rows)["send_lag_ms"]["max"] == 40.0


def test_what_is_not_finite_or_unknown_is_null_in_strict_json(tmp_path: Path) -> None:
    """No NaN, no infinity, whatever is missing."""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    for name, rows in {"none": [], "failed": [failed("F", 0, 0)], "at once": [measured("A", 0, 0)]}.items():
        path = write_run(tmp_path / name, rows, RunConfig(slo=Slo(e2e_ms=1)), kind="measured")
        write_summary(path)
        json.loads((path / "summary.json").read_bytes(), parse_constant=refuse)


# Files


def test_a_summary_is_rebuilt_with_the_same_bytes(tmp_path: Path) -> None:
    path = golden_run(tmp_path / "run", load("toy_head_of_line_chunked.json"))
    returned = write_summary(path)
    first = (path / "summary.json").read_bytes()
    write_summary(path)
    assert (path / "summary.json").read_bytes() == first
    assert msgspec.json.decode(first) == returned
    assert {p.name for p in path.iterdir()} == {"run.json", "requests.jsonl", "ticks.jsonl", "summary.json"}


def test_nothing_is_appended_after_a_failed_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up in a row and is freed again: the half row stays the last line, and is left out."""
    writer = RunWriter(tmp_path / "run", RunInfo(kind="measured", config=RunConfig(), ledger=LedgerInfo("x")))
    writer.add(measured("A", 0, 100))
    write, room = os.write, [10]

    def nearly_full(file: int, data: bytes) -> int:
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data[: room.pop()])

    monkeypatch.setattr(os, "write", nearly_full)
    with pytest.raises(InputError, match=r"requests\.jsonl: No space left"):
        writer.add(measured("B", 0, 100))
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"requests\.jsonl: No space left"):
        writer.add(measured("C", 0, 100))
    writer.add_health(HealthSample(t_ns=1))
    writer.close(complete=False)
    run = Run(tmp_path / "run")
    assert ([row.id for row in run.rows()], list(run.health())) == (["A"], [HealthSample(t_ns=1)])


def test_a_killed_run_has_a_summary(tmp_path: Path) -> None:
    """Four planned, two rows whole, one torn: two completed, the others unfinished, and it is censored."""
    rows = [measured("A", 0, 100), measured("B", 50, 200)]
    path = write_run(
        tmp_path / "run", rows, RunConfig(tail_s=10), kind="measured", requests=4, complete=False
    )
    with (path / "requests.jsonl").open("ab") as file:
        file.write(b'{"id":"C","prompt_tok')
    summary = write_summary(path)
    assert (summary["complete"], summary["scheduled"], summary["completed"]) == (False, 4, 2)
    assert (summary["unfinished"], summary["without_row"], summary["censored"]) == (2, 2, True)
    assert summary["window_s"] == 0.2
    assert sum(summary["by_outcome"].values()) == 4


def test_what_needs_the_times_of_lost_rows_is_not_known(tmp_path: Path) -> None:
    """Whoever was in flight at the kill left no row: no rate of all, no L, no estimate without them."""
    rows = [measured(f"R{i}", 100 * i, 100 * i + 90) for i in range(3)]
    path = write_run(tmp_path / "run", rows, RunConfig(), kind="measured", requests=4, complete=False)
    summary = summarize(Run(path))
    client = summary["client"]
    assert [client[name] for name in ("asked_rps", "achieved_rps", "most_sent_in_100_ms")] == [None] * 3
    assert (summary["concurrency_mean"], summary["concurrency_peak"]) == (None, None)
    assert summary["littles_law"] is summary["throughput_arrivals_rps"] is None
    assert summary["kaplan_meier"] == {"ttft_ms": None, "e2e_ms": None}
    assert (summary["e2e_ms"]["n"], client["send_lag_ms"]["max"]) == (3, 0.0)


outcomes_and_times = st.lists(
    st.tuples(
        st.sampled_from(OUTCOMES), st.integers(0, 2_000), st.integers(0, 2_000), st.sampled_from(["a", "b"])
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(outcomes_and_times, st.sampled_from([0, 0.5, 2.0, "drain"]), st.integers(1, 1500))
def test_identities_hold_for_any_rows(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[str, int, int, str]], tail: Any, bound_ms: int
) -> None:
    """Accounting adds up; goodput is throughput times attainment; Little's law is exact if all completed."""
    rows = [
        measured(f"R{i}", arrival, arrival + stay, outcome=outcome, class_=name)
        for i, (outcome, arrival, stay, name) in enumerate(made)
    ]
    path = tmp_path_factory.mktemp("identities")
    summary = summary_of(path, rows, tail_s=tail, slo=Slo(e2e_ms=bound_ms, ttft_ms=50))
    for group in (summary, *summary["by_class"].values()):
        parts = ("completed", "failed", "rejected", "cancelled", "unfinished", "not_sent")
        assert group["scheduled"] == sum(group[part] for part in parts)
        if group["goodput_rps"] is not None and group["completed"]:
            assert group["goodput_rps"] == pytest.approx(
                group["throughput_rps"] * group["attainment_completed"]
            )
    assert summary["scheduled"] == len(rows) == sum(summary["by_outcome"].values())
    law, in_flight = summary["littles_law"], summary["scheduled"] - summary["rejected"] - summary["not_sent"]
    if law and in_flight and summary["completed"] == in_flight:
        assert law["concurrency_mean"] == pytest.approx(law["product"])


# Memory


def answered(number: int) -> RequestRow:
    arrival = number * MS
    return RequestRow(
        id=f"R{number:07}", class_="short", prompt_tokens=number % 2000 + 1, output_tokens=9, tokens=9,
        arrival_ns=arrival, send_start_ns=arrival + 70_000, sent_ns=arrival + 90_000 + number % 997,
        first_token_ns=arrival + 30 * MS + number % 9973, first_content_ns=arrival + 30 * MS + number % 9973,
        last_token_ns=arrival + 4 * S + number % 99991, end_ns=arrival + 5 * S, usage_prompt_tokens=7,
        token_source="usage", events=9, shared_reads=0, streamed=True, outcome="completed",
    )  # fmt: skip


def refused_at_once(number: int) -> RequestRow:
    return RequestRow(
        id=f"R{number:07}", prompt_tokens=9, output_tokens=9, arrival_ns=number * MS, phase="connect",
        end_ns=number * MS + 90_000 + number % 997, outcome="connect_error", error="Connection refused",
    )  # fmt: skip


def admitted_alone(number: int) -> RequestRow:
    """One that is admitted in a tick of its own, which is the most that there is to remember of ticks."""
    ticks = Ticks(number, number + 40, number + 43, number + 44, number + 60)
    made = {name: tick * TICK for name, tick in msgspec.structs.asdict(ticks).items() if tick is not None}
    return RequestRow(
        id=f"R{number:07}", prompt_tokens=9, output_tokens=9, arrival_ns=number * TICK, ticks=ticks, tokens=9,
        received_ns=number * TICK, prefill_start_ns=made["prefill_start"], prefill_end_ns=made["prefill_end"],
        first_token_ns=made["first_token"], last_token_ns=made["last_token"], end_ns=made["last_token"],
        events=9, outcome="completed",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "row_of"), [("measured", answered), ("measured", refused_at_once), ("simulated", admitted_alone)]
)
def test_a_long_run_takes_few_bytes_per_request(
    tmp_path: Path, kind: Kind, row_of: Callable[[int], RequestRow]
) -> None:
    """8 for each figure, and 40 for those that are just being sorted; as a row one takes 550 and more."""
    hardware = Hardware() if kind == "simulated" else None
    config = RunConfig(hardware=hardware, policy="chunked", slo=Slo(e2e_ms=4000))

    def summed_up(count: int) -> None:
        ticks = [TickRow(tick=0, queue=1, prefill=0, ready=0, emitted=0, kv_reserved=0, kv_cached=0)]
        path = tmp_path / str(count)
        write_run(path, map(row_of, range(count)), config, kind=kind, ticks=ticks if hardware else ())
        assert summarize(Run(path))["scheduled"] == count

    assert bytes_each(summed_up, 3_000, 12_000) < 200
