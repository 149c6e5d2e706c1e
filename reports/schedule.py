"""(a) The served schedule against a simulation fed with what the server received: equal, always."""

from __future__ import annotations

import msgspec

from ledgers.rows import RequestRow
from reports.sides import Side, state


class Schedule(msgspec.Struct, kw_only=True):
    """(a) served against simulated from the served inputs."""

    agrees: bool
    requests: int
    requests_equal: int
    ticks: int
    ticks_equal: int
    different: list[str]


def compare_schedule(served: Side, resimulated: Side) -> Schedule:
    """Ticks of every request and rows of every tick. Of a request cut by a shutdown, the ticks it reached."""
    different = [id for id, row in served.rows.items() if not _same_ticks(row, resimulated.rows.get(id))]
    cut = any(row.outcome == "unfinished" for row in served.rows.values())
    numbers = served.ticks.keys() if cut else served.ticks.keys() | resimulated.ticks.keys()
    equal = sum(state(served.ticks.get(k)) == state(resimulated.ticks.get(k)) for k in numbers)
    return Schedule(
        agrees=not different and equal == len(numbers),
        requests=len(served.rows),
        requests_equal=len(served.rows) - len(different),
        ticks=len(numbers),
        ticks_equal=equal,
        different=different,
    )


def _same_ticks(served: RequestRow, simulated: RequestRow | None) -> bool:
    if simulated is None:
        return False
    if served.ticks is None or simulated.ticks is None:  # it never came to the scheduler, on both sides
        return served.ticks is simulated.ticks
    if served.outcome != "unfinished":
        return served.ticks == simulated.ticks
    return all(
        value is None or value == getattr(simulated.ticks, name)
        for name, value in msgspec.structs.asdict(served.ticks).items()
    )
