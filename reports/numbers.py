"""Numbers as they are shown, with as many digits as a reader can use."""

from __future__ import annotations

from math import isfinite

from reports.tables import DASH


def figure(value: float | None) -> str:
    """Of any unit: counts as they are, all else with three digits or none behind the point."""
    if value is None or not isfinite(value):
        return DASH
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(share: float | None, digits: int = 0) -> str:
    return DASH if share is None else f"{share:.{digits}%}"
