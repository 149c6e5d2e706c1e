"""`tokentick report RUN --html FILE`: all that is known of one run, on one page."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ledgers.rundir import Run, RunConfig, RunInfo
from reports.certainty_text import stability
from reports.charts import Chart, Table
from reports.diagnose import read_facts
from reports.diagnosis import Diagnosis, diagnose
from reports.diagnosis_facts import facts_of
from reports.diagnosis_text import NOTHING, figure_value, finding_title, looked_at, ttft_split
from reports.page import Section, render
from reports.run_charts import (
    failures_over_time,
    latency_over_time,
    percentile_charts,
    request_timeline,
)
from reports.run_rows import RunRows
from reports.run_state_charts import TickColumns, client_charts, in_flight_chart, kv_chart, server_chart
from reports.tables import DASH, ms, shortened
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
    rates,
    verdict,
)

LONGEST = 400  # characters of what a server, a file or a shell said
BY_CLASS = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2e_ms": "E2E"}
COUNTED = (*PERCENTILES, "n")


def run_page(run: Run, summary: dict[str, Any], text: str, against: Path | None = None) -> str:
    """The page of a run. `text` is what a terminal is told."""
    baseline = read_facts(against) if against else None
    diagnosis = diagnose(facts_of(run, summary), baseline)
    rows, ticks = RunRows(run, summary), TickColumns(run.ticks())
    config = run.info.config
    state = [in_flight_chart(rows, ticks, summary, config), server_chart(summary)]
    state += [kv_chart(ticks, config.hardware) if config.hardware else None, failures_over_time(rows)]
    client = summary["client"]
    health = client_charts(list(run.health()), client) if client else []
    timeline = request_timeline(rows, measured=run.info.kind == "measured")
    sections = [
        Section("Verdict", _verdict(run.info, summary), _summary_tables(summary)),
        Section("What was run", tables=[_settings(run.info)]),
        Section(
            "Latency", charts=[*percentile_charts(rows, summary), *_there(latency_over_time(rows, summary))]
        ),
        Section("Load", charts=_there(*state)),
        Section("Requests", charts=_there(timeline)),
        Section("Client", [instrument(client)] if client else [], charts=health),
        _diagnosis_section(diagnosis, against),
        Section("Notes", [*_notes(run, summary)]),
        Section("As text", text=text),
    ]
    return render(_name(run.info), [section for section in sections if any(section[1:])])


def _there(*charts: Chart | None) -> list[Chart]:
    return [chart for chart in charts if chart]


def _name(info: RunInfo) -> str:
    under = f", {info.config.policy}" if info.config.policy else ""
    ledger = f"{shortened(info.ledger.name, LONGEST)}, " if info.ledger.name != info.kind else ""
    return f"{ledger}{info.kind}{under}"


def _verdict(info: RunInfo, summary: dict[str, Any]) -> list[str]:
    """Whether the figures can be relied on, what became of the requests, and the rates."""
    said = [_sentence(verdict(info, summary)), f"{counts(summary)}."]
    said += [_sentence(ATTEMPTS)] if summary["retries"] else []
    said += [f"{left_out(summary['trim'])}."] if summary["trim"] else []
    if steady := stability(summary["stability"]):
        said.append(_sentence(_joined(steady)))
    if summary["censored"]:
        said.append(f"{CENSORED}.")
    if any(summary["rests_on_largest"].values()):
        said.append(f"{RESTS}: there are too few for that percentile.")
    return [*said, _joined(rates(summary), " | ")]


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:].removesuffix('.')}."


def _joined(lines: str, joint: str = " ") -> str:
    """Lines that were wrapped for a terminal as one."""
    return joint.join(line.strip() for line in lines.splitlines())


def _summary_tables(summary: dict[str, Any]) -> list[Table]:
    tables = [_latencies(summary), _failures(summary), _classes(summary)]
    return [table for table in tables if table.rows]


def _latencies(summary: dict[str, Any]) -> Table:
    body = []
    for key, name in LATENCIES.items():
        found = summary.get(key)
        if found and (key != "ttfc_ms" or summary["reasoning"]["requests"]):
            body.append([name, *(marked(summary, key, p, found) for p in PERCENTILES), f"{found['n']:,}"])
    if summary["censored"]:
        for key, found in summary["kaplan_meier"].items():
            if found and found["p50"] is not None:
                cells = (ms(found[p]) if p in found else DASH for p in PERCENTILES)
                body.append([f"{LATENCIES[key]}, estimate of all", *cells, f"{found['n']:,}"])
    return Table(["ms", *COUNTED], body)


def _failures(summary: dict[str, Any]) -> Table:
    body = [
        [
            failure["outcome"],
            f"{failure['count']:,}",
            failure["phase"] or DASH,
            ms(failure["after_send_p50_ms"]),
            shortened(failure["error"] or DASH, LONGEST)
            + (f" (and {failure['alike']:,} alike)" if failure["alike"] else ""),
        ]
        for failure in summary["failures"]
    ]
    return Table(["failure", "requests", "phase", "p50 after the send, ms", "error"], body)


def _classes(summary: dict[str, Any]) -> Table:
    """Empty if there are not two."""
    classes = summary["by_class"]
    head = ["class", "requests", "completed"]
    head += [f"{name} {p}, ms" for name in BY_CLASS.values() for p in ("p50", "p99")]
    body = []
    for name, found in classes.items() if len(classes) > 1 else ():
        times = [
            marked(found, key, p, found[key]) if found[key] else DASH
            for key in BY_CLASS
            for p in ("p50", "p99")
        ]
        met = DASH if found["attainment"] is None else f"{found['attainment']:.1%}"
        counts = [f"{found['scheduled']:,}", f"{found['completed']:,}"]
        body.append([shortened(name, LONGEST), *counts, *times, met])
    return Table([*head, "attainment"], body)


def _settings(info: RunInfo) -> Table:
    """What was asked for, as `run.json` has it; what has no meaning for the run is left out."""
    pairs = [
        ("run", info.kind),
        ("ledger", info.ledger.name),
        ("planned requests", f"{info.ledger.requests:,}" if info.ledger.requests else None),
        ("sha256 of its rows", info.ledger.sha256),
        *_config(info.config),
        ("stamps", info.clock.stamp_source),
        *((f"target: {key.replace('_', ' ')}", str(value)) for key, value in (info.target or {}).items()),
        *((f"metadata: {key}", value) for key, value in info.config.metadata.items()),
        ("command", shlex.join(info.command)),
        ("host", ", ".join(f"{key} {value}" for key, value in info.host.items())),
        ("started", info.started_at),
        ("version", f"{info.tool} {info.version}"),
    ]
    return Table(["setting", "value"], [[name, shortened(value, LONGEST)] for name, value in pairs if value])


def _config(config: RunConfig) -> Iterator[tuple[str, str | None]]:
    most = config.extra.get("max_concurrency")
    yield from (("server", config.base_url), ("endpoint", config.endpoint), ("model", config.model))
    yield "rate", f"{config.request_rate:g} requests per s" if config.request_rate else None
    yield from (("arrivals", config.arrival), ("stages", config.stages))
    yield "speed", f"{config.speed:g}" if config.speed not in (None, 1) else None
    yield "at a time", f"{most}" if most else None
    yield "policy", config.policy
    yield "max batch", str(config.max_batch) if config.max_batch else None
    yield "max wait", f"{config.max_wait_s:g} s" if config.max_wait_s is not None else None
    yield "prefill chunk", f"{config.prefill_chunk} tokens" if config.prefill_chunk else None
    if hardware := config.hardware:
        yield (
            "hardware",
            f"ticks of {hardware.tick_s * 1000:g} ms, "
            f"{hardware.prefill_tokens_per_tick:,} prefill tokens per tick, "
            f"{hardware.decode_slots:,} decode slots, {hardware.kv_budget_tokens:,} KV tokens",
        )
    bounds = {"TTFT": config.slo.ttft_ms, "TPOT": config.slo.tpot_ms, "E2E": config.slo.e2e_ms}
    yield "SLO", ", ".join(f"{name} {bound:g} ms" for name, bound in bounds.items() if bound is not None)
    yield "tail", config.tail_s if isinstance(config.tail_s, str) else f"{config.tail_s:g} s"
    yield "seed", None if config.seed is None else str(config.seed)


def _diagnosis_section(found: Diagnosis, against: Path | None) -> Section:
    said = [f"Against {against.resolve().name}."] if against else []
    if found.ttft:
        said.append(f"Where TTFT went, on average: {ttft_split(found.ttft)}.")
    if not found.findings:
        said.append(NOTHING)
    parts = [
        Section(
            finding_title(finding),
            [f"Cannot tell: {finding.cannot_tell}"],
            [Table(["evidence", "value"], [[each.name, figure_value(each)] for each in finding.evidence])],
        )
        for finding in found.findings
    ]
    return Section("Diagnosis", said, parts=[*parts, Section("What was looked at", looked_at(found))])


def _notes(run: Run, summary: dict[str, Any]) -> Sequence[str]:
    warnings = [f"Warning: {warning}" for warning in summary["warnings"]]
    return [shortened(note, 2 * LONGEST) for note in (*warnings, *run.info.notes, *run.notes)]
