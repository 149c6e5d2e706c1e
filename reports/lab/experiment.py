"""The experiment: the toy ledger under four policies, on a virtual clock, with all that a page shows of it.

Every number is the scheduler's, or one of `ledgers.summary`; None where it is not defined. Nothing touches
the disk.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ledgers.health import HealthSample
from ledgers.ledger import Ledger
from ledgers.load import TOY, load_ledger
from ledgers.metrics import completed_by, e2e_ns, meets, queue_delay_ns, tpot_ns, ttft_ns
from ledgers.rows import RequestRow, TickRow
from ledgers.rundir import LedgerInfo, Run, RunConfig, RunInfo, settings_config
from ledgers.server_metrics import ServerSample
from ledgers.settings import Slo
from ledgers.summary import kept_ns, summarize
from ledgers.units import NS_PER_MS
from mock_server.policies import make_scheduler
from mock_server.simulate import simulate
from reports.lab.setting import POLICIES, Setting, SettingError
from reports.lab.states import Floor, State
from reports.lab.waits import Wait, totals, waits

MOST_TICKS = 3_000
KEPT_EXPERIMENTS = 32


class Simulation(Run):
    """A run that was never written: what a run directory would hold."""

    def __init__(self, info: RunInfo, rows: Sequence[RequestRow], ticks: Sequence[TickRow]) -> None:
        self.path = Path("simulation")
        self.info = info
        self.notes = []
        self._rows, self._ticks = rows, ticks

    def rows(self) -> Iterator[RequestRow]:
        return iter(self._rows)

    def ticks(self) -> Iterator[TickRow]:
        return iter(self._ticks)

    def health(self) -> Iterator[HealthSample]:
        return iter(())

    def server_metrics(self) -> Iterator[ServerSample]:
        return iter(())


def experiment(setting: Setting) -> dict[str, Any]:
    """What the API answers. SettingError if it takes more ticks than there may be."""
    hardware = setting.machine()
    return {
        "setting": setting.to_json(),
        "query": setting.query(),
        "tick_ms": setting.tick_ms,
        "kv_budget_tokens": hardware.kv_budget_tokens,
        "decode_slots": hardware.decode_slots,
        "prefill_tokens_per_tick": hardware.prefill_tokens_per_tick,
        "slo_ms": setting.slo,
        "policies": four_policies(setting._replace(policy=POLICIES[0], lang=None)),
    }


@lru_cache(KEPT_EXPERIMENTS)
def four_policies(setting: Setting) -> list[dict[str, Any]]:
    """The same for every policy in focus and in every language."""
    ledger = toy(setting)
    return [_of_policy(setting, policy, ledger) for policy in POLICIES]


def toy(setting: Setting) -> Ledger:
    return load_ledger(TOY, request_rate=setting.request_rate())


def simulation(setting: Setting, policy: str, ledger: Ledger) -> Simulation:
    """SettingError if it takes more ticks than there may be."""
    ticks: list[TickRow] = []

    def on_tick(row: TickRow) -> None:
        if row.tick >= MOST_TICKS:
            message = f"this takes more than {MOST_TICKS:,} ticks: a longer tick, or a higher rate"
            raise SettingError(None, message, "too_many_ticks", most=MOST_TICKS)
        ticks.append(row)

    scheduler = setting.scheduler(policy)
    found = simulate(make_scheduler(scheduler), ledger.rows, on_tick=on_tick, record_events=True)
    rows = list(found)
    info = RunInfo(
        kind="simulated",
        config=settings_config(RunConfig(request_rate=setting.rate), scheduler, setting.window()),
        ledger=LedgerInfo(name=ledger.name, requests=len(ledger.rows)),
        complete=True,
    )
    return Simulation(info, rows, ticks)


def _of_policy(setting: Setting, policy: str, ledger: Ledger) -> dict[str, Any]:
    run = simulation(setting, policy, ledger)
    summary = summarize(run)
    rows = {row.id: row for row in run.rows()}
    floor = Floor(policy)
    states = [floor.after(tick) for tick in run.ticks()]
    each = list(waits(states, setting.scheduler(policy), rows))
    waited = totals(each)
    t_obs_ns, slo = kept_ns(summary)[2], setting.window().slo
    return {
        "policy": policy,
        "summary": summary,
        "figures": _figures(summary, rows),
        "requests": [
            {**_request(rows[planned.id], t_obs_ns, slo), "waits_for": waited.get(planned.id, [])}
            for planned in ledger.rows
        ],
        "ticks": [_tick(state, found, setting) for state, found in zip(states, each, strict=True)],
    }


def _tick(state: State, found: list[Wait], setting: Setting) -> dict[str, Any]:
    return {**state.to_json(setting.machine().tick_ns), "waits": [wait.to_json() for wait in found]}


def _figures(summary: dict[str, Any], rows: dict[str, RequestRow]) -> dict[str, Any]:
    """The few of a summary that stand side by side."""
    named = {
        f"{name}_{percentile}_ms": summary[f"{name}_ms"] and summary[f"{name}_ms"][percentile]
        for name in ("queue_delay", "ttft", "tpot", "e2e")
        for percentile in ("p50", "p95")
    }
    return {
        **{name: summary[name] for name in ("attainment", "slo_met", "goodput_rps", "throughput_rps")},
        **named,
        **{name: summary[name] for name in ("completed", "unfinished", "censored", "kv_peak_tokens")},
        "window_s": summary["window_s"],
        "makespan_s": makespan_ns(rows.values()) / 1e9,
    }


def makespan_ns(rows: Collection[RequestRow]) -> int:
    """From the first arrival to the last token of all."""
    return max(row.end_ns or 0 for row in rows) - min(row.arrival_ns or 0 for row in rows)


def _request(row: RequestRow, t_obs_ns: int, slo: Slo) -> dict[str, Any]:
    completed = completed_by(row, t_obs_ns)
    return {
        "id": row.id,
        "class": row.class_,
        "arrival_ms": _ms(row.arrival_ns),
        "prompt_tokens": row.prompt_tokens,
        "output_tokens": row.output_tokens,
        "queue_delay_ms": _ms(queue_delay_ns(row)),
        "ttft_ms": _ms(ttft_ns(row)),
        "tpot_ms": _ms(tpot_ns(row)),
        "e2e_ms": _ms(e2e_ns(row)),
        "censored": not completed,
        "met_slo": completed and meets(row, slo.bounds_ns()),
        "phases": {
            "received_ms": _ms(row.received_ns),
            "prefill_start_ms": _ms(row.prefill_start_ns),
            "prefill_end_ms": _ms(row.prefill_end_ns),
            "first_token_ms": _ms(row.first_token_ns),
            "last_token_ms": _ms(row.last_token_ns),
        },
        "token_ms": [_ms(token_ns) for token_ns in row.token_ns or ()],
    }


def _ms(ns: Any) -> float | None:
    return None if ns is None else float(ns / NS_PER_MS)
