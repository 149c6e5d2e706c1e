"""Distributions too big to keep exactly: HdrHistograms, and the interval log that holds them.

Pure: `IntervalLog` makes lines, `read_log` reads a file of them. Nothing is silently dropped: what is out of
range is clamped and counted, and n, sum, min and max are exact. They stand beside each interval in a comment,
which the usual plotters of HdrHistogram logs skip.
"""

from __future__ import annotations

import re
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from weakref import proxy

from hdrh.codec import HdrCookieException, HdrLengthException
from hdrh.histogram import HdrHistogram

from ledgers.distributions import PERCENTILES, Distribution, Percent, rank
from ledgers.errors import InputError
from ledgers.units import NS_PER_MS, NS_PER_S

LOWEST_NS = 1
HIGHEST_NS = 24 * 3600 * NS_PER_S
SIGNIFICANT_DIGITS = 3
_HALF_BITS = 10  # 3 digits need 2,048 sub-buckets: half of them is 2**10
_BATCH = 1_024  # values settled at once: a client that records while it measures pauses under half a ms
_LINE = re.compile(r"Tag=([^,]+),([\d.]+),([\d.]+),([\d.]+),([A-Za-z0-9+/=]+)")
_EXACT = re.compile(r"#\[Exact (\S+) n=(\d+) sum_ns=(-?\d+) min_ns=(-?\d+) max_ns=(-?\d+) clamped=(\d+)\]")


def _buckets(values: Iterable[int]) -> Iterable[int]:
    """Where HdrHistogram's own layout counts values in range; its record_value gets there more slowly."""
    return [
        (shift << _HALF_BITS) + (value >> shift)
        if (shift := value.bit_length() - _HALF_BITS - 1) > 0
        else value
        for value in values
    ]


class Histogram:
    """Durations in ns to 3 significant digits, from 1 ns (0 is kept as 0) to 24 h."""

    def __init__(self) -> None:
        self._buckets = HdrHistogram(LOWEST_NS, HIGHEST_NS, SIGNIFICANT_DIGITS)
        # The library's cycle would keep 300 kB until the next search for garbage.
        self._buckets.encoder.histogram = proxy(self._buckets)
        self._pending = array("q")
        self._n = self._sum_ns = self._clamped = 0
        self._min_ns: int | None = None
        self._max_ns: int | None = None

    def record(self, value_ns: int) -> None:
        """Count a value. TypeError for a float: seconds in place of ns would all land on 0."""
        # This is on the hot path of a client: keep the value now, find its bucket with many others later.
        self._pending.append(value_ns)
        if len(self._pending) >= _BATCH:
            self._settle()

    def record_all(self, values_ns: Iterable[int]) -> None:
        self._pending.extend(values_ns)
        if len(self._pending) >= _BATCH:
            self._settle()

    def record_counts(self, counts: Mapping[int, int]) -> None:
        """Count each value so many times."""
        if not counts:
            return
        clamped = sum(count for value, count in counts.items() if not 0 <= value <= HIGHEST_NS)
        n, sum_ns = sum(counts.values()), sum(value * count for value, count in counts.items())
        self._count(n, sum_ns, min(counts), max(counts), clamped)
        values = [min(max(value, 0), HIGHEST_NS) for value in counts]
        for index, count in zip(_buckets(values), counts.values(), strict=True):
            self._buckets.counts[index] += count
        self._track(min(values), max(values), n)

    @property
    def n(self) -> int:
        self._settle()
        return self._n

    @property
    def sum_ns(self) -> int:
        self._settle()
        return self._sum_ns

    @property
    def clamped(self) -> int:
        """How many values were out of range and are counted at its nearest end."""
        self._settle()
        return self._clamped

    @property
    def min_ns(self) -> int | None:
        self._settle()
        return self._min_ns

    @property
    def max_ns(self) -> int | None:
        self._settle()
        return self._max_ns

    def percentile(self, percent: Percent) -> int | None:
        """The nearest-rank percentile in ns, at most 0.1 % above the exact one; None when empty.

        Raises ValueError outside 0 to 100 (the argument is in percent: 99, not 0.99).
        """
        self._settle()
        wanted = rank(percent, self._n)
        if self._min_ns is None or self._max_ns is None:
            return None
        if wanted == 1:
            return self._min_ns
        return min(self._max_ns, max(self._min_ns, self._edge_at(wanted)))

    def _edge_at(self, wanted: int) -> int:
        """The upper edge of the bucket in which the count reaches `wanted`."""
        # The library rounds its rank to the nearest integer, which is one sample off at many n.
        reached = accumulate(self._buckets.counts)
        index = next(index for index, count in enumerate(reached) if count >= wanted)
        edge: int = self._buckets.get_highest_equivalent_value(self._buckets.get_value_from_index(index))
        return edge

    def distribution(self) -> Distribution | None:
        """Mean and maximum exactly, percentiles to 3 digits, in ms; None when empty."""
        self._settle()
        if self._max_ns is None:
            return None
        p50, p90, p95, p99 = ((self.percentile(p) or 0) / NS_PER_MS for p in PERCENTILES)
        mean = self._sum_ns / (self._n * NS_PER_MS)
        return Distribution(mean, p50, p90, p95, p99, self._max_ns / NS_PER_MS, self._n)

    def merge(self, other: Histogram) -> None:
        """Add what `other` counted, of another worker or interval."""
        self._settle()
        other._settle()
        self._buckets.add(other._buckets)
        self._count(other._n, other._sum_ns, other._min_ns, other._max_ns, other._clamped)

    def _settle(self) -> None:
        """Put the values kept so far into their buckets."""
        if not (values := self._pending):
            return
        smallest, largest, clamped = min(values), max(values), 0
        if smallest < 0 or largest > HIGHEST_NS:
            clamped = sum(not 0 <= value <= HIGHEST_NS for value in values)
        self._count(len(values), sum(values), smallest, largest, clamped)
        if clamped:
            values = array("q", (min(max(value, 0), HIGHEST_NS) for value in values))
        for index, count in Counter(_buckets(values)).items():
            self._buckets.counts[index] += count
        self._track(min(values), max(values), len(values))
        self._pending = array("q")

    def _track(self, smallest: int, largest: int, n: int) -> None:
        """Keep the library's own figures right, which its encoder and its `add` go by."""
        buckets = self._buckets
        buckets.total_count += n
        buckets.min_value = min(buckets.min_value, smallest)
        buckets.max_value = max(buckets.max_value, largest)

    def _count(self, n: int, sum_ns: int, min_ns: int | None, max_ns: int | None, clamped: int) -> None:
        self._n += n
        self._sum_ns += sum_ns
        self._clamped += clamped
        self._min_ns = min((v for v in (self._min_ns, min_ns) if v is not None), default=None)
        self._max_ns = max((v for v in (self._max_ns, max_ns) if v is not None), default=None)

    def encode(self) -> str:
        """The buckets as a compressed, base64 HdrHistogram (V2)."""
        self._settle()
        encoded: bytes = self._buckets.encode()
        return encoded.decode("ascii")

    def exact_figures(self, tag: str) -> str:
        """The comment that carries what the buckets cannot."""
        self._settle()
        return (
            f"#[Exact {tag} n={self._n} sum_ns={self._sum_ns} min_ns={self._min_ns} "
            f"max_ns={self._max_ns} clamped={self._clamped}]"
        )

    @classmethod
    def decode(cls, encoded: str, exact_figures: tuple[int, int, int, int, int]) -> Histogram:
        """A histogram from `encode()` and its exact n, sum, min, max and clamped count.

        Raises ValueError if the text is damaged, or its buckets hold another number of values than n.
        """
        n, *figures = exact_figures
        histogram = cls()
        try:
            histogram._buckets.decode_and_add(encoded)
        except (HdrCookieException, HdrLengthException, IndexError, zlib.error) as error:
            raise ValueError(f"not an encoded histogram: {error}") from None
        if histogram._buckets.get_total_count() != n:
            raise ValueError(f"the histogram holds {histogram._buckets.get_total_count()} values, not n={n}")
        histogram._count(n, *figures)
        return histogram


class IntervalLog:
    """Makes the lines of a HdrHistogram interval log: one line per tag and interval that saw a value.

    Append each `lines()` to the file as it comes (one write), and a killed run keeps what was written.
    """

    def __init__(self, t0_unix_ns: int | None = None) -> None:
        """`t0_unix_ns` is the wall clock at the run's t0; without it the log starts at the epoch."""
        self._t0_unix_ns = t0_unix_ns or 0
        self._begun = False
        self._interval: dict[str, Histogram] = {}

    def record(self, tag: str, value_ns: int) -> None:
        self[tag].record(value_ns)

    def __getitem__(self, tag: str) -> Histogram:
        """The histogram of the interval under way; a new one after each `lines()`."""
        if tag not in self._interval:
            self._interval[tag] = Histogram()
        return self._interval[tag]

    def lines(self, start_ns: int, end_ns: int) -> bytes:
        """Close the interval [start, end), in ns from t0, and give its lines, the log's head first."""
        lines = [] if self._begun else _head(self._t0_unix_ns)
        self._begun = True
        for tag, histogram in self._interval.items():
            if histogram.n:
                lines += [histogram.exact_figures(tag), _interval_line(tag, histogram, start_ns, end_ns)]
        self._interval = {}
        return "".join(line + "\n" for line in lines).encode("ascii")


def _head(t0_unix_ns: int) -> list[str]:
    seconds = t0_unix_ns / NS_PER_S
    date = datetime.fromtimestamp(seconds, UTC).strftime("%a %b %d %H:%M:%S UTC %Y")
    return [
        "#[Histogram log format version 1.3]",
        f"#[StartTime: {seconds:.3f} (seconds since epoch), {date}]",
        f"#[BaseTime: {seconds:.3f} (seconds since epoch)]",
        "#[Values in ns, Interval_Max in ms]",
        '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"',
    ]


def _interval_line(tag: str, histogram: Histogram, start_ns: int, end_ns: int) -> str:
    largest = min(max(histogram.max_ns or 0, 0), HIGHEST_NS) / NS_PER_MS
    start, length = start_ns / NS_PER_S, (end_ns - start_ns) / NS_PER_S
    return f"Tag={tag},{start:.6f},{length:.6f},{largest:.6f},{histogram.encode()}"


def read_log(path: Path) -> dict[str, Histogram]:
    """The intervals of a log, merged per tag; empty if there is no file. A cut-off last line is left out.

    Raises InputError if it cannot be read, or a line is damaged.
    """
    reader = LogReader()
    for number, line in _whole_lines(path):
        try:
            reader.add(line)
        except (ValueError, KeyError) as error:
            raise InputError(f"{path}: line {number}: {error}") from None
    return reader.merged


class LogReader:
    """Merges the intervals of a log per tag, line by line, as far as they have come."""

    def __init__(self) -> None:
        self.merged: dict[str, Histogram] = {}
        self._figures: dict[str, tuple[int, int, int, int, int]] = {}

    def add(self, line: str) -> None:
        """A line without its newline. ValueError if it is damaged."""
        _read_line(line, self._figures, self.merged)


def _whole_lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, 1):
                if line.endswith("\n"):
                    yield number, line[:-1]
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from None


def _read_line(
    line: str, figures: dict[str, tuple[int, int, int, int, int]], merged: dict[str, Histogram]
) -> None:
    if match := _EXACT.fullmatch(line):
        n, total, smallest, largest, clamped = map(int, match.groups()[1:])
        figures[match[1]] = (n, total, smallest, largest, clamped)
    elif match := _LINE.fullmatch(line):
        tag = match[1]
        if tag not in figures:
            raise ValueError(f"no exact figures before the interval of {tag}")
        merged.setdefault(tag, Histogram()).merge(Histogram.decode(match[5], figures.pop(tag)))
    elif line and line[0] not in '#"':
        raise ValueError("neither a comment nor an interval with a tag")
