"""What a trace asks of a modelled hardware: work per request, load, and room in the KV cache.

Pure. Formulas of the steady state, over the trace as a whole: no request waits in them, and no tick is
rounded up.
"""

from __future__ import annotations

import msgspec

from ledgers.description import Describer, spread, weighted
from ledgers.queueing import littles_law, mg1_wait, service_demand, utilization
from ledgers.settings import Hardware


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """Means over requests. None stands for what a trace without times in seconds cannot tell.

    `service_demand_s` is what a request takes of the whole machine: its prompt and output tokens, each at
    what it costs while the machine is full. `residence_s` is how long it stays at least: its prefill, and a
    tick for each output token. `rho_prefill` and `rho_decode` are the offered loads at the trace's mean rate.
    `kv_mean_tokens` is what requests reserve together by Little's law, the rate times the mean of reserve
    and residence; `kv_peak_tokens` is that at the rate of the busiest stretch as long as `residence_s`.
    `prefill_wait_s` is the wait for prefill as an M/G/1 queue; None too where that has no end. `too_large`
    counts requests that the budget never holds.
    """

    service_demand_s: float
    prefill_s: float
    decode_s: float
    residence_s: float
    kv_budget_tokens: int
    kv_mb_per_token: float
    too_large: int
    rho_prefill: float | None = None
    rho_decode: float | None = None
    kv_mean_tokens: float | None = None
    kv_peak_tokens: float | None = None
    prefill_wait_s: float | None = None


def demand(trace: Describer, hardware: Hardware) -> Demand | None:
    """Of a finished description; None if it has no request."""
    n = trace.prompts.total()
    if not n:
        return None
    prefill_cost, decode_cost = _costs(hardware)
    prompt, output = weighted(trace.prompts) / n, weighted(trace.outputs) / n
    found = Demand(
        service_demand_s=service_demand(prompt, output, prefill_cost, decode_cost),
        prefill_s=service_demand(prompt, 0, prefill_cost, decode_cost),
        decode_s=service_demand(0, output, prefill_cost, decode_cost),
        residence_s=prompt * prefill_cost + output * hardware.tick_s,
        kv_budget_tokens=hardware.kv_budget_tokens,
        kv_mb_per_token=hardware.kv_mb_per_token,
        too_large=sum(n for tokens, n in trace.totals.items() if tokens > hardware.kv_budget_tokens),
    )
    rate = trace.arrivals.rate if trace.has_unit else None
    return found if rate is None else _loaded(found, rate, trace, hardware)


def _costs(hardware: Hardware) -> tuple[float, float]:
    """Seconds of the full machine per prompt token and per output token."""
    return hardware.tick_s / hardware.prefill_tokens_per_tick, hardware.tick_s / hardware.decode_slots


def _loaded(found: Demand, rate: float, trace: Describer, hardware: Hardware) -> Demand:
    rho = utilization(rate, 1 / found.prefill_s)
    slot_rate = 1 / (found.decode_s * hardware.decode_slots)
    held = _reserve_seconds(trace, hardware)
    return msgspec.structs.replace(
        found,
        rho_prefill=rho,
        rho_decode=utilization(rate, slot_rate, hardware.decode_slots),
        kv_mean_tokens=littles_law(rate, held),
        kv_peak_tokens=littles_law(trace.arrivals.busiest_rate(found.residence_s), held),
        prefill_wait_s=mg1_wait(rate, 1 / found.prefill_s, spread(trace.prompts)) if rho < 1 else None,
    )


def _reserve_seconds(trace: Describer, hardware: Hardware) -> float:
    """The mean of (prompt + output) times the time that they are held: long requests are held longer."""
    prefill_cost, _ = _costs(hardware)
    in_prefill = weighted(trace.prompts, 2) + trace.products
    in_decode = weighted(trace.outputs, 2) + trace.products
    return (in_prefill * prefill_cost + in_decode * hardware.tick_s) / trace.prompts.total()
