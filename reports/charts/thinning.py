"""Fewer points than there are, with the extremes kept: what a picture of some hundred columns can show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Point = tuple[float, float]
MOST_POINTS = 2_400
DRAWN = "{}: of {:,} points the extremes of each column are drawn."


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """Points in ascending x, at most so many."""
    if len(points) <= most:
        return list(points)
    return outline(points, points[0][0], points[-1][0], most)


def outline(points: Iterable[Point], low: float, high: float, most: int = MOST_POINTS) -> list[Point]:
    """Of points in ascending x from low to high: the first, lowest, highest and last of each column.

    Memory is bounded, however many there are.
    """
    columns = max(1, most // 4)
    width = (high - low) / columns or 1.0
    kept: list[Point] = []
    corners: list[Point] = []  # first, lowest, highest, last
    place = 0
    for point in points:
        here = min(int((point[0] - low) / width), columns - 1)
        if here != place or not corners:
            kept += _in_order(corners)
            corners, place = [point] * 4, here
            continue
        if point[1] < corners[1][1]:
            corners[1] = point
        if point[1] > corners[2][1]:
            corners[2] = point
        corners[3] = point
    return kept + _in_order(corners)


def spread_out(points: Iterable[Point], cell: float) -> list[Point]:
    """One point of each square cell: more would be drawn one over the other."""
    seen: dict[tuple[int, int], Point] = {}
    for x, y in points:
        seen.setdefault((int(x // cell), int(y // cell)), (x, y))
    return list(seen.values())


def evenly(count: int, most: int) -> list[int]:
    """At most so many indices of `count`, evenly, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [place * (count - 1) // (most - 1) for place in range(most)]


def _in_order(corners: Sequence[Point]) -> list[Point]:
    """Each once. Points of the same x stay as they came as far as is known: the first and the last do."""
    if not corners:
        return []
    first, *inner, last = corners
    return list(dict.fromkeys([first, *sorted(inner, key=lambda point: point[0]), last]))
