"""A calibration in words: a line for each rung, and up to where the stamps are right."""

from __future__ import annotations

from collections.abc import Sequence

from ledgers.calibration import LIMIT_MS, PATTERNS, Calibration, Pattern, Rung
from ledgers.distributions import Distribution
from reports.numbers import percent
from reports.tables import DASH, ms, table, wrapped
from reports.text import load

COLUMNS = ("pattern", "streams", "tok/s", "p50", "p99", "max", "every", "bound", "lag", "CPU", "verdict")
LEGEND = (
    "Client stamp - server write in ms: p50, p99, max of first tokens, p99 of every token. bound: tokens "
    "dated by an upper bound. lag: p99 of the send lag in ms. CPU: of a core."
)
NAMES: dict[Pattern, str] = {"staggered": "staggered", "lock step": "in lock step"}


def calibration_text(calibration: Calibration) -> str:
    """The table, why rungs were not ok, and the answer."""
    rungs = calibration.rungs
    why = [line for rung in rungs for words in reasons(rung) for line in wrapped(words, then="  ")]
    parts = [table(COLUMNS, map(cells, rungs)), "\n".join(wrapped(LEGEND)), "\n".join(why)]
    return "\n\n".join(part for part in (*parts, answer(calibration)) if part)


def answer(calibration: Calibration) -> str:
    return "\n".join(wrapped(answer_words(calibration)))


def answer_words(calibration: Calibration) -> str:
    """Up to which load the stamps are right."""
    found = "; ".join(f"{NAMES[pattern]} {_up_to(calibration.usable(pattern))}" for pattern in PATTERNS)
    return f"p99 error under {LIMIT_MS:g} ms: {found}"


def _up_to(rungs: Sequence[Rung]) -> str:
    """The highest that was ok, and those below it that were not: a hiccup of the machine hits any load."""
    top = max((i for i, rung in enumerate(rungs) if rung.verdict == "ok"), default=None)
    if top is None:
        return "at no load that was tried"
    others = ", ".join(f"{rung.streams:,}" for rung in rungs[:top] if rung.verdict != "ok")
    but = f" (but not at {others})" if others else ""
    return f"up to {load(rungs[top].streams, rungs[top].tokens_per_s)}{but}"


def cells(rung: Rung) -> list[str]:
    lag = rung.send_lag_p99_ms
    return [
        rung.pattern,
        f"{rung.streams}",
        f"{rung.tokens_per_s:.0f}",
        *(_error(rung.first_ms, name) for name in ("p50", "p99", "max")),
        _error(rung.token_ms, "p99"),
        percent(rung.upper_bound_share, 1),
        DASH if lag is None else f"{lag:.1f}",
        percent(rung.cpu_share),
        rung.verdict,
    ]


def _error(found: Distribution | None, name: str) -> str:
    return ms(getattr(found, name) if found else None)


def reasons(rung: Rung) -> list[str]:
    """Why it was not ok, in a line, if it was not."""
    if not rung.reasons:
        return []
    who = "; the mock cannot go higher" if rung.verdict == "server-limited" else ""
    streams = f"{rung.streams:,} {'stream' if rung.streams == 1 else 'streams'}"
    return [f"{rung.pattern}, {streams}: {'; '.join(rung.reasons)}{who}"]
