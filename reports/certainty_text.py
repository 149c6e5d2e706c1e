"""How well the figures of a run are known, in words: intervals, and whether the run was steady.

A summary in, lines of at most 80 columns out.
"""

from __future__ import annotations

from typing import Any

from reports.tables import DASH, ms, number, table, wrapped
from reports.text import LATENCIES

SHOWN = ("queue_delay_ms", "ttft_ms", "tpot_ms", "e2e_ms")
PERCENTILES = ("p50", "p90", "p95", "p99")


def certainty(summary: dict[str, Any]) -> str:
    """The intervals and the verdict, as far as the run has enough requests for either."""
    blocks = (intervals(summary["intervals"]), stability(summary["stability"]))
    return "\n\n".join(block for block in blocks if block)


def intervals(found: dict[str, Any]) -> str:
    """Percentiles in a table, rates in a line below it; a limit that the sample cannot give is left open."""
    rows = [
        [LATENCIES[key], *(_limits_ms(found[key][name]) for name in PERCENTILES)]
        for key in SHOWN
        if key in found
    ]
    if not rows:
        return ""
    lines = [table([f"ms, {found['confidence']:.0%} sure", *PERCENTILES], rows)]
    if any(cell.endswith("..") for row in rows for cell in row):
        lines += wrapped("an open end: too few requests to say how high")
    if limits := found["throughput_rps"]:
        lines.append(f"throughput {_limits(limits)} req/s")
    if (goodput := found["goodput_rps"]) and (attainment := found["attainment"]):
        lines.append(f"goodput {_limits(goodput)} req/s | attainment {_limits(attainment, 100)} %")
    return "\n".join(lines)


def _limits(limits: dict[str, float], factor: int = 1) -> str:
    return _between(*(number(limits[name] * factor, 2 if factor == 1 else 1) for name in ("low", "high")))


def _limits_ms(limits: dict[str, float | None]) -> str:
    low, high = (None if limits[name] is None else ms(limits[name]) for name in ("low", "high"))
    return _between(low or "", high or "")


def _between(low: str, high: str) -> str:
    return f"{low}..{high}" if low or high else DASH


def stability(found: dict[str, Any] | None) -> str:
    """The verdict with the slope that it rests on; nothing of a run too short to have one."""
    if found is None or found["slope_per_s"] is None:
        return ""
    limits = _between(f"{found['low']:+.3g}", f"{found['high']:+.3g}")
    parts = [
        f"{found['verdict']}: {found['reason']}",
        f"in flight {found['slope_per_s']:+.3g} per s ({limits})",
    ]
    if found["rho"] is not None:
        parts.append(f"rho {found['rho']:.2f}")
    return "\n".join(wrapped("; ".join(parts), then="  "))
