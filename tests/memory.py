"""What a row costs in memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable


def bytes_each(hold: Callable[[int], object], few: int = 5_000, many: int = 25_000) -> float:
    """What one more of `count` costs at the peak; whatever is there only once does not count."""
    return (_peak(hold, many) - _peak(hold, few)) / (many - few)


def _peak(hold: Callable[[int], object], count: int) -> int:
    tracemalloc.start()
    try:
        hold(count)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
