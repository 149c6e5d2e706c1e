"""What the page of a run draws of its requests: columns, in order of arrival. The rows are not kept."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ledgers.columns import Column, Table
from ledgers.metrics import (
    NEVER,
    NEVER_IN_FLIGHT,
    classify,
    e2e_from_send_ns,
    e2e_ns,
    entered_ns,
    leave_ns,
    meets,
    origin_ns,
    queue_delay_ns,
    tpot_ns,
    ttft_from_send_ns,
    ttft_ns,
)
from ledgers.rows import OUTCOMES, Outcome, RequestRow
from ledgers.rundir import Run
from ledgers.summary import kept_ns
from reports.requests_text import request_labels
from reports.tables import shortened

LONGEST_NAME = 60  # of an id; a server can send one of any length
COMPLETED = OUTCOMES.index("completed")
FIELDS = (
    "id",
    "request",
    "origin",
    "entered",
    "sent",
    "prefill_start",
    "prefill_end",
    "first_token",
    "leave",
    "ttft",
    "ttft_from_send",
    "tpot",
    "e2e",
    "e2e_from_send",
    "queue_delay",
    "status",
    "kept",
    "met",
)


class RunRows:
    """Every request of a run as seen at T_obs. `kept` are those in no warm-up and no cool-down.

    Where there were retries the rows are attempts, and `request` says of which.
    """

    def __init__(self, run: Run, summary: dict[str, Any]) -> None:
        self.begin_ns, self.last_ns, self.t_obs_ns = kept_ns(summary)
        self.slo = run.info.config.slo
        self.retried = bool(summary["retries"])
        self.noun = "attempts" if self.retried else "requests"
        self._bounds = self.slo.bounds_ns()
        self._table = Table(FIELDS)
        labels = request_labels(run.rows()) if run.info.kind == "served" else {}
        for row in run.rows():
            row.id = shortened(labels.get(row.id, row.id), LONGEST_NAME)
            self._table.append(self._record(row))
        origin = self._table["origin"]
        order = sorted(range(len(self)), key=lambda i: NEVER if (at := origin[i]) is None else at)
        self._table.take(order)
        kept, status = self["kept"], self["status"]
        self.kept = array("i", (i for i in range(len(self)) if kept[i]))
        self.completed = array("i", (i for i in self.kept if status[i] == COMPLETED))

    def _record(self, row: RequestRow) -> Sequence[Any]:
        origin, tpot, left = origin_ns(row), tpot_ns(row), leave_ns(row)
        return (
            row.id,
            (shortened(row.retry_of, LONGEST_NAME) if row.retry_of else row.id) if self.retried else None,
            origin,
            entered_ns(row),
            row.sent_ns,
            row.prefill_start_ns,
            row.prefill_end_ns,
            row.first_token_ns,
            left,
            ttft_ns(row),
            ttft_from_send_ns(row),
            None if tpot is None else round(tpot),
            e2e_ns(row),
            e2e_from_send_ns(row),
            queue_delay_ns(row),
            OUTCOMES.index(classify(row.outcome, left, self.t_obs_ns)),
            int(self.begin_ns <= (origin or 0) <= self.last_ns),
            int(meets(row, self._bounds)),
        )

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, field: str) -> Column:
        return self._table[field]

    def known(self, field: str, indices: Iterable[int]) -> list[int]:
        return self[field].known(indices)

    def pairs(self, one: str, other: str, indices: Iterable[int]) -> Iterator[tuple[int, int]]:
        """The values of two columns, of the requests that have both."""
        first, second = self[one], self[other]
        for i in indices:
            if (a := first[i]) is not None and (b := second[i]) is not None:
                yield a, b

    def outcome(self, i: int) -> Outcome:
        code: int = self["status"][i]
        return OUTCOMES[code]

    @property
    def some_end_later(self) -> bool:
        """Whether the window ended before the requests did."""
        return any(self.outcome(i) == "unfinished" for i in range(len(self)))

    def levels(self) -> Iterator[tuple[int, int]]:
        """How many were in flight from each instant on at which that changes, after T_obs as well."""
        there = [i for i in range(len(self)) if self.outcome(i) not in NEVER_IN_FLIGHT]
        starts = sorted(self.known("entered", there))
        ends = array("q", sorted(self._ends(there)))
        left = 0
        for arrived, start in enumerate(starts, 1):
            while left < len(ends) and ends[left] <= start:
                left += 1
                yield ends[left - 1], arrived - 1 - left
            yield start, arrived - left
        while left < len(ends) and ends[left] < NEVER:
            left += 1
            yield ends[left - 1], len(starts) - left

    def _ends(self, indices: Iterable[int]) -> Iterator[int]:
        entered, leave = self["entered"], self["leave"]
        for i in indices:
            if (start := entered[i]) is not None:
                left = leave[i]
                yield NEVER if left is None else max(start, left)
