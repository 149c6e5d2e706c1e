"""The load that a run put on its load generator, from its rows. Pure."""

from __future__ import annotations

from array import array
from collections import defaultdict

from ledgers.calibration import Load
from ledgers.concurrency import InFlight
from ledgers.metrics import Observations
from ledgers.rows import RequestRow
from ledgers.units import NS_PER_S


class TokenRate:
    """Token events per second, each stream's spread evenly from its first to its last.

    Rows need not have the time of each token, and however long a stream is it costs the same to add.
    """

    def __init__(self) -> None:
        self._within: defaultdict[int, float] = defaultdict(float)  # by second
        self._steps: defaultdict[int, float] = defaultdict(
            float
        )  # how many more come in each from this one on

    def add(self, row: RequestRow) -> None:
        first, last, events = row.first_token_ns, row.last_token_ns, row.events or row.tokens
        if first is None or last is None or not events:
            return
        begin, end = first // NS_PER_S, last // NS_PER_S
        if begin == end:
            self._within[begin] += events
            return
        per_ns = events / (last - first)
        self._within[begin] += per_ns * ((begin + 1) * NS_PER_S - first)
        self._within[end] += per_ns * (last - end * NS_PER_S)
        self._steps[begin + 1] += per_ns * NS_PER_S
        self._steps[end] -= per_ns * NS_PER_S

    def busiest(self) -> float:
        """Those of the second with the most."""
        most = steady = 0.0
        for second in sorted({*self._within, *self._steps}):
            steady += self._steps.get(second, 0.0)
            most = max(most, steady + self._within.get(second, 0.0))
        return most


def load(requests: Observations, tokens: TokenRate) -> Load:
    """A stream is one from its send to its end, whether or not it was held back before."""
    starts, ends = array("q"), array("q")
    for sent, left in requests.pairs("sent", "leave", range(len(requests))):
        starts.append(sent)
        ends.append(left)
    return Load(InFlight(starts, ends).peak(), tokens.busiest())
