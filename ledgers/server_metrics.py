"""What a server said of itself during a run, and what its client saw at the same instants. Pure.

A server's counts grow from its start: all that is told of a run are differences between its samples.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import msgspec

from ledgers.rows import RequestRow
from ledgers.units import NS_PER_S, ceil_div

MOST_INTERVALS = 20  # what a reader takes in at a glance
_MS_PER_S = 1000
_GAUGES = ("running", "waiting", "kv_usage")


class ServerSample(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A server's metrics when it was asked at `t_ns`, by neutral names; None is what it does not tell.

    The whole answer had come after `took_ns`. A line with `missed` has no values: so many samples were to be
    taken and were not, and `error` is why. Counts and sums (in seconds) grow from the server's start.
    """

    t_ns: int
    took_ns: int | None = None
    missed: int = 0
    error: str | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    requests_total: float | None = None
    preemptions_total: float | None = None
    ttft_sum_s: float | None = None
    ttft_count: float | None = None
    itl_sum_s: float | None = None
    itl_count: float | None = None
    queue_sum_s: float | None = None
    queue_count: float | None = None
    e2e_sum_s: float | None = None
    e2e_count: float | None = None


class ServerSide:
    """The samples of a run, and beside them what its rows tell of the same times."""

    def __init__(self, samples: Iterable[ServerSample]) -> None:
        everything = list(samples)
        self.missed = sum(sample.missed for sample in everything)
        self.samples = sorted((s for s in everything if not s.missed), key=lambda sample: sample.t_ns)
        self._times = array("q", (sample.t_ns for sample in self.samples))
        self._places = interval_places(self._times)
        self._edges = [self._times[place] for place in self._places]
        self._changes = [0] * (len(self._times) + 1)  # of requests in flight from one sample to the next
        self._partly = [0.0] * len(self._edges)  # tokens by each edge, of requests that had not ended
        self._wholly = [0] * (len(self._edges) + 1)  # tokens of those that ended between two edges
        self._tokens = self._prompt_tokens = 0
        self._waited_ns = self._waits = 0  # for first tokens, from the send

    def add(self, row: RequestRow) -> None:
        if not self._times or row.sent_ns is None:
            return
        self._changes[bisect_left(self._times, row.sent_ns)] += 1
        if row.end_ns is not None:
            self._changes[bisect_left(self._times, row.end_ns)] -= 1
        if row.tokens or row.outcome == "completed":  # what was refused, no server has read
            told = row.usage_prompt_tokens
            self._prompt_tokens += row.prompt_tokens if told is None else told
        self._tokens += row.tokens or 0
        if row.first_token_ns is not None and row.last_token_ns is not None:
            self._waited_ns += row.first_token_ns - row.sent_ns
            self._waits += 1
            self._add_tokens(row, row.first_token_ns, row.last_token_ns)

    def _add_tokens(self, row: RequestRow, first_ns: int, last_ns: int) -> None:
        done = bisect_left(self._edges, last_ns)
        for place in range(bisect_left(self._edges, first_ns), done):
            self._partly[place] += tokens_by(row, self._edges[place])
        self._wholly[done] += row.tokens or 0

    def figures(self) -> dict[str, Any] | None:
        """Both sides; None if the server said nothing. Means are over all samples but the first."""
        if len(self.samples) < 2:
            return None
        later = range(1, len(self.samples))
        return {
            "samples": len(self.samples),
            "missed": self.missed,
            **self._gauges(later),
            "client_in_flight_mean": self._in_flight_mean(later),
            "prompt_tokens": growth(self.samples, "prompt_tokens_total"),
            "client_prompt_tokens": self._prompt_tokens,
            "generation_tokens": growth(self.samples, "generation_tokens_total"),
            "client_generation_tokens": self._tokens,
            "requests": growth(self.samples, "requests_total"),
            "preemptions": growth(self.samples, "preemptions_total"),
            **{f"{name}_mean_ms": mean_ms(self.samples, name) for name in ("ttft", "itl", "queue", "e2e")},
            "client_ttft_from_send_mean_ms": _ratio(self._waited_ns / 1e6, self._waits),
            "series": self._series(),
        }

    def _gauges(self, places: Sequence[int]) -> dict[str, float | None]:
        figures = {}
        for name in _GAUGES:
            figures[f"{name}_mean"] = self._mean(name, places)
            figures[f"{name}_max"] = max(self._values(name, places), default=None)
        return figures

    def _mean(self, name: str, places: Sequence[int]) -> float | None:
        values = self._values(name, places)
        return _ratio(sum(values), len(values))

    def _values(self, name: str, places: Sequence[int]) -> list[float]:
        values = (getattr(self.samples[place], name) for place in places)
        return [value for value in values if value is not None]

    def _in_flight_mean(self, places: Sequence[int]) -> float | None:
        counts = list(accumulate(self._changes))
        return _ratio(sum(counts[place] for place in places), len(places))

    def _series(self) -> list[dict[str, Any]]:
        ended = accumulate(self._wholly[:-1])
        tokens_by = [part + whole for part, whole in zip(self._partly, ended, strict=True)]
        return [self._interval(at, tokens_by[at] - tokens_by[at - 1]) for at in range(1, len(self._edges))]

    def _interval(self, at: int, client_tokens: float) -> dict[str, Any]:
        """From one edge to the next: gauges at the samples since, rates by what the counts have grown."""
        first, last = self._places[at - 1], self._places[at]
        places = range(first + 1, last + 1)
        seconds = (self._edges[at] - self._edges[at - 1]) / NS_PER_S
        return {
            "t_s": self._edges[at] / NS_PER_S,
            "client_in_flight": self._in_flight_mean(places),
            **{name: self._mean(name, places) for name in _GAUGES},
            "client_tokens_per_s": client_tokens / seconds,
            "tokens_per_s": _ratio(
                growth(self.samples[first : last + 1], "generation_tokens_total"), seconds
            ),
        }


def interval_places(times: Sequence[int]) -> list[int]:
    """Which samples bound the intervals that are shown: all, or every so many-th of many.

    The last one comes when the run ends. If that is soon after the one before, their interval is the last.
    """
    if len(times) < 2:
        return []
    step = ceil_div(len(times) - 1, MOST_INTERVALS)
    places = [*range(0, len(times) - 1, step), len(times) - 1]
    if len(places) > 2:
        before, last = (times[places[-1 - back]] - times[places[-2 - back]] for back in (1, 0))
        if 2 * last < before:
            del places[-2]
    return places


def tokens_by(row: RequestRow, time_ns: int) -> float:
    """How many tokens a client had by an instant; spread evenly where their times are not known."""
    first, last, tokens = row.first_token_ns, row.last_token_ns, row.tokens or 0
    if first is None or last is None or time_ns < first:
        return 0
    if time_ns >= last:
        return tokens
    if row.token_ns:
        return tokens * bisect_right(row.token_ns, time_ns) / len(row.token_ns)
    return 1 + (tokens - 1) * (time_ns - first) / (last - first)


def growth(samples: Sequence[ServerSample], name: str) -> float | None:
    """By how much a count has grown. One that falls has begun anew at 0, as that of a restarted server."""
    known = (getattr(sample, name) for sample in samples)
    values: list[float] = [value for value in known if value is not None]
    if len(values) < 2:
        return None
    return sum(later - earlier if later >= earlier else later for earlier, later in pairwise(values))


def mean_ms(samples: Sequence[ServerSample], name: str) -> float | None:
    """The mean of what a histogram took up between the first sample and the last."""
    total_s, count = growth(samples, f"{name}_sum_s"), growth(samples, f"{name}_count")
    return None if total_s is None else _ratio(total_s * _MS_PER_S, count)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
