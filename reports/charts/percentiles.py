"""Sorted values as the points of a percentile curve."""

from __future__ import annotations

from collections.abc import Sequence

PER_DECADE = 100  # points for each tenth of the values that is left


def percentile_points(ascending: Sequence[float]) -> list[tuple[float, float]]:
    """(q, value): a share q of all was lower. Of n values the largest goes from 1 - 1/n to 1.

    Many values are thinned so that each nine of the axis has as many points, the largest among them.
    """
    count = len(ascending)
    left, places = count, []
    while left > 0:
        places.append(count - left)
        left -= max(1, left // PER_DECADE)
    points = [(place / count, ascending[place]) for place in places]
    return [*points, (1.0, ascending[-1])] if points else []
