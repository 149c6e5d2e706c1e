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
from reports.text import CENSORED, DASH, LATENCIES, PERCENTILES, RESTS, instrument, marked, ms, number

ENDS = ("completed", "failed", "cancelled", "rejected", "unfinished", "not_sent")
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
    """How it ended, and what speaks against its figures."""
    yield accounting(summary)
    client = summary["client"]
    if client and client["client_limited"]:
        yield f"CLIENT-LIMITED: {'; '.join(client['reasons'])}"
    if summary["scheduled"] and not summary["completed"]:
        yield "NOTHING COMPLETED"
    if not summary["complete"]:
        yield "NOT COMPLETE: interrupted" if info.interrupted else "NOT COMPLETE"
    if steady := stability(summary["stability"]):
        yield steady
    if client:
        yield instrument(client)


def accounting(summary: dict[str, Any]) -> str:
    """The sum that adds up."""
    parts = [f"{summary[name]} {name.replace('_', ' ')}" for name in ENDS if summary[name]]
    lost = f" ({summary['without_row']} of them without a row)" if summary["without_row"] else ""
    return f"{summary['scheduled']} scheduled = {' + '.join(parts) or 'none'}{lost}"


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
        yield "left out", f"{trim['left_out']} requests of warm-up and cool-down"
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
