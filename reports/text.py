"""What is said of one run, for a terminal of 80 columns, readable without colour. Values in, lines out.

† marks a figure over the completed requests of a window in which some did not complete. * marks a percentile
that rests on the largest sample, for there are too few.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ledgers.deliveries import requests
from ledgers.rows import RequestRow
from ledgers.rundir import RunInfo
from ledgers.summary import kept_ns
from reports.requests_text import request_table
from reports.tables import DASH, joined, ms, number, table, wrapped

LONG_DRAIN = 0.1  # of the window
LEAST_BEFORE_DRAIN = 10  # requests that must have completed by then for a rate of them
SLOW_UPLOAD_MS = 5
STARVED_SHARE = 0.05  # of a second, from which on it is worth a word
LEAST_ERROR_MS = 0.01  # what two digits can say
CENSORED = "† not all completed in the window: the figure is over those that did"
RESTS = "* rests on the largest sample"
ATTEMPTS = "every attempt counts here and in attainment; estimates count requests"
LATENCIES = {
    "held_ms": "held back",
    "queue_delay_ms": "queue delay",
    "ttft_ms": "TTFT",
    "ttfc_ms": "TTFC",
    "ttft_from_send_ms": "TTFT from send",
    "tpot_ms": "TPOT",
    "itl_ms": "ITL",
    "e2e_ms": "E2E",
    "send_lag_ms": "send lag",
}
PERCENTILES = ("p50", "p90", "p95", "p99", "max", "mean")
KINDS = ("prompt", "output")
UNCENSORED = ("send_lag_ms",)  # the generator's own, over every request sent


def heading(info: RunInfo, summary: dict[str, Any]) -> str:
    """What was run, in one or two lines."""
    config = info.config
    parts = [f"{info.kind} {info.ledger.name}"]
    if config.model and info.kind == "measured":
        parts.append(f"{config.model} at {config.base_url}")
    if config.request_rate:
        parts.append(f"{config.request_rate:g} req/s")
    if config.closed_loop:
        parts.append(f"{config.extra.get('max_concurrency')} at a time")
    if config.policy and config.hardware:
        hardware = config.hardware
        parts.append(f"policy {config.policy}")
        parts.append(f"{hardware.decode_slots} slots, ticks of {hardware.tick_s * 1000:g} ms")
    parts.append(f"window {summary['window_s']:.2f} s")
    bounds = [
        f"{name} {bound:g}"
        for name, bound in (
            ("ttft", config.slo.ttft_ms),
            ("tpot", config.slo.tpot_ms),
            ("e2e", config.slo.e2e_ms),
        )
        if bound is not None
    ]
    if bounds:
        parts.append(f"SLO {' '.join(bounds)} ms")
    if info.clock.stamp_source:
        parts.append(f"{info.clock.stamp_source} stamps")
    if summary["scheduled"] and not summary["completed"]:
        parts.append("NOTHING COMPLETED")
    if not summary["complete"]:
        parts.append("NOT COMPLETE")
    if info.interrupted:
        parts.append("interrupted")
    return joined(parts)


def verdict(info: RunInfo, summary: dict[str, Any]) -> str:
    """Whether the figures may be believed, and what they are figures of."""
    client = summary["client"]
    against = ["it was cut short or has lost rows"] if not summary["complete"] else []
    if summary["scheduled"] and not summary["completed"]:
        against.append("nothing completed")
    if client and client["client_limited"]:
        against.append("CLIENT-LIMITED: " + "; ".join(client["reasons"]))
    if against:
        return f"NOT VALID, {'; '.join(against)}"
    facts = ["interrupted, so of the time up to there"] if info.interrupted else []
    facts += ["the client kept up"] if client else []
    facts += [_censoring(summary), *_load(summary["stability"])]
    return f"valid; {'; '.join(facts)}"


def _censoring(summary: dict[str, Any]) -> str:
    """Latencies of which requests: it can make a bad server look good."""
    others = summary["scheduled"] - summary["completed"]
    if summary["censored"]:
        return f"{others} of {summary['scheduled']} did not complete (†)"
    return f"all completed but {others} rejected" if others else "all completed"


def _load(stability: dict[str, Any] | None) -> list[str]:
    if stability is None:
        return []
    words = {
        "steady": "load steady",
        "growing": "the number in flight GREW",
        "overload": "OVERLOAD: the queue grew to the end",
        "undetermined": "steadiness not known",
    }
    return [words[stability["verdict"]]]


def counts(summary: dict[str, Any]) -> str:
    """The sum that always adds up."""
    lost = summary["without_row"]
    found = {name: summary[name] for name in ("completed", "failed", "cancelled", "rejected", "unfinished")}
    found["unfinished"] -= lost
    found |= {"without a row": lost, "not sent": summary["not_sent"]}
    parts = " + ".join(f"{count:,} {name}" for name, count in found.items() if count)
    retries = f" ({summary['retries']:,} of them retries)" if summary["retries"] else ""
    return f"{summary['scheduled']:,} scheduled{retries} = {parts or 'none'}"


def accounting(info: RunInfo, summary: dict[str, Any]) -> str:
    """What became of all requests, with the failures by class."""
    lost = summary["without_row"]
    lines = wrapped(counts(summary), then="  ")
    if summary["retries"]:
        lines.append(f"  {ATTEMPTS}")
    if summary["trim"]:
        lines += wrapped(left_out(summary["trim"]), first="  ", then="    ")
    if lost:
        lines += wrapped(_lost(lost, killed=not info.complete), first="  ", then="    ")
    for failure in summary["failures"]:
        lines += _failure_lines(failure)
    if (sessions := summary["sessions"]) and sessions["whole"] is not None:
        lines.append(f"  of {sessions['count']} sessions every turn completed in {sessions['whole']}")
    if summary["failed_tokens"]:
        lines.append(f"  {summary['failed_tokens']} tokens of failed requests are in no figure below")
    if summary["censored"] and summary["completed"]:
        lines.append(CENSORED)
    return "\n".join(lines)


def left_out(trim: dict[str, Any]) -> str:
    """How many requests are in no figure, and by which rule."""
    sides = (("first", trim["begin_s"]), ("last", trim["cooldown_s"]))
    spans = " or ".join(f"the {which} {span:g} s" for which, span in sides if span)
    rule = ""
    if trim["warmup"] == "auto":
        rule = " (warm-up by MSER-5)" if trim["settled"] else "; NO END OF A WARM-UP FOUND (MSER-5)"
    return f"{trim['left_out']} more left out{f', which arrived in {spans}' if spans else ''}{rule}"


def _lost(count: int, *, killed: bool) -> str:
    why = "in flight or not sent when the run was killed" if killed else "requests.jsonl has lost them"
    return f"{count} without a row: {why}; what would need their times is left out"


def _failure_lines(failure: dict[str, Any]) -> list[str]:
    """At most two lines of what may be long, and how many more there are that differ in numbers."""
    lines = wrapped(_failure(failure), first="  ", then="    ", most=2)
    if failure["alike"]:
        lines += wrapped(f"{lines.pop().strip()} (and {failure['alike']} alike)", first="    ", then="    ")
    return lines


def _failure(failure: dict[str, Any]) -> str:
    after_ms = failure["after_send_p50_ms"]
    median = "p50 " if failure["count"] > 1 else ""
    return (
        f"{failure['count']} {failure['outcome']}"
        + (f" in {failure['phase']}" if failure["phase"] else "")
        + ("" if after_ms is None else f", {median}{ms(after_ms)} ms after the send")
        + (f": {failure['error']}" if failure["error"] else "")
    )


def latency_table(summary: dict[str, Any]) -> str:
    """Percentiles lead, the mean comes last; all in ms. Empty if there is none."""
    rows = []
    for key, name in LATENCIES.items():
        found = summary.get(key)
        if found and (key != "ttfc_ms" or summary["reasoning"]["requests"]):
            cells = [marked(summary, key, p, found) for p in PERCENTILES]
            rows.append([name, *cells, str(found["n"])])
    if summary["censored"]:
        rows += _estimates(summary["kaplan_meier"])
    if not rows:
        return ""
    marks = any("*" in cell for row in rows for cell in row)
    text = table(["ms", *PERCENTILES, "n"], rows)
    return f"{text}\n{RESTS}" if marks else text


def _estimates(found: dict[str, Any]) -> Iterator[list[str]]:
    """Kaplan-Meier rows: what the percentiles are likely to be once all have ended."""
    for key, estimate in found.items():
        if estimate and estimate["p50"] is not None:
            cells = [ms(estimate[name]) if name in estimate else DASH for name in PERCENTILES]
            yield [f"{LATENCIES[key]}, estimate", *cells, str(estimate["n"])]


def marked(summary: dict[str, Any], key: str, name: str, found: dict[str, float]) -> str:
    censored = "†" if summary["censored"] and key not in UNCENSORED else ""
    few = "*" if name in summary["rests_on_largest"].get(key, ()) else ""
    return ms(found[name]) + few + censored


def rates(summary: dict[str, Any]) -> str:
    """Throughput, goodput, concurrency and what else is one figure."""
    pairs = [
        ("throughput", _with(summary["throughput_rps"], "req/s")),
        ("until the last arrival", _with(_undiluted(summary), "req/s")),
        ("output", _with(summary["token_throughput_tps"], "tokens/s")),
        ("goodput", _with(summary["goodput_rps"], "req/s")),
        ("attainment", DASH if summary["attainment"] is None else f"{summary['attainment']:.1%}"),
        ("L mean", number(summary["concurrency_mean"])),
        ("L peak", number(summary["concurrency_peak"])),
        ("KV peak", _kv(summary)),
        ("batch utilization", number(summary["batch_utilization"])),
    ]
    return joined([f"{name} {value}" for name, value in pairs if value != DASH])


def _undiluted(summary: dict[str, Any]) -> float | None:
    """The throughput without the drain, where that makes a difference, and enough completed before it."""
    drain_s = summary["window_s"] - summary["arrivals_s"]
    few = (summary["completed_by_last_arrival"] or 0) < LEAST_BEFORE_DRAIN
    return None if few or drain_s <= LONG_DRAIN * summary["window_s"] else summary["throughput_arrivals_rps"]


def deliveries(summary: dict[str, Any]) -> str:
    """What the server delivered, held against what was asked."""
    found = {kind: _as_planned(summary["lengths"][kind]) for kind in KINDS if summary["lengths"][kind]}
    same = len(found) == len(KINDS) and len(set(found.values())) == 1
    told = {" and ".join(KINDS): found[KINDS[0]]} if same else found
    lines = [line for kind, how in told.items() for line in wrapped(f"{kind} tokens {how}", then="  ")]
    cached, reasoning = summary["cached_tokens_share"], summary["reasoning"]
    facts = []
    if set(summary["token_sources"]) - {"usage"}:
        facts.append(f"tokens counted by {', '.join(summary['token_sources'])}")
    if summary["choices"]:
        facts.append(_choices(summary["choices"]))
    if cached is not None:
        facts.append(f"{cached:.1%} of the prompt tokens cached")
    if reasoning["requests"]:
        tokens = "" if reasoning["tokens"] is None else f", {reasoning['tokens']} tokens"
        facts.append(f"reasoning in {requests(reasoning['requests'])}{tokens}")
    return "\n".join(line for line in [*lines, joined(facts)] if line)


def _choices(found: dict[str, int]) -> str:
    span = f"{found['min']}" if found["min"] == found["max"] else f"{found['min']} to {found['max']}"
    return f"{span} choices per request"


def _as_planned(found: dict[str, Any]) -> str:
    n, equal = found["n"], found["as_planned"]
    everyone = "the one request" if n == 1 else f"all {n} requests"
    if n == equal:
        return f"as planned in {everyone}"
    least, most = (
        f"{found[name]:+d}" if found[name] else "0" for name in ("min_difference", "max_difference")
    )
    if least == most:
        return f"off by {least} in {everyone}"
    off = f"off by {least} to {most}, on average {found['mean_difference']:+.1f}"
    return f"as planned in {equal or 'none'} of {n} requests; {off}"


def client_health(client: dict[str, Any], *, held: bool = False) -> str:
    """Whether the load generator did what was asked of it, in a line or two.

    Where requests were held back, they may leave in bursts that nobody asked for.
    """
    cpu, several = client["cpu_share_mean"], client["reads_with_several_events_share"]
    pairs = [
        ("asked", _with(client["asked_rps"], "req/s")),
        ("sent", _with(client["achieved_rps"], "req/s")),
        ("CPU", DASH if cpu is None else f"{cpu:.1%} of a core"),
        ("waits for a core up to", _starved(client["starved_share_max"])),
        ("loop lag max", _with(_longest_ms(client["loop_lag_max_ms"]), "ms")),
        ("reads with several tokens", DASH if several is None else f"{several:.1%}"),
        ("waits for a connection up to", _with(_longest_ms(client["connect_wait_ms"], 1), "ms")),
        ("uploads up to", _with(_longest_ms(client["upload_ms"], SLOW_UPLOAD_MS), "ms")),
        ("most sent in 100 ms", number(client["most_sent_in_100_ms"]) if held else DASH),
    ]
    return joined([f"{name} {value}" for name, value in pairs if value != DASH])


def instrument(client: dict[str, Any]) -> str:
    """How exact the load generator is at the load of this run, as far as that is known."""
    found = client["instrument"]
    if client["client_limited"]:
        return "instrument: no word on these figures, for the client was the limit"
    if found is None:
        return "instrument: not calibrated on this machine (tokentick calibrate)"
    up_to = load(found["calibrated_streams"], found["calibrated_tokens_per_s"])
    calibrated = f"calibrated {found['calibrated_at'][:10]} up to {up_to}"
    if found["within"] is None:
        return f"instrument: {calibrated}; how much load this was is not known"
    if not found["within"]:
        asked = load(found["load_streams"], found["load_tokens_per_s"])
        return f"warning: instrument: {asked} are more than it was calibrated for ({calibrated})"
    ttft, every = (ms(max(found[f"{of}error_p99_ms"], LEAST_ERROR_MS)) for of in ("", "token_"))
    return f"instrument: TTFT right to {ttft} ms, every token to {every} (p99) at this load ({calibrated})"


def load(streams: int, tokens_per_s: float) -> str:
    return f"{streams:,} {'stream' if streams == 1 else 'streams'}, {tokens_per_s:,.0f} tokens/s"


def _starved(share: float | None) -> str:
    return DASH if share is None or share < STARVED_SHARE else f"{share:.0%} of a second"


def _longest_ms(worst: dict[str, float] | None, above: float = 0) -> float | None:
    """The largest, if it is above what is worth a word."""
    return worst["max"] if worst and worst["max"] > above else None


def _kv(summary: dict[str, Any]) -> str:
    tokens, mb = summary["kv_peak_tokens"], summary["kv_peak_mb"]
    return DASH if tokens is None else f"{tokens} cached tokens ({mb:g} MB)"


def littles_law(summary: dict[str, Any]) -> str:
    """L against throughput times mean E2E; why they need not be equal, where that is so."""
    law = summary["littles_law"]
    if law is None:
        return ""
    applies = "applies" if law["applies"] else "does not apply"
    head = f"Little's law {applies}: L {number(law['concurrency_mean'])}, X * W {number(law['product'])}"
    if law["applies"]:
        return head
    reasons = (line for reason in law["reasons"] for line in wrapped(reason, first="  ", then="    "))
    return "\n".join([head, *reasons])


def _with(value: float | None, unit: str) -> str:
    return DASH if value is None else f"{number(value)} {unit}"


def run_text(
    info: RunInfo,
    summary: dict[str, Any],
    rows: Sequence[RequestRow] | None,
    notes: Sequence[str] = (),
    *,
    server: str = "",
    certainty: str = "",
) -> str:
    """All that is said of one run: what it was, how it went, and each request if they are few.

    `notes` are those of whoever read the run's files, `server` what there is of the server's own metrics,
    `certainty` how well the figures are known.
    """
    said = "\n".join(wrapped(f"verdict: {verdict(info, summary)}", then="  "))
    told = f"{said}\n{accounting(info, summary)}"
    figures = "\n".join(filter(None, (rates(summary), littles_law(summary))))
    blocks = [heading(info, summary), told, latency_table(summary), figures, certainty]
    client = summary["client"]
    if client:
        health = client_health(client, held=summary["held_ms"] is not None)
        about = (deliveries(summary), health, _paragraph(instrument(client)))
        blocks.append("\n".join(filter(None, about)))
    blocks.append(server)
    blocks.append("\n".join(_paragraph(f"warning: {warning}") for warning in summary["warnings"]))
    blocks.append("\n".join(_paragraph(f"note: {note}") for note in (*info.notes, *notes)))
    if rows is not None:
        blocks.append(request_table(rows, info.config.slo, kept_ns(summary)[2]))
    return "\n\n".join(block for block in blocks if block)


def _paragraph(text: str) -> str:
    return "\n".join(wrapped(text))
