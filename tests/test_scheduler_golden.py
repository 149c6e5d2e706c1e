"""The scheduler against right answers made by another implementation of the same rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ledgers.rows import RequestRow, TickRow
from ledgers.settings import Hardware, SchedulerSettings
from ledgers.units import to_ns
from mock_server.policies import make_scheduler
from mock_server.simulate import simulate

GOLDEN = Path(__file__).parent / "data" / "golden"
VECTORS = sorted(GOLDEN.glob("toy_*.json"))


def lengths() -> dict[str, tuple[int, int]]:
    lines = (GOLDEN / "toy_ledger.csv").read_text().splitlines()[1:]
    cells = [line.split(",") for line in lines]
    return {cell[0]: (int(cell[2]), int(cell[3])) for cell in cells}


def run(golden: dict[str, Any]) -> tuple[list[RequestRow], list[TickRow]]:
    settings = SchedulerSettings(
        policy=golden["policy"],
        max_batch=golden["max_batch"],
        max_wait_ns=to_ns(golden["max_wait_s"]),
        hardware=Hardware(**golden["hardware"]),
    )
    requests = [
        RequestRow(id=row["id"], prompt_tokens=size[0], output_tokens=size[1], arrival_ns=row["arrival_ns"])
        for row, size in ((row, lengths()[row["id"]]) for row in golden["requests"])
    ]
    ticks: list[TickRow] = []
    return list(simulate(make_scheduler(settings), requests, on_tick=ticks.append)), ticks


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_every_request_and_tick_is_the_golden_one(path: Path) -> None:
    """Prefill start and end, first and last token of each request, and each tick's row, are equal."""
    golden = json.loads(path.read_text())
    rows, ticks = run(golden)
    requests = {
        row.id: {
            "id": row.id,
            "arrival_ns": row.arrival_ns,
            "prefill_start_tick": row.ticks.prefill_start,
            "prefill_end_tick": row.ticks.prefill_end,
            "first_token_tick": row.ticks.first_token,
            "last_token_tick": row.ticks.last_token,
        }
        for row in rows
        if row.ticks
    }
    assert [requests[row["id"]] for row in golden["requests"]] == golden["requests"]
    fields = ("tick", "queue", "prefill", "ready", "emitted", "kv_reserved", "kv_cached")
    assert [{field: getattr(tick, field) for field in fields} for tick in ticks] == golden["ticks"]


def test_there_are_vectors_for_every_preset_and_policy() -> None:
    """Four presets times four policies, so that a missing file cannot pass unseen."""
    assert len(VECTORS) == 16
