"""Why a request missed the SLO: bounds that it broke, a window that closed before it was done. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BOUNDS = {"ttft": "ttft_ms", "tpot": "tpot_ms", "slo": "e2e_ms"}
WINDOW = "window"


def misses(request: Mapping[str, Any], setting: Mapping[str, Any]) -> list[str]:
    """Names of bounds in the setting, and `window`; none of one that met it."""
    if request["met_slo"] is not False:
        return []
    broken = [name for name, figure in BOUNDS.items() if _broken(request[figure], setting[name])]
    return [*broken, WINDOW] if request["censored"] else broken


def _broken(value: float | None, bound: float | None) -> bool:
    return bound is not None and value is not None and value > bound
