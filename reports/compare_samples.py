"""What a comparison needs of a run: what each request came to, in order of arrival. Reads run directories.

The figures are those of `ledgers.summary`, with the definitions of `ledgers.metrics`; beside them stands what
a summary does not keep: which request had which value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from ledgers.metrics import classify, e2e_ns, gaps_ns, leave_ns, meets, origin_ns, tpot_ns, ttft_ns
from ledgers.rows import FAILURES, Outcome, RequestRow
from ledgers.rundir import Run, RunInfo
from ledgers.summary import kept_ns

LATENCIES = ("ttft", "tpot", "e2e", "itl")


class Seen(NamedTuple):
    """A request as seen at the end of the window; times in ns. `request` is the same for every attempt."""

    request: str
    class_: str | None
    arrival: int
    left: int | None
    outcome: Outcome
    met: bool
    tokens: int | None
    values: tuple[float | None, float | None, float | None]
    """Of `ttft`, `tpot` and `e2e`, if it completed."""

    @property
    def completed(self) -> bool:
        return self.outcome == "completed"

    @property
    def failed(self) -> bool:
        return self.outcome in FAILURES or self.outcome == "rejected"


class Sample(NamedTuple):
    """One run: its settings, its summary, its requests, and the gaps of each where they were recorded."""

    path: Path
    info: RunInfo
    summary: dict[str, Any]
    requests: Sequence[Seen]
    gaps: dict[int, list[int]]  # by place in `requests`

    @property
    def begin_ns(self) -> int:
        """Where the window begins: behind the warm-up, where one is left out."""
        return kept_ns(self.summary)[0]

    @property
    def span_ns(self) -> int:
        begin_ns, _, end_ns = kept_ns(self.summary)
        return end_ns - begin_ns

    def marks(self) -> list[str]:
        """What stands against the figures of this run, as keys of MARKS."""
        client, stability = self.summary["client"], self.summary["stability"] or {}
        found = {
            "client-limited": bool(client and client["client_limited"]),
            "censored": self.summary["censored"],
            "unsteady": stability.get("verdict") in ("growing", "overload"),
            "incomplete": not self.summary["complete"],
        }
        return [name for name, here in found.items() if here]

    def classes(self) -> list[str]:
        """The largest first."""
        counts = Counter(seen.class_ for seen in self.requests if seen.class_ is not None)
        return [name for name, _ in counts.most_common()]


MARKS = {"censored": "†", "client-limited": "‡", "unsteady": "§", "incomplete": "¶"}


def read_sample(run: Run, summary: dict[str, Any]) -> Sample:
    return sample_of(run.path, run.info, summary, run.rows())


def sample_of(path: Path, info: RunInfo, summary: dict[str, Any], every: Iterable[RequestRow]) -> Sample:
    """All requests of a run by arrival; those that left no row as unfinished, behind all others."""
    bounds = info.config.slo.bounds_ns()
    first_ns, last_ns, end_ns = kept_ns(summary)
    rows = [row for row in every if first_ns <= (origin_ns(row) or 0) <= last_ns]
    rows.sort(key=lambda row: (origin_ns(row) or 0, row.retry_of is not None))
    requests = [_seen(row, meets(row, bounds), end_ns) for row in rows]
    gaps = {
        place: [max(1, gap) for gap in gaps_ns(row)]
        for place, (row, seen) in enumerate(zip(rows, requests, strict=True))
        if seen.completed and row.token_ns
    }
    for place in range(summary["without_row"]):
        lost = Seen(f"\0{place}", None, end_ns, None, "unfinished", False, None, (None, None, None))
        requests.append(lost)
    return Sample(path, info, summary, requests, gaps)


def _seen(row: RequestRow, met: bool, end_ns: int) -> Seen:
    outcome = classify(row.outcome, leave_ns(row), end_ns)
    done = outcome == "completed"
    tpot = tpot_ns(row)
    values = (_above_0(ttft_ns(row)), _above_0(tpot), _above_0(e2e_ns(row)))
    return Seen(
        row.retry_of or row.id,
        row.class_,
        origin_ns(row) or 0,
        leave_ns(row),
        outcome,
        met and done,
        row.tokens,
        values if done else (None, None, None),
    )


def _above_0(value_ns: int | Fraction | None) -> float | None:
    """Ratios need values above 0: a nanosecond is far below what any stamp tells."""
    return None if value_ns is None else max(1.0, float(value_ns))
