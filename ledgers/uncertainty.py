"""How far the figures of a summary may be off: 95 % intervals from batches in order of arrival.

Pure. Percentiles by order statistics of the sample's effective size, the mean and the rates by batch means,
attainment by Wilson (`ledgers.intervals` has the formulas). None where there are too few values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from math import inf
from typing import Any

from ledgers.distributions import PERCENTILES
from ledgers.intervals import (
    CONFIDENCE,
    Interval95,
    batch_mean_interval,
    batched,
    batches_for,
    percentile_of_batches,
    share_of_batches,
)
from ledgers.units import NS_PER_MS, NS_PER_S

Spread = dict[str, Interval95]


def sorted_batches(values: Sequence[float]) -> tuple[list[float], list[list[float]]]:
    """All values in ascending order, and each batch of them: sorted batches are merged at little cost."""
    batches = [sorted(batch) for batch in batched(values)]
    return sorted(chain.from_iterable(batches) if batches else values), batches


def spread_ms(ordered: Sequence[float], batches: Sequence[Sequence[float]]) -> Spread | None:
    """The intervals of the percentiles and of the mean, in ms, from values in ns.

    The few values beyond a high percentile come in clumps, and too few of them tell how much they do. So it
    counts as no more independent values than the percentiles below it.
    """
    if not batches:
        return None
    low, high = batch_mean_interval([sum(batch) / len(batch) for batch in batches])
    found = {"mean": _in_ms(Interval95(max(0.0, low), high))}
    worth = inf
    for p in PERCENTILES:
        limits = percentile_of_batches(ordered, batches, p, most=worth)
        worth = limits.effective_n or worth
        found[f"p{p}"] = _in_ms(limits)
    return found


def _in_ms(limits: Interval95) -> Interval95:
    low, high = (None if limit is None else limit / NS_PER_MS for limit in (limits.low, limits.high))
    return Interval95(low, high, limits.effective_n)


def rates(leaves: Iterable[tuple[int, int]], n: int, begin_ns: int, end_ns: int) -> dict[str, Any]:
    """Of requests and of their tokens per second, from (end, tokens) of n requests, by slices of the window.

    Where there is a drain, its slices widen the interval: a rate that changes is known less well.
    """
    count, span_ns = batches_for(n), end_ns - begin_ns
    if not count or span_ns <= 0:
        return {"throughput_rps": None, "token_throughput_tps": None}
    done, tokens = [0] * (count + 1), [0] * (count + 1)
    for left_ns, came in leaves:
        place = (left_ns - begin_ns) * count // span_ns  # just `count` at the end itself
        done[place] += 1
        tokens[place] += came
    for counts in (done, tokens):
        at_the_end = counts.pop()
        counts[-1] += at_the_end
    known = sum(done) == n  # the tokens of every request are known
    return {
        "throughput_rps": _rate(done, span_ns) if known else None,
        "token_throughput_tps": _rate(tokens, span_ns) if known else None,
    }


def _rate(counts: Sequence[int], span_ns: int) -> Interval95:
    per_s = NS_PER_S * len(counts) / span_ns
    low, high = batch_mean_interval([count * per_s for count in counts])
    return Interval95(max(0.0, low), high)


def attainment(met: Sequence[int], span_ns: int) -> dict[str, Any]:
    """Of attainment, and of goodput given how many requests were scheduled; `met` is 1 or 0 of each."""
    share = share_of_batches(met) if span_ns > 0 else None
    per_s = len(met) * NS_PER_S / span_ns if span_ns > 0 else 0.0
    goodput = share and Interval95(*((limit or 0.0) * per_s for limit in (share.low, share.high)))
    return {"attainment": share, "goodput_rps": goodput}


def intervals(spreads: dict[str, Spread | None], others: dict[str, Any]) -> dict[str, Any]:
    known = {f"{name}_ms": spread for name, spread in spreads.items() if spread}
    return {"confidence": CONFIDENCE, **known, **others}
