"""What a driver asks of the machine under it."""

from __future__ import annotations

import gc

from ledgers.machine import few_collections


def test_nothing_is_searched_for_garbage_while_streams_come_and_go() -> None:
    """As many objects as a thousand streams are made of start no search; afterwards all is as before."""
    searches: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        searches.append(phase)

    before = gc.get_threshold()
    gc.callbacks.append(note)
    try:
        with few_collections():
            alive = [[number] for number in range(100_000)]
            assert searches == []
        assert gc.get_threshold() == before
        assert gc.get_freeze_count() == 0
    finally:
        gc.callbacks.remove(note)
    assert len(alive) == 100_000
