"""Runs as Markdown, short enough for an issue or a pull request. Values in, lines out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ledgers.required import unproven
from ledgers.rundir import RunInfo
from reports.certainty_text import stability
from reports.forms import Shown
from reports.markdown import bullets, escaped, joined, table
from reports.required_text import found_words, heading
from reports.tables import DASH, ms, number
from reports.text import (
    ATTEMPTS,
    CENSORED,
    LATENCIES,
    PERCENTILES,
    RESTS,
    counts,
    instrument,
    left_out,
    marked,
    verdict,
)

RATES = {
    "throughput_rps": "throughput, req/s",
    "goodput_rps": "goodput, req/s",
    "token_throughput_tps": "output, tokens/s",
    "concurrency_mean": "L mean",
    "concurrency_peak": "L peak",
    "kv_peak_tokens": "KV peak, tokens",
}


def lines(runs: Sequence[Shown], detailed: bool) -> Iterator[str]:
    for place, shown in enumerate(runs):
        yield ("\n" if place else "") + run_markdown(shown)


def run_markdown(shown: Shown) -> str:
    """What was run and whether it is worth anything, the figures, what failed, what was required."""
    info, summary = shown.run.info, shown.summary
    required = [found_words(each) for each in shown.judged]
    title = f"## {escaped(str(shown.run.path))}: {info.kind} {escaped(info.ledger.name)}"
    return joined(
        [
            title,
            bullets(standing(info, summary)),
            table(("setting", "value"), settings(info, summary), "ll"),
            _latencies(summary),
            table(("figure", "value"), _rates(summary)),
            _titled("Failures", [_failure(failure) for failure in summary["failures"]]),
            _titled(heading(unproven=unproven(summary)), required),
            _titled("Notes", [*summary["warnings"], *info.notes, *shown.run.notes]),
        ]
    )


def standing(info: RunInfo, summary: dict[str, Any]) -> Iterator[str]:
    """Whether its figures may be believed, and how it ended."""
    yield f"verdict: {verdict(info, summary)}"
    yield counts(summary)
    if summary["retries"]:
        yield ATTEMPTS
    if steady := stability(summary["stability"]):
        yield steady
    if client := summary["client"]:
        yield instrument(client)


def settings(info: RunInfo, summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What one needs to know to read the figures."""
    config, hardware, slo = info.config, info.config.hardware, info.config.slo
    if config.base_url:
        yield "server", f"{config.model or 'a model'} at {config.base_url}"
    if config.policy and hardware:
        machine = f"{hardware.decode_slots} slots, ticks of {hardware.tick_s * 1000:g} ms"
        yield "policy", f"{config.policy}, {machine}"
    if config.request_rate:
        yield "request rate", f"{config.request_rate:g} req/s"
    if cap := config.extra.get("max_concurrency"):
        yield "at a time", f"{cap}"
    bounds = (("TTFT", slo.ttft_ms), ("TPOT", slo.tpot_ms), ("E2E", slo.e2e_ms))
    if slo.given:
        yield "SLO", ", ".join(f"{name} {bound:g} ms" for name, bound in bounds if bound is not None)
    yield "window", f"{summary['window_s']:.2f} s"
    if trim := summary["trim"]:
        yield "left out", left_out(trim)
    yield "tokentick", info.version
    yield from config.metadata.items()


def _latencies(summary: dict[str, Any]) -> str:
    rows = [
        [name, *(marked(summary, key, statistic, found) for statistic in PERCENTILES), str(found["n"])]
        for key, name in LATENCIES.items()
        if (found := summary[key]) and (key != "ttfc_ms" or summary["reasoning"]["requests"])
    ]
    if not rows:
        return ""
    signs = "".join(cell for row in rows for cell in row)
    legend = [escaped(line) for line in (CENSORED, RESTS) if line[0] in signs]
    return joined([table(("ms", *PERCENTILES, "n"), rows), "  \n".join(legend)])


def _rates(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key, name in RATES.items():
        if (value := number(summary[key])) != DASH:
            yield name, value
    if summary["attainment"] is not None:
        yield "attainment", f"{summary['attainment']:.1%}"


def _failure(failure: dict[str, Any]) -> str:
    phase = f" in {failure['phase']}" if failure["phase"] else ""
    after_ms = failure["after_send_p50_ms"]
    after = "" if after_ms is None else f", {ms(after_ms)} ms after the send"
    return f"{failure['count']} {failure['outcome']}{phase}{after}: {failure['error'] or 'no message'}"


def _titled(title: str, found: Sequence[str]) -> str:
    return f"{title}:\n\n{bullets(found)}" if found else ""
