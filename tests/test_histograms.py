"""Histograms lose nothing, agree with exact percentiles to 3 digits, and their log survives a kill."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from pathlib import Path

import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader
from hypothesis import given
from hypothesis import strategies as st

from ledgers.distributions import nearest_rank
from ledgers.errors import InputError
from ledgers.histograms import HIGHEST_NS, Histogram, IntervalLog, read_log

durations = st.lists(st.integers(0, HIGHEST_NS), min_size=1, max_size=200)


def histogram_of(values: list[int]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    return histogram


@given(durations, st.sampled_from([0, 0.5, 1, 50, 90, 95, 99, 99.9, 100]))
def test_percentiles_are_nearest_rank_to_a_thousandth(values: list[int], p: float) -> None:
    exact = nearest_rank(sorted(values), p)
    found = histogram_of(values).percentile(p)
    assert found is not None
    assert exact <= found <= exact * 1.001


@given(durations)
def test_buckets_are_those_of_the_library(values: list[int]) -> None:
    """What any HdrHistogram reader decodes is what the library itself would have recorded."""
    reference = HdrHistogram(1, HIGHEST_NS, 3)
    for value in values:
        assert reference.record_value(value)
    decoded = HdrHistogram.decode(histogram_of(values).encode())
    assert list(decoded.counts) == list(reference.counts)
    assert decoded.get_total_count() == len(values)


def test_smaller_values_later_do_not_cut_off_larger_ones() -> None:
    histogram = histogram_of([10**9])
    assert histogram.n == 1
    histogram.record(5)
    decoded = HdrHistogram.decode(histogram.encode())
    assert (decoded.get_total_count(), decoded.get_value_at_percentile(100)) == (
        2,
        pytest.approx(10**9, rel=1e-3),
    )


@given(durations, durations)
def test_merging_is_recording_all(ours: list[int], theirs: list[int]) -> None:
    merged = histogram_of(ours)
    merged.merge(histogram_of(theirs))
    whole = histogram_of(ours + theirs)
    assert merged.distribution() == whole.distribution()
    assert (merged.n, merged.sum_ns, merged.min_ns) == (whole.n, whole.sum_ns, whole.min_ns)
    assert merged.encode() == whole.encode()


def test_out_of_range_is_clamped_and_counted_and_the_extremes_stay_exact() -> None:
    histogram = histogram_of([-5, 1_000_000, HIGHEST_NS + 7])
    assert (histogram.n, histogram.clamped) == (3, 2)
    assert (histogram.min_ns, histogram.max_ns) == (-5, HIGHEST_NS + 7)
    assert histogram.sum_ns == 1_000_000 + HIGHEST_NS + 2
    assert histogram.percentile(100) == pytest.approx(HIGHEST_NS, rel=1e-3)


def test_the_maximum_is_a_value_and_not_the_edge_of_its_bucket() -> None:
    histogram = histogram_of([1, 123_456_789])
    assert histogram.percentile(99) == histogram.max_ns == 123_456_789


def test_empty_is_none_and_never_zero() -> None:
    histogram = Histogram()
    assert histogram.percentile(50) is None
    assert histogram.distribution() is None
    assert (histogram.n, histogram.min_ns, histogram.max_ns) == (0, None, None)


def test_zero_gaps_count() -> None:
    """Two events in one read are 0 ns apart."""
    histogram = histogram_of([0, 0, 10])
    assert (histogram.n, histogram.clamped, histogram.percentile(50)) == (3, 0, 0)


@pytest.mark.parametrize("p", [-1, 100.1, 101])
def test_percentiles_outside_0_to_100_are_refused(p: float) -> None:
    with pytest.raises(ValueError, match="not between 0 and 100"):
        histogram_of([1]).percentile(p)


def test_the_argument_is_percent() -> None:
    """On 1 to 1000, 0.5 % is the fifth value; a fraction passed by mistake does not give the median."""
    assert histogram_of(list(range(1, 1_001))).percentile(0.5) == 5


@pytest.mark.parametrize("value", [0.25, float("nan")])
def test_seconds_as_floats_are_refused(value: float) -> None:
    with pytest.raises(TypeError):
        Histogram().record(value)  # type: ignore[arg-type]


def test_counts_beyond_32_bits_survive_the_round_trip(tmp_path: Path) -> None:
    histogram = histogram_of([5])
    for _ in range(33):
        histogram.merge(histogram)
    log = IntervalLog()
    log["itl"].merge(histogram)
    (tmp_path / "log").write_bytes(log.lines(0, 1))
    back = read_log(tmp_path / "log")["itl"]
    assert (back.n, back.sum_ns, back.percentile(99.99)) == (2**33, 5 * 2**33, 5)


@given(st.lists(durations, min_size=1, max_size=4))
def test_a_log_reads_back_as_all_of_its_intervals(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[int]]
) -> None:
    path = tmp_path_factory.mktemp("hlog") / "histograms.hlog"
    log = IntervalLog(1_700_000_000_123_000_000)
    with path.open("ab") as file:
        for second, values in enumerate(parts):
            for value in values:
                log.record("itl", value)
            log.record("e2e", second)
            file.write(log.lines(second * 10**9, (second + 1) * 10**9))
    back, whole = read_log(path), histogram_of([value for part in parts for value in part])
    assert back["itl"].distribution() == whole.distribution()
    assert back["itl"].sum_ns == whole.sum_ns
    assert back["e2e"].n == len(parts)
    assert set(back) == {"itl", "e2e"}


def test_other_readers_open_the_log(tmp_path: Path) -> None:
    """The library's own reader finds every interval, its tag, its values and its place in time."""
    path = tmp_path / "histograms.hlog"
    log = IntervalLog(1_700_000_000_000_000_000)
    log["ttft"].record_all([1_000_000, 2_000_000])
    log.record("itl", 30_000_000)
    first = log.lines(0, 10**9)
    log.record("itl", 40_000_000)
    path.write_bytes(first + log.lines(10**9, 2 * 10**9))
    reader = HistogramLogReader(str(path), HdrHistogram(1, HIGHEST_NS, 3))
    seen = []
    while interval := reader.get_next_interval_histogram():
        seen.append((interval.get_tag(), interval.get_total_count(), interval.get_start_time_stamp()))
    reader.close()
    start_ms = 1_700_000_000_000.0
    assert seen == [("ttft", 2, start_ms), ("itl", 1, start_ms), ("itl", 1, start_ms + 1_000)]


def test_clamped_and_exact_figures_travel_with_the_log(tmp_path: Path) -> None:
    path = tmp_path / "histograms.hlog"
    log = IntervalLog()
    log["send_lag"].record_all([-5, HIGHEST_NS + 7])
    path.write_bytes(log.lines(0, 10**9))
    back = read_log(path)["send_lag"]
    assert (back.n, back.clamped, back.min_ns, back.max_ns) == (2, 2, -5, HIGHEST_NS + 7)


def test_a_log_cut_anywhere_keeps_the_whole_intervals(tmp_path: Path) -> None:
    """A kill in the middle of a write costs that interval, and no other."""
    path = tmp_path / "histograms.hlog"
    log = IntervalLog()
    log.record("itl", 1_000)
    kept = log.lines(0, 10**9)
    log.record("itl", 9_000)
    whole = kept + log.lines(10**9, 2 * 10**9)
    for size in range(len(kept), len(whole)):
        path.write_bytes(whole[:size])
        assert read_log(path)["itl"].max_ns == 1_000


def test_no_log_is_no_histograms(tmp_path: Path) -> None:
    assert read_log(tmp_path / "histograms.hlog") == {}


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (b"garbage\n", "line 8: neither a comment nor an interval"),
        (b"Tag=itl,1.0,1.0,0.001,HISTabc=\n", "line 8: no exact figures"),
        (
            b"#[Exact itl n=1 sum_ns=1 min_ns=1 max_ns=1 clamped=0]\nTag=itl,1.0,1.0,0.1,HISTFAAAAEV4\n",
            "line 9: ",
        ),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, damage: bytes, reason: str) -> None:
    path = tmp_path / "histograms.hlog"
    log = IntervalLog()
    log.record("itl", 1_000)
    path.write_bytes(log.lines(0, 10**9) + damage)
    with pytest.raises(InputError, match=reason):
        read_log(path)


def test_memory_does_not_grow_with_the_number_of_gaps() -> None:
    """300,000 gaps, one by one and in lists: as bytes they would be 2.4 MB, and less than 0.5 MB is added."""
    histogram = histogram_of([1, HIGHEST_NS])
    assert histogram.n == 2
    tracemalloc.start()
    try:
        for gap in range(100_000):
            histogram.record(gap * 10_007)
        for start in range(0, 200_000, 500):
            histogram.record_all(range(start, start + 500))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert histogram.n == 300_002
    assert peak < 500_000


def test_a_histogram_that_nobody_needs_is_gone_at_once() -> None:
    """Each holds 300 kB; while a run searches for no garbage, a cycle would keep all of them."""
    histogram = Histogram()
    histogram.record_all([1, 2, 3])
    histogram.encode()
    gone = weakref.ref(histogram._buckets)
    gc.disable()
    try:
        del histogram
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("counts", [{}, {5: 3}, {0: 2, 20_000_000: 400, 10**16: 1, -4: 2, 123_456_789: 7}])
def test_counted_values_are_as_recorded_one_by_one(counts: dict[int, int]) -> None:
    """To the byte, out of range or not, beside values that were recorded before."""
    counted, recorded = Histogram(), Histogram()
    for histogram in (counted, recorded):
        histogram.record_all([7, 20_000_000])
    counted.record_counts(counts)
    for value, count in counts.items():
        recorded.record_all([value] * count)
    assert counted.exact_figures("itl") == recorded.exact_figures("itl")
    assert counted.encode() == recorded.encode()
