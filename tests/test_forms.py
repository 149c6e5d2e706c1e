"""`tokentick report --format csv|vllm`: what scripts and spreadsheets read, with figures worked by hand."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from ledgers.rows import RequestRow
from ledgers.rundir import Run, RunConfig
from ledgers.settings import Slo
from ledgers.summary import summarize
from reports.forms import Shown, lines
from tests.conftest import refused, tokentick
from tests.test_summary import MS, write_run

HOSTILE = ["=1+2", "+3", "-4", "@SUM(A1)", "\tindented", '"quoted", and\ntwo lines', "λ → †", "plain"]


def row(id: str, arrival: int, sent: int, tokens: list[int], **other: Any) -> RequestRow:
    """A request that completed; times in ms."""
    return RequestRow(
        id=id,
        prompt_tokens=10,
        output_tokens=3,
        arrival_ns=arrival * MS,
        sent_ns=sent * MS,
        first_token_ns=tokens[0] * MS,
        first_content_ns=tokens[0] * MS,
        last_token_ns=tokens[-1] * MS,
        end_ns=tokens[-1] * MS,
        tokens=len(tokens),
        token_ns=[ms * MS for ms in tokens],
        **{"streamed": True, "outcome": "completed", **other},
    )


ROWS = [
    row("b", 100, 100, [300, 400, 500]),
    row("a", 0, 10, [110, 210, 310], usage_prompt_tokens=12),
    # The connection took 15 ms and the body 5: vLLM's clock starts before both, at 205.
    row("c", 200, 225, [505, 605, 905], send_start_ns=220 * MS, connect_ns=15 * MS),
    RequestRow(
        id="d",
        prompt_tokens=10,
        output_tokens=3,
        arrival_ns=300 * MS,
        sent_ns=300 * MS,
        end_ns=310 * MS,
        outcome="http_error",
        http_status=503,
        error="overloaded",
    ),
    RequestRow(  # answered in one JSON body
        id="e",
        prompt_tokens=10,
        output_tokens=4,
        arrival_ns=300 * MS,
        sent_ns=300 * MS,
        end_ns=1300 * MS,
        tokens=4,
        streamed=False,
        outcome="completed",
    ),
]
CONFIG = RunConfig(
    api="completions",
    model="org/model",
    request_rate=10.0,
    burstiness=0.5,
    slo=Slo(ttft_ms=105),
    extra={"max_concurrency": 8},
    metadata={"tp": "2"},
)


def shown(path: Path) -> Shown:
    run = Run(path)
    return Shown(run, summarize(run))


def vllm(path: Path, *, detailed: bool = False) -> dict[str, Any]:
    """The result as a strict reader gets it."""
    (line,) = lines("vllm", [shown(path)], detailed=detailed)
    found: dict[str, Any] = json.loads(line, parse_constant=pytest.fail)
    return found


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", ROWS, CONFIG, kind="measured", requests=5)


def post_processed(text: str) -> dict[str, Any]:
    """What scripts for vLLM's results do: pick fields, format them, put requests together from the arrays."""
    result = json.loads(text)
    ok = [i for i, error in enumerate(result["errors"]) if not error]
    spans = [
        (result["start_times"][i], result["ttfts"][i] + sum(result["itls"][i]))
        for i in ok
        if result["ttfts"][i]
    ]
    row = {name: result[name] for name in ("model_id", "tp", "request_rate", "num_prompts", "completed")}
    row["model"] = result["model_id"].split("/")[-1]
    row["line"] = (
        f"{result['p99_ttft_ms']:.2f} {result['mean_itl_ms']:.2f} {result['request_throughput']:.2f}"
    )
    row["tokens"] = sum(result["output_lens"][i] for i in ok) / result["total_output_tokens"]
    row["last"] = max(start + latency for start, latency in spans)
    return row


def test_a_script_for_vllm_results_reads_the_file(run: Path) -> None:
    (text,) = lines("vllm", [shown(run)], detailed=True)
    assert post_processed(text) == {
        "model_id": "org/model",
        "model": "model",
        "tp": "2",
        "request_rate": 10.0,
        "num_prompts": 5,
        "completed": 4,
        "line": "298.00 133.33 3.08",
        "tokens": 1.0,
        "last": pytest.approx(0.905),
    }


def test_the_figures_are_those_of_vllms_definitions(run: Path) -> None:
    """From the send; interpolated percentiles as numpy.percentile gives them; the deviation as numpy.std."""
    found = vllm(run)
    worked = {
        "ttft": (200.0, 200.0, 81.64966, 280.0, 290.0, 298.0),  # of 100, 200, 300
        "tpot": (133.33333, 100.0, 47.14045, 180.0, 190.0, 198.0),  # of 100, 100, 200
        "itl": (133.33333, 100.0, 74.53560, 200.0, 250.0, 290.0),  # of five times 100, and 300
        "e2el": (600.0, 550.0, 273.86128, 910.0, 955.0, 991.0),  # of 300, 400, 700, 1000
    }
    for name, figures in worked.items():
        words = ("mean", "median", "std", "p90", "p95", "p99")
        assert [found[f"{word}_{name}_ms"] for word in words] == pytest.approx(figures), name
    assert (found["completed"], found["failed"], found["duration"]) == (4, 1, 1.3)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (42, 13)
    assert found["request_throughput"] == pytest.approx(4 / 1.3)
    assert found["output_throughput"] == pytest.approx(13 / 1.3)
    assert found["total_token_throughput"] == pytest.approx(55 / 1.3)
    assert (found["burstiness"], found["max_concurrency"], found["backend"]) == (0.5, 8, "openai")
    assert found["max_concurrent_requests"] == 4
    assert found["max_output_tokens_per_s"] is None  # nobody knows when those of `e` came


def test_our_own_figures_stand_beside_vllms(run: Path) -> None:
    """`a` met its 105 ms from the send, and not from the arrival it was meant for."""
    found = vllm(run)
    assert found["request_goodput"] == pytest.approx(1 / 1.3)
    assert found["tokentick"]["goodput_rps"] == 0
    assert found["tokentick"]["ttft_ms"]["p50"] == 200
    assert found["tokentick"]["ttft_ms"]["max"] == 305


def test_the_arrays_hold_all_requests_in_order_of_their_start(run: Path) -> None:
    """In seconds; a request that failed has zeros, and says why."""
    found = vllm(run, detailed=True)
    assert found["start_times"] == pytest.approx([0.01, 0.1, 0.205, 0.3, 0.3])
    assert found["ttfts"] == pytest.approx([0.1, 0.2, 0.3, 0, 0])
    assert found["latencies"] == pytest.approx([0.3, 0.4, 0.7, 0, 1.0])
    assert found["itls"] == [
        pytest.approx([0.1, 0.1]),
        pytest.approx([0.1, 0.1]),
        pytest.approx([0.1, 0.3]),
        [],
        [],
    ]
    assert found["input_lens"] == [12, 10, 10, 10, 10]
    assert found["output_lens"] == [3, 3, 3, 0, 4]
    assert found["errors"] == ["", "", "", "http_error: overloaded", ""]
    assert "generated_texts" not in found  # they were not recorded
    assert not {"ttfts", "itls", "errors"} & set(vllm(run))


def test_texts_and_tokens_by_second_are_told_where_they_are_known(tmp_path: Path) -> None:
    """Eight tokens in the first second, one in the next."""
    rows = [
        row("a", 0, 0, [100, 200, 300, 400], text="one"),
        row("b", 0, 0, [500, 600, 700, 800, 1100], text="two"),
    ]
    found = vllm(write_run(tmp_path / "run", rows, CONFIG, kind="measured"), detailed=True)
    assert found["max_output_tokens_per_s"] == 8
    assert found["generated_texts"] == ["one", "two"]


def test_what_is_not_known_is_null(tmp_path: Path) -> None:
    """Nothing completed, cut short, no ledger: no NaN, no percentile of nothing, no infinite rate."""
    failed = [ROWS[3]]
    found = vllm(write_run(tmp_path / "run", failed, RunConfig(), kind="measured", complete=False))
    assert (found["completed"], found["failed"], found["request_throughput"]) == (0, 1, 0.0)
    names = [f"{word}_{of}_ms" for word in ("mean", "median", "std", "p99") for of in ("ttft", "e2el", "itl")]
    assert {found[name] for name in names} == {None}
    assert found["request_goodput"] is found["request_rate"] is found["burstiness"] is None
    empty = vllm(write_run(tmp_path / "empty", [], RunConfig(), complete=False), detailed=True)
    assert (empty["num_prompts"], empty["ttfts"], empty["max_concurrent_requests"]) == (0, [], 0)


def test_a_simulation_has_latencies_from_its_arrivals(tmp_path: Path) -> None:
    """There was no client. Without the times of tokens, gaps are those of the histogram."""
    assert tokentick("simulate", "toy", "--out", "run", "--quiet", cwd=tmp_path).returncode == 0
    found = vllm(tmp_path / "run", detailed=True)
    assert found["mean_ttft_ms"] == pytest.approx(found["tokentick"]["ttft_ms"]["mean"])
    assert found["mean_e2el_ms"] == pytest.approx(found["tokentick"]["e2e_ms"]["mean"])
    assert found["mean_itl_ms"] == found["tokentick"]["itl_ms"]["mean"] > 0
    assert found["std_itl_ms"] is None
    assert "itls" not in found
    assert len(found["ttfts"]) == 16
    assert found["backend"] == "tokentick-simulated"


def test_several_runs_are_a_line_each(run: Path) -> None:
    """As vLLM appends results to a file."""
    result = tokentick("report", "run", "run", "--format", "vllm", cwd=run.parent)
    first, second = result.stdout.splitlines()
    assert json.loads(first) == json.loads(second)
    assert (result.returncode, result.stderr) == (0, "")


def test_the_burstiness_of_drawn_arrivals_is_known(tmp_path: Path) -> None:
    """Poisson has 1; a trace's own times, and even ones, have none."""
    for flags, burstiness in (
        (["--arrival", "gamma", "--burstiness", "0.3"], 0.3),
        (["--arrival", "poisson"], 1.0),
        (["--arrival", "constant"], None),
        ([], None),
    ):
        out = str(tmp_path / "-".join(["run", *flags]))
        words = ("simulate", "toy", "--request-rate", "4", *flags, "--out", out, "--quiet")
        assert tokentick(*words, cwd=tmp_path).returncode == 0
        assert vllm(Path(out))["burstiness"] == burstiness


def table(found: Shown, *, detailed: bool) -> list[dict[str, str]]:
    text = "".join(f"{line}\n" for line in lines("csv", [found], detailed=detailed))
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


def test_hostile_text_is_no_formula_and_stays_in_its_cell(tmp_path: Path) -> None:
    """Quotes, commas and newlines come back; what would be a formula has an apostrophe before it."""
    rows = [row(f"{i}", i, i, [i + 5], class_=text, error=text) for i, text in enumerate(HOSTILE)]
    found = table(shown(write_run(tmp_path / "run", rows, CONFIG)), detailed=True)
    safe = [f"'{text}" for text in HOSTILE[:5]] + HOSTILE[5:]
    assert [line["class"] for line in found] == [line["error"] for line in found] == safe
    assert [line["id"] for line in found] == [f"{i}" for i in range(len(HOSTILE))]


def test_a_control_character_is_shown_and_not_sent(tmp_path: Path) -> None:
    """Whoever looks at the table in a terminal is not looked at by it."""
    rows = [row("\x1b[2J", 0, 0, [5], error="\rx")]
    (found,) = table(shown(write_run(tmp_path / "run", rows, CONFIG)), detailed=True)
    assert (found["id"], found["error"]) == (r"\x1b[2J", r"'\x0dx")


def test_times_are_exact_and_have_their_unit(run: Path) -> None:
    """Seconds to the nanosecond, durations in ms; what is not known is empty, also where it is a number."""
    found = {line["id"]: line for line in table(shown(run), detailed=True)}
    a, d, e = (found[id] for id in "ade")
    assert (a["arrival_s"], a["sent_s"], a["first_token_s"]) == ("0.000000000", "0.010000000", "0.110000000")
    assert [float(a[name]) for name in ("ttft_ms", "ttft_from_send_ms", "tpot_ms", "e2e_ms")] == [
        110,
        100,
        100,
        310,
    ]
    assert (a["slo_met"], a["streamed"], a["in_summary"]) == ("false", "true", "true")
    assert (d["outcome"], d["http_status"], d["ttft_ms"], d["e2e_ms"]) == ("http_error", "503", "", "")
    assert (e["ttft_ms"], e["e2e_ms"]) == ("", "1000.000000")


def test_without_detail_there_is_a_row_per_run(run: Path) -> None:
    """The figures of summary.json under their own names."""
    result = tokentick("report", "run", "run", "--format", "csv", cwd=run.parent)
    first, second = csv.DictReader(io.StringIO(result.stdout))
    assert first == second
    assert (first["run"], first["kind"], first["scheduled"], first["failed"]) == ("run", "measured", "5", "1")
    assert (float(first["ttft_ms.max"]), first["ttft_ms.n"]) == (305, "3")
    assert first["client.client_limited"] == "false"
    assert first["queue_delay_ms.p50"] == first["kv_peak_tokens"] == ""


def test_rows_come_while_they_are_read(tmp_path: Path) -> None:
    """A thousand at a time, and all of them in the end: a long run is never held."""
    rows = [row(f"{i}", i, i, [i + 5]) for i in range(2_001)]
    found = lines("csv", [shown(write_run(tmp_path / "run", rows, CONFIG))], detailed=True)
    parts = [part.count("\n") + 1 for part in found]
    assert sum(parts) == 2_002
    assert max(parts) == 1_000


def test_line_ends_are_those_of_unix(run: Path) -> None:
    (text,) = lines("csv", [shown(run)], detailed=True)
    assert "\r" not in text
    assert text.count("\n") == 5


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--detailed"], ["--detailed", "csv"]),
        (["--json", "--format", "csv"], ["--json", "--format csv"]),
        (["--format", "csv", "--detailed", "--json"], ["--json", "--format csv"]),
        (["--format", "csv", "--ticks"], ["--format csv", "--ticks"]),
        (["--format", "vllm", "--diagnose"], ["--format vllm", "--diagnose"]),
        (["--json", "--ticks"], ["--ticks", "ticks.jsonl"]),
        (["--diagnose", "--ticks"], ["--ticks", "--diagnose"]),
        (["--against", "run"], ["--against", "--diagnose"]),
        (["--require", "ttft.p95<=1", "--ticks"], ["--require", "--ticks"]),
    ],
)
def test_flags_that_mean_nothing_beside_one_another_are_named(
    run: Path, flags: list[str], words: list[str]
) -> None:
    refused(tokentick("report", "run", *flags, cwd=run.parent), 2, *words)


def test_a_requirement_that_is_missed_still_tells_by_the_exit_code(run: Path) -> None:
    for form in ("csv", "vllm", "markdown"):
        result = tokentick("report", "run", "--format", form, "--require", "ttft.p95<=1", cwd=run.parent)
        assert result.returncode == 1, form
