"""`tokentick trace describe`: exact figures of any trace, and not a word less than what is wrong with it."""

from __future__ import annotations

import csv
import json
import math
import os
import random
import statistics
import subprocess
import threading
from collections.abc import Callable
from datetime import datetime
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgers.demand import Demand, demand
from ledgers.describer import Describer
from ledgers.description import Arrivals, lengths
from ledgers.distributions import nearest_rank
from ledgers.errors import InputError
from ledgers.formats.fields import Skipped, TraceRow
from ledgers.intake import Clock, Intake
from ledgers.load import load_ledger
from ledgers.rows import encode
from ledgers.settings import HARDWARE, Hardware
from ledgers.trace_cli import describe_trace
from tests.conftest import COMMAND, tokentick

TRACES = Path(__file__).parent / "data" / "traces"
AZURE_300 = TRACES / "azure_2023_conv.head300.csv"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
NATIVE = "arrival_s,prompt_tokens,output_tokens\n"
S = 1_000_000_000
KEYS = {
    *("format", "requests", "prompt_tokens", "output_tokens", "duration_s", "mean_rate_rps", "cv"),
    *("prompt_percentiles", "output_percentiles", "sessions", "prefix_reuse", "skipped"),
    *("first_time", "last_time", "out_of_order", "clock_resets", "notes"),
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str | bytes], str]:
    def write_file(content: str | bytes) -> str:
        path = tmp_path / "trace"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write_file


def described(source: str, **options: Any) -> dict[str, Any]:
    """As the JSON object that a user gets."""
    done = tokentick("trace", "describe", source, "--json", *_flags(options), cwd=Path.cwd())
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    found: dict[str, Any] = json.loads(done.stdout, parse_constant=pytest.fail)
    return found


def _flags(options: dict[str, Any]) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def test_figures_of_four_requests_by_hand(write: Callable[[str], str]) -> None:
    """Gaps of 1, 1 and 4 s: mean 2, variance (1 + 1 + 4)/3 = 2, so that the CV is sqrt(2)/2."""
    found = described(write(NATIVE + "10,100,1\n11,200,2\n12,200,3\n16,500,4\n"))
    assert set(found) == KEYS
    figures = {"format": "native", "requests": 4, "prompt_tokens": 1000, "output_tokens": 10}
    assert {key: found[key] for key in figures} == figures
    assert (found["duration_s"], found["mean_rate_rps"]) == (6, 0.5)
    assert found["cv"] == pytest.approx(math.sqrt(2) / 2)
    assert found["prompt_percentiles"] == {
        **{"mean": 250, "min": 100, "p50": 200, "p90": 500, "p95": 500, "p99": 500},
        **{"max": 500, "n": 4},
    }
    assert found["output_percentiles"]["p50"] == 2
    assert (found["first_time"], found["last_time"]) == (10, 16)
    assert (found["sessions"], found["prefix_reuse"]) == (None, None)
    assert (found["out_of_order"], found["clock_resets"], found["skipped"], found["notes"]) == (0, 0, {}, [])


def test_a_real_trace_has_the_figures_that_other_code_finds() -> None:
    """The first 300 rows of Azure's conversations, by csv, datetime and statistics."""
    with AZURE_300.open(newline="") as file:
        rows = list(csv.DictReader(file))
    times = [
        Fraction(int(datetime.fromisoformat(f"{row['TIMESTAMP'][:19]}+00:00").timestamp()))
        + Fraction(row["TIMESTAMP"][19:])
        for row in rows
    ]
    gaps = [float(b - a) for a, b in pairwise(times)]
    prompts = sorted(int(row["ContextTokens"]) for row in rows)
    found = described(str(AZURE_300))
    assert found["requests"] == 300
    assert found["prompt_tokens"] == sum(prompts)
    assert found["output_tokens"] == sum(int(row["GeneratedTokens"]) for row in rows)
    assert found["duration_s"] == float(times[-1] - times[0])
    assert found["mean_rate_rps"] == pytest.approx(299 / float(times[-1] - times[0]))
    assert found["cv"] == pytest.approx(statistics.pstdev(gaps) / statistics.mean(gaps))
    assert [found["prompt_percentiles"][p] for p in ("p50", "p99")] == [prompts[149], prompts[296]]
    assert found["first_time"] == "2023-11-16T18:15:46.68059Z"


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9), st.integers(1, 300)), min_size=1, max_size=60),
    st.booleans(),
)
def test_figures_are_those_of_all_values_sorted(records: list[tuple[int, int, int]], in_order: bool) -> None:
    """Whether or not rows come in order."""
    if in_order:
        records.sort()
    rows = [
        TraceRow(line=i, time_ns=time, prompt_tokens=prompt, output_tokens=output)
        for i, (time, prompt, output) in enumerate(records, 2)
    ]
    intake, trace = Intake("trace", rows, strict=True), Describer()
    times = [time for time, _, _ in records]
    for _, row in intake:
        trace.add(row)
    trace.finish()
    found = trace.description("native", intake)
    outputs = sorted(output for _, _, output in records)
    assert found.output_percentiles is not None
    for percent in (50, 90, 95, 99, 100):
        name = "max" if percent == 100 else f"p{percent}"
        assert getattr(found.output_percentiles, name) == nearest_rank(outputs, percent)
    assert found.output_percentiles.mean == pytest.approx(statistics.mean(outputs))
    times.sort()
    gaps = [b - a for a, b in pairwise(times)]
    if len(gaps) > 1 and any(gaps):
        assert found.cv == pytest.approx(statistics.pstdev(gaps) / statistics.mean(gaps))
    else:
        assert found.cv is None
    if times[-1] > times[0]:
        places = [min(59, (time - times[0]) * 60 // (times[-1] - times[0])) for time in times]
        assert trace.arrivals.over_time() == [places.count(place) for place in range(60)]
    for window in (1, 7, 100):
        most = max(sum(begin <= time < begin + window for time in times) for begin in times)
        assert trace.arrivals.busiest_rate(window / S) == pytest.approx(most * S / window)


# --- traps


@pytest.mark.parametrize("tail", ["", "\n", "\n\n\n"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_marks_line_ends_and_blank_lines_change_nothing(
    write: Callable[[str], str], mark: str, newline: str, tail: str
) -> None:
    """A byte order mark, CRLF, blank lines, no newline at the end."""
    text = mark + AZURE + "2023-11-16 18:00:00.0000001,5,1\n\n2023-11-16 18:00:02.0000001,7,1" + tail
    found, _ = describe_trace(write(text.replace("\n", newline)))
    assert (found.requests, found.prompt_tokens, found.mean_rate_rps) == (2, 12, 0.5)
    assert found.last_time == "2023-11-16T18:00:02.0000001Z"


def test_times_of_several_zones_are_one_clock(write: Callable[[str], str]) -> None:
    """19:00 in Berlin in winter is 18:00 UTC; every digit of the fraction stays."""
    rows = "2023-11-16 18:00:00.1234567,5,1\n2023-11-16 19:00:00.123456789+01:00,5,1\n"
    found, _ = describe_trace(write(AZURE + rows))
    assert (found.first_time, found.last_time) == (
        "2023-11-16T18:00:00.1234567Z",
        "2023-11-16T18:00:00.123456789Z",
    )
    assert found.duration_s == 89e-9


def test_units_are_the_formats_own(write: Callable[[str], str]) -> None:
    """Mooncake's timestamps are milliseconds, native's arrivals are seconds."""
    mooncake = '{"timestamp": 1500, "input_length": 5, "output_length": 1}\n'
    found = described(write(mooncake + mooncake.replace("1500", "3500.25")))
    assert (found["first_time"], found["last_time"], found["duration_s"]) == (1.5, 3.50025, 2.00025)
    assert described(write(NATIVE + "1500,5,1\n3500,5,1\n"))["duration_s"] == 2000


def test_all_digits_of_a_long_time_stay(write: Callable[[str], str]) -> None:
    """19-digit nanoseconds, and fractions of a nanosecond. Seconds are no date, however many they are."""
    source = write(NATIVE + "1700000000.000000001,5,1\n1700000000.0000000015,5,1\n")
    found, _ = describe_trace(source)
    assert [encode(time) for time in (found.first_time, found.last_time)] == [
        b"1700000000.000000001",
        b"1700000000.0000000015",
    ]
    assert found.duration_s == 5e-10


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (
            "1969-12-31 23:59:59.5",
            "1970-01-01 00:00:00",
            ("1969-12-31T23:59:59.5Z", "1970-01-01T00:00:00Z"),
        ),
        (
            "0999-01-02 00:00:00",
            "9999-12-31 23:59:59.999999999",
            ("0999-01-02T00:00:00Z", "9999-12-31T23:59:59.999999999Z"),
        ),
    ],
)
def test_a_date_is_a_date_whatever_year_it_is_in(
    write: Callable[[str], str], first: str, last: str, expected: tuple[str, str]
) -> None:
    found = described(write(AZURE + f"{first},5,1\n{last},5,1\n"))
    assert (found["first_time"], found["last_time"]) == expected


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (NATIVE + "0,5,1\n253402300800,5,1\n", "arrival_s is '253402300800'"),
        (NATIVE + "0,5,1\n1e18,5,1\n", "arrival_s is '1e18'"),
        (AZURE + "2023-11-16 18:00:00,5,1\n9999-12-31 23:00:00-01:00,5,1\n", "TIMESTAMP is '9999"),
        (
            '{"timestamp": 5, "input_length": 5, "output_length": 1}\n'
            '{"timestamp": 1e18, "input_length": 5, "output_length": 1}\n',
            "timestamp is '1e18'",
        ),
    ],
)
def test_a_time_that_is_too_large_is_named_by_line_and_field(
    write: Callable[[str], str], text: str, field: str
) -> None:
    source = write(text)
    head = text.partition("\n")[0]
    line = 2 if head.startswith("{") else 3
    done = tokentick("trace", "describe", source, cwd=Path.cwd())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"tokentick: {source}: line {line}: {field}")
    with pytest.raises(InputError, match=f"line {line}: "):
        load_ledger(source)


def test_what_is_skipped_is_counted_by_reason_and_in_no_figure(write: Callable[[str], str]) -> None:
    rows = (
        "2023-11-16 18:00:00,5,0\n2023-11-16 18:00:01,,3\n2023-11-16 18:00:02,4,3\n2023-11-16 18:00:03,9,\n"
    )
    found = described(write(AZURE + rows))
    assert found["skipped"] == {"no output tokens": 2, "no prompt tokens": 1}
    assert (found["requests"], found["prompt_tokens"], found["first_time"]) == (1, 4, "2023-11-16T18:00:02Z")
    assert found["notes"] == ["2 rows left out: no output tokens", "1 row left out: no prompt tokens"]


def test_a_trace_of_nothing_but_skipped_records_is_described_and_no_success(
    write: Callable[[str], str],
) -> None:
    """The exit code is that of loading it."""
    source = write(AZURE + "2023-11-16 18:00:00,5,0\n")
    done = tokentick("trace", "describe", source, "--json", "--hardware", "toy", cwd=Path.cwd())
    assert (done.returncode, done.stderr) == (2, "")
    found = json.loads(done.stdout)
    assert found["notes"] == ["no request in it", "1 row left out: no output tokens"]
    assert (found["requests"], found["skipped"]) == (0, {"no output tokens": 1})
    unknown = ("duration_s", "mean_rate_rps", "cv", "prompt_percentiles", "first_time", "hardware")
    assert [found[key] for key in unknown] == [None] * 6


def test_strict_refuses_the_first_record_that_would_be_skipped(write: Callable[[str], str]) -> None:
    source = write(AZURE + "2023-11-16 18:00:00,5,1\n2023-11-16 18:00:00,5,0\n2023-11-16 18:00:02,0,3\n")
    done = tokentick("trace", "describe", source, "--strict", cwd=Path.cwd())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"tokentick: {source}: line 3: no output tokens\n"


def test_an_unknown_format_is_one_line(write: Callable[[str], str]) -> None:
    done = tokentick("trace", "describe", write("when,in,out\n1,2,3\n"), cwd=Path.cwd())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "no known trace format" in done.stderr
    assert "its columns are when, in, out" in done.stderr


def test_rows_out_of_order_are_sorted_and_that_is_said(write: Callable[[str], str]) -> None:
    """Times 0, 3, 2, 6: gaps of 2, 1 and 3 s once they are in order."""
    found, _ = describe_trace(write(NATIVE + "0,5,1\n3,5,1\n2,5,1\n6,5,1\n"))
    assert (found.out_of_order, found.clock_resets, found.duration_s) == (1, 0, 6)
    assert found.cv == pytest.approx(statistics.pstdev([2, 1, 3]) / 2)
    assert found.notes == ["1 row out of time order (before the row above, the first on line 4): sorted"]


def test_a_row_before_the_first_is_the_first(write: Callable[[str], str]) -> None:
    found, _ = describe_trace(write(NATIVE + "5,5,1\n6,5,1\n4.5,5,1\n"))
    assert (found.duration_s, json.loads(encode(found.first_time))) == (1.5, 4.5)


def test_requests_at_one_time_are_no_rate(write: Callable[[str], str]) -> None:
    """Duplicate times are no disorder; without a span there is neither rate nor CV."""
    found, _ = describe_trace(write(NATIVE + "5,5,1\n5,5,1\n5,5,1\n"))
    assert (found.duration_s, found.mean_rate_rps, found.cv, found.out_of_order) == (0, None, None, 0)


def test_a_clock_that_starts_over_is_said_with_its_line(write: Callable[[str], str]) -> None:
    """Two runs in one file, each from 0: sorted in among each other, and loading says the same."""
    source = write(NATIVE + "0,5,1\n1,5,1\n2,5,1\n0,5,1\n1,5,1\n2,5,1\n")
    found, _ = describe_trace(source)
    assert (found.out_of_order, found.clock_resets) == (1, 1)
    assert any("clock was set back 1 time, the first on line 5" in note for note in found.notes)
    assert found.notes == [note for note in load_ledger(source).notes if "trace times" not in note]


def clock_of(times: list[int]) -> Clock:
    clock = Clock()
    for line, time in enumerate(times, 2):
        clock.see(time, line)
    return clock


def test_a_clock_set_back_by_an_hour_is_found_among_late_rows() -> None:
    """A row a second; winter time after 15 hours. Each hundredth row is late by 30 s, which is no reset."""
    times = [*range(54_000), *range(54_000 - 3600, 60_000)]
    late = [time - 30 * (i % 100 == 50) for i, time in enumerate(times)]
    clock = clock_of(late)
    assert (clock.resets, clock.first_reset_line) == (1, 54_000 + 2)
    assert clock_of(sorted(late)).resets == 0


def test_a_file_in_no_order_has_no_clock_to_set_back() -> None:
    times = list(range(2_000))
    random.Random(1).shuffle(times)
    assert clock_of(times).out_of_order > 900
    assert clock_of(times).resets == 0
    assert clock_of([3, 1, 2]).resets == 0


def test_sessions_are_counted_once(write: Callable[[str], str]) -> None:
    header = "session,turn," + NATIVE
    assert described(write(header + "a,0,0,5,1\nb,0,1,5,1\na,1,2,9,1\n"))["sessions"] == 2


def test_reuse_counts_the_tokens_of_blocks_seen_before(write: Callable[[str], str]) -> None:
    """Blocks of 512: of 1,100 tokens the third has 76. The second prompt repeats all three of the first.

    The third shares block 1, has no ids for its last 88 tokens, and so has 512 of 600 in common.
    """
    rows = [(0, 1100, [1, 2, 3]), (1000, 1100, [1, 2, 3]), (2000, 600, [1])]
    lines = [
        json.dumps({"timestamp": time, "input_length": length, "output_length": 1, "hash_ids": ids})
        for time, length, ids in rows
    ]
    assert described(write("\n".join(lines)))["prefix_reuse"] == (1100 + 512) / 2800


def test_a_shape_without_a_unit_has_a_cv_but_no_rate() -> None:
    """The toy's sixteen requests, from 0 to 4.52 of whatever it is."""
    found = described("toy", hardware="toy")
    assert (found["requests"], found["prompt_tokens"], found["output_tokens"]) == (16, 130, 63)
    assert (found["duration_s"], found["mean_rate_rps"], found["hardware"]["rho_prefill"]) == (None,) * 3
    assert (found["first_time"], found["last_time"]) == (0, 4.52)
    assert found["cv"] == pytest.approx(1.01, abs=0.01)


def test_lengths_alone_have_no_times(write: Callable[[str], str]) -> None:
    found = described(write("prompt_tokens,output_tokens\n5,1\n6,2\n"))
    assert [found[key] for key in ("duration_s", "mean_rate_rps", "cv", "first_time")] == [None] * 4
    text_of("no arrival times", write("prompt_tokens,output_tokens\n5,1\n"))


def test_a_trace_can_come_through_a_pipe(tmp_path: Path) -> None:
    """Rows out of order too, though a pipe cannot be read a second time."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(NATIVE + "3,5,1\n5,5,1\n4,5,1\n8,5,1\n"))
    writer.start()
    found = described(str(pipe))
    writer.join()
    assert (found["requests"], found["duration_s"], found["out_of_order"]) == (4, 5, 1)


def test_a_dash_is_standard_input(tmp_path: Path) -> None:
    command = [*COMMAND, "trace", "describe", "-", "--json"]
    done = subprocess.run(
        command, input=NATIVE + "3,5,1\n5,5,1\n", capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr, json.loads(done.stdout)["duration_s"]) == (0, "", 2)


def test_a_format_can_be_named(write: Callable[[str], str]) -> None:
    assert described(write(NATIVE + "3,5,1\n"), trace_format="native")["requests"] == 1
    done = tokentick("trace", "describe", str(AZURE_300), "--trace-format", "mooncake", cwd=Path.cwd())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


# --- rate over time


def test_columns_are_equal_parts_of_the_time() -> None:
    """Ten requests a second for an hour, none for the next: 1,200 in each two minutes of the first."""
    arrivals = Arrivals([*(tenth * S // 10 for tenth in range(36_000)), 7200 * S])
    assert arrivals.over_time() == [1200] * 30 + [0] * 29 + [1]
    assert arrivals.busiest_rate(60) == 10


def test_the_busiest_stretch_is_as_long_as_asked() -> None:
    """50 at once among one a second: 50 + 9 in 10 s. A window beyond all holds all."""
    seconds = [second for second in range(1000) for _ in range(50 if second == 500 else 1)]
    arrivals = Arrivals([second * S for second in seconds])
    assert arrivals.busiest_rate(10) == 5.9
    assert arrivals.busiest_rate(10_000) == 0.1049


def test_the_highest_rate_is_that_of_a_column(write: Callable[[str], str]) -> None:
    """100 s in 60 columns of 1.667 s; the fullest has 7 requests, which is 4.2 req/s."""
    rows = "".join(f"{time},5,1\n" for time in [0, *[50] * 7, 100])
    text_of("1.667 s a column, the highest 4.2 req/s", write(NATIVE + rows))


# --- hardware


def demand_of(rows: list[TraceRow], hardware: Hardware) -> Demand:
    trace = Describer()
    for row in rows:
        trace.add(row)
    trace.finish()
    found = demand(trace, hardware)
    assert found is not None
    return found


def test_demand_on_the_toy_hardware_by_hand() -> None:
    """Ticks of 0.1 s: 24 prompt tokens or 3 outputs each. 12 and 36 in, 2 and 4 out, alternately, 1 req/s.

    Prefill takes 0.05 or 0.15 s, decode 0.2 or 0.4 s: reserves of 14 for 0.25 s and 40 for 0.55 s are 12.75
    token seconds on average.
    """
    rows = [
        TraceRow(line=i, time_ns=i * S, prompt_tokens=36 if i % 2 else 12, output_tokens=4 if i % 2 else 2)
        for i in range(100)
    ]
    found = demand_of(rows, HARDWARE["toy"])
    assert found.prefill_s == pytest.approx(0.1)
    assert found.decode_s == pytest.approx(0.1)
    assert found.service_demand_s == pytest.approx(0.2)
    assert found.residence_s == pytest.approx(0.4)
    assert found.rho_prefill == pytest.approx(0.1)
    assert found.rho_decode == pytest.approx(0.1)
    assert found.kv_mean_tokens == pytest.approx(12.75)
    assert found.kv_peak_tokens == pytest.approx(12.75 / 0.4)  # one in any 0.4 s, but not in each
    # Pollaczek and Khinchine: 0.1/0.9 * (1 + 0.25)/2 * 0.1 s, for a CV of prompts of 12/24.
    assert found.prefill_wait_s == pytest.approx(0.1 / 0.9 * 1.25 / 2 * 0.1)
    assert found.too_large == 0


def test_what_the_machine_can_never_hold_is_counted() -> None:
    rows = [TraceRow(line=1, prompt_tokens=tokens, output_tokens=3) for tokens in (69, 70, 500)]
    found = demand_of(rows, HARDWARE["toy"])
    assert (found.too_large, found.rho_decode, found.kv_peak_tokens) == (2, None, None)


def test_an_overload_is_said_in_words(write: Callable[[str], str]) -> None:
    """10 req/s of 3 output tokens on 30 tokens/s: a load of just above 1."""
    rows = "".join(f"{i / 10.1},24,3\n" for i in range(200))
    _, text = text_of("decode ρ 1.01: will not keep up", write(NATIVE + rows), "--hardware", "toy")
    assert "KV need, peak" in text
    assert "prefill wait" not in text  # it has no end
    done = tokentick("trace", "describe", "toy", "--tick", "0.1", cwd=Path.cwd())
    assert (done.returncode, done.stderr) == (2, "tokentick: --tick: needs --hardware\n")


# --- in a terminal


def text_of(expected: str, source: str, *flags: str) -> tuple[list[str], str]:
    done = tokentick("trace", "describe", source, *flags, cwd=Path.cwd())
    assert (done.returncode, done.stderr) == (0, "")
    assert expected in done.stdout
    return done.stdout.splitlines(), done.stdout


@pytest.mark.parametrize("flags", [(), ("--plain",)])
def test_what_is_shown_fits_a_terminal(flags: tuple[str, ...]) -> None:
    lines, text = text_of("300 requests", str(AZURE_300), "--hardware", "medium", *flags)
    assert max(map(len, lines)) <= 80
    assert text.isascii() == bool(flags)
    picture = next(line for line in lines if line.startswith("|"))
    assert len(picture) == 62


def test_a_terminal_without_utf_8_gets_ascii() -> None:
    command = [*COMMAND, "trace", "describe", str(AZURE_300), "--hardware", "medium"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"300 requests" in done.stdout
    assert done.stdout.isascii()


def test_pictures_show_where_requests_are(write: Callable[[str], str]) -> None:
    """A burst in the last of 60 columns; three quarters of the prompts in the longest bar."""
    rows = "".join(f"{i},{700 if i % 4 else 3},1\n" for i in range(60)) + "59.9,700,1\n" * 140
    lines, _ = text_of("arrivals over time", write(NATIVE + rows), "--plain")
    picture = next(line for line in lines if line.startswith("|"))
    assert picture[-2] == "#"
    assert set(picture[1:-2]) <= set(".: ")
    bars = {line.split()[0]: line for line in lines if "%" in line}
    assert "92.5%" in bars["512-1023"]
    assert "7.5%" in bars["2-3"]
    assert bars["512-1023"].count("#") == 22


def test_notes_stand_in_the_text_too(write: Callable[[str], str]) -> None:
    rows = "2023-11-16 18:00:00,5,0\n2023-11-16 18:00:00,5,1\n"
    text_of("note: 1 row left out: no output tokens", write(AZURE + rows))


def test_skipped_records_of_a_format_have_their_own_reasons() -> None:
    intake = Intake("trace", [Skipped(2, "a tool call"), Skipped(3, "a tool call")], strict=False)
    trace = Describer()
    assert list(intake) == []
    found = trace.description("native", intake)
    assert (found.skipped, lengths(trace.prompts)) == ({"a tool call": 2}, None)
    with pytest.raises(InputError, match="trace: line 2: a tool call"):
        list(Intake("trace", [Skipped(2, "a tool call")], strict=True))
