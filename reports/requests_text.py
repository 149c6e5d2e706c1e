"""The requests of a run, a line each. Values in, lines out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from ledgers.metrics import (
    NEVER,
    classify,
    e2e_ns,
    held_ns,
    leave_ns,
    meets,
    origin_ns,
    queue_delay_ns,
    tpot_ns,
    ttft_ns,
)
from ledgers.rows import RequestRow
from ledgers.settings import Slo
from reports.tables import DASH, ms, shortened, table


def request_table(rows: Sequence[RequestRow], slo: Slo, t_obs_ns: int) -> str:
    """The ledger, a line per request in order of arrival, those that never arrived last; times in ms.

    The arrival is in s.

    A column of which nothing is known is left out. Without an SLO the last one tells what did not complete.
    """
    columns = ["id", "class", "prompt", "output", "arrival", "held", "queue", "TTFT", "TPOT", "E2E"]
    columns.append("SLO" if slo.given else "outcome")
    ordered = sorted(rows, key=lambda row: NEVER if (at := origin_ns(row)) is None else at)
    cells = [_request_cells(row, slo, t_obs_ns) for row in ordered]
    if not cells:
        return ""
    known = [i for i in range(len(columns)) if any(line[i] != DASH for line in cells)]
    left = sum(columns[i] in ("id", "class") for i in known)
    return table([columns[i] for i in known], [[line[i] for i in known] for line in cells], left=left)


def _request_cells(row: RequestRow, slo: Slo, t_obs_ns: int) -> list[str]:
    arrival = origin_ns(row)
    tpot = tpot_ns(row)
    return [
        row.id,
        shortened(row.class_ or DASH, 10),
        str(row.prompt_tokens),
        _output(row),
        DASH if arrival is None else f"{arrival / 1e9:.3f}",
        _ns(held_ns(row) or None),
        _ns(queue_delay_ns(row)),
        _ns(ttft_ns(row)),
        DASH if tpot is None else ms(float(tpot) / 1e6),
        _ns(e2e_ns(row)),
        standing(row, slo, t_obs_ns),
    ]


def _output(row: RequestRow) -> str:
    """Tokens: delivered/planned where they differ. Events are no count of tokens to hold against a plan."""
    planned = row.output_tokens * (row.choices or 1)
    told = row.tokens is not None and row.token_source != "events"
    return f"{row.tokens}/{planned}" if told and row.tokens != planned else str(planned)


def standing(row: RequestRow, slo: Slo, t_obs_ns: int) -> str:
    """Whether the request met the SLO; if it did not complete in the window, what became of it."""
    outcome = classify(row.outcome, leave_ns(row), t_obs_ns)
    if outcome != "completed":
        return str(outcome)
    if not slo.given:
        return DASH
    return "met" if meets(row, slo.bounds_ns()) else "missed"


def _ns(value: int | None) -> str:
    return DASH if value is None else ms(value / 1e6)


def request_labels(rows: Iterable[RequestRow]) -> dict[str, str]:
    """What to call the requests of a served run: a server numbers them, but the clients' own ids tell more.

    Of ids with a common beginning, up to a dash, only the rest. Empty if not every request has one.
    """
    served = (row for row in rows if row.received_ns is not None and row.arrival_ns is None)
    known = {row.id: row.request_id or "" for row in served}
    names = known.values()
    if not all(names) or len(set(names)) < len(known):
        return {}
    first, last = min(names, default=""), max(names, default="")
    common = "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))
    start = common.rfind("-") + 1
    for id, name in known.items():  # in place: there can be as many as the run has requests
        known[id] = name[start:]
    return known
