"""(c) The served schedule against a simulation of the planned ledger: equal until the first input moved.

Stated by tick, not by request: a request that waits for its batch, or decodes beside others, may rightly be
changed by a later arrival that moved. By causality, nothing before that arrival's tick may be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ledgers.rows import RequestRow, Ticks
from mock_server.simulate import received_tick
from reports.sides import Inputs, Side, state

NEVER = 2**63 - 1
WAITING_POLICIES = ("static", "continuous", "classes")  # those to which the maximum wait means something


class Plan(msgspec.Struct, kw_only=True):
    """(c) planned against served."""

    agrees: bool
    moved: list[str]
    first_moved_tick: int | None
    equal: int
    differ_later: list[str]
    differ_before: list[str]
    lengths_different: list[str]

    @property
    def requests(self) -> int:
        """How many were planned."""
        return self.equal + len(self.differ_later) + len(self.differ_before)


def moved_inputs(inputs: Inputs) -> tuple[dict[str, list[str]], int]:
    """Which inputs moved, each with what about it moved, and the first tick at which that can matter."""
    late = overtaken(inputs.order, inputs.served.rows)
    moved: dict[str, list[str]] = {}
    first = NEVER
    for id in inputs.order:
        reasons, tick = _moved(inputs, id, id in late)
        if reasons:
            moved[id] = reasons
            first = min(first, tick)
    return moved, first


def overtaken(order: Sequence[str], served: Mapping[str, RequestRow]) -> set[str]:
    """Which requests the server received after one that the ledger has behind them."""
    received = [(id, row.received_ns) for id in order if (row := served.get(id))]
    found: set[str] = set()
    earliest_behind = NEVER
    for id, received_ns in reversed(received):
        if received_ns is not None:
            if received_ns > earliest_behind:
                found.add(id)
            earliest_behind = min(earliest_behind, received_ns)
    return found


def _moved(inputs: Inputs, id: str, was_overtaken: bool) -> tuple[list[str], int]:
    tick_ns = inputs.settings.hardware.tick_ns
    plan = inputs.planned.rows[id].received_ns or 0
    row = inputs.served.rows.get(id)
    if row is None or row.received_ns is None:
        if inputs.planned.rows[id].outcome == "not_sent":  # a turn whose session was over, as planned
            return [], NEVER
        return ["not received"], received_tick(plan, tick_ns)
    reasons: list[str] = []
    ticks: list[int] = []

    def expect(what: str, planned_tick: int, served_tick: int) -> None:
        if planned_tick != served_tick:
            reasons.append(f"{what}: tick {served_tick}, planned {planned_tick}")
            ticks.append(min(planned_tick, served_tick))

    # A turn that follows the one before it at once comes after the tick of its very time.
    ticks_planned = inputs.planned.rows[id].ticks
    by_plan = None if ticks_planned is None else ticks_planned.received
    expect(
        "received",
        received_tick(plan, tick_ns) if by_plan is None else by_plan,
        received_tick(row.received_ns, tick_ns),
    )
    if inputs.settings.policy in WAITING_POLICIES:
        wait_ns = inputs.settings.wait_ns(inputs.planned.rows[id].class_)
        expect(
            "waited",
            received_tick(plan + wait_ns, tick_ns),
            received_tick(row.received_ns + wait_ns, tick_ns),
        )
    if was_overtaken:
        reasons.append("received after one that is behind it in the ledger")
        ticks.append(min(received_tick(plan, tick_ns), received_tick(row.received_ns, tick_ns)))
    if row.fault:
        reasons.append(f"fault {row.fault}")
        ticks.append(received_tick(row.received_ns, tick_ns))
    if row.ticks and row.ticks.cancel is not None:
        reasons.append(f"cancelled at tick {row.ticks.cancel}")
        ticks.append(row.ticks.cancel)
    return reasons, min(ticks, default=NEVER)


def compare_plan(planned: Side, served: Side, moved: dict[str, list[str]], first_tick: int) -> Plan:
    """Nothing may differ before `first_tick`. Later differences are listed."""
    before: list[str] = []
    later: list[str] = []
    for id, row in sorted(planned.rows.items(), key=lambda item: item[1].received_ns or 0):
        other = served.rows.get(id)
        mine, theirs = row.ticks, other.ticks if other else None
        if _until(mine, first_tick) != _until(theirs, first_tick):
            before.append(id)
        elif _until(mine, NEVER) != _until(theirs, NEVER):
            later.append(id)
    lengths = [id for id, row in planned.rows.items() if not _same_lengths(row, served.rows.get(id))]
    ticks_before = [k for k in planned.ticks.keys() | served.ticks.keys() if k < first_tick]
    same = all(state(planned.ticks.get(k)) == state(served.ticks.get(k)) for k in ticks_before)
    return Plan(
        agrees=not before and same and not lengths,
        moved=list(moved),
        first_moved_tick=None if first_tick == NEVER else first_tick,
        equal=len(planned.rows) - len(before) - len(later),
        differ_later=later,
        differ_before=before,
        lengths_different=lengths,
    )


def _same_lengths(planned: RequestRow, served: RequestRow | None) -> bool:
    """A length is never an input that moved: what was received must be what was planned."""
    if served is None:
        return True
    plan = (planned.prompt_tokens, planned.output_tokens)
    return plan == (served.prompt_tokens, served.output_tokens)


def _until(ticks: Ticks | None, limit: int) -> tuple[int | None, ...]:
    """What happened in ticks before `limit`. Prefill that ends at k + 1 was done in tick k."""
    if ticks is None:
        return (None,) * 4
    end = None if ticks.prefill_end is None else ticks.prefill_end - 1
    happened = (ticks.prefill_start, end, ticks.first_token, ticks.last_token)
    return tuple(None if tick is None or tick >= limit else tick for tick in happened)
