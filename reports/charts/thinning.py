"""Fewer points than there are, with the extremes kept: what a picture of some hundred columns can show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Point = tuple[float, float]


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Points in ascending x: the first, lowest, highest and last of each column, if there are too many."""
    columns = most // 4
    if len(points) <= most:
        return list(points)
    start, end = points[0][0], points[-1][0]
    width = (end - start) / columns or 1.0
    kept: list[Point] = []
    column: list[Point] = []
    place = 0
    for point in points:
        here = int((point[0] - start) / width)
        if here != place:
            kept += _corners(column)
            column, place = [], here
        column.append(point)
    return kept + _corners(column)


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


def _corners(column: Sequence[Point]) -> list[Point]:
    if len(column) <= 4:
        return list(column)
    places = range(len(column))
    lowest = min(places, key=lambda place: column[place][1])
    highest = max(places, key=lambda place: column[place][1])
    return [column[place] for place in sorted({0, lowest, highest, len(column) - 1})]
