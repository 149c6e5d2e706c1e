"""What a trace asks of a modelled hardware: work per request, load, and room in the KV cache.

Pure. Formulas of the steady state, over the trace as a whole: no request waits in them, and no tick is
rounded up.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import msgspec

from ledgers.description import weighted
from ledgers.queueing import littles_law, mg1_wait
from ledgers.settings import Hardware
from ledgers.units import NS_PER_S
from ledgers.work import Asked, loads, resources

if TYPE_CHECKING:
    from ledgers.describer import Describer


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
    asked = _asked(trace, hardware)
    prefill_s, decode_s = asked["prefill"].mean_s, asked["decode"].mean_s
    if prefill_s is None or decode_s is None:
        return None
    found = Demand(
        service_demand_s=prefill_s + decode_s,
        prefill_s=prefill_s,
        decode_s=decode_s,
        residence_s=prefill_s + decode_s * hardware.decode_slots,
        kv_budget_tokens=hardware.kv_budget_tokens,
        kv_mb_per_token=hardware.kv_mb_per_token,
        too_large=sum(n for tokens, n in trace.totals.items() if tokens > hardware.kv_budget_tokens),
    )
    rate = trace.arrivals.rate if trace.has_unit else None
    return found if rate is None else _loaded(found, rate, trace, asked, hardware)


def _asked(trace: Describer, hardware: Hardware) -> dict[str, Asked]:
    asked = resources(hardware)
    for name, lengths in (("prefill", trace.prompts), ("decode", trace.outputs)):
        for tokens, requests in lengths.items():
            asked[name].add(tokens, requests)
    return asked


def _loaded(
    found: Demand, rate: float, trace: Describer, asked: dict[str, Asked], hardware: Hardware
) -> Demand:
    rho = loads(rate, asked)
    held = _reserve_seconds(trace, asked["prefill"].unit_s, hardware)
    keeps_up = rho["prefill"] < 1
    return msgspec.structs.replace(
        found,
        rho_prefill=rho["prefill"],
        rho_decode=rho["decode"],
        kv_mean_tokens=littles_law(rate, held),
        kv_peak_tokens=littles_law(trace.arrivals.busiest_rate(found.residence_s), held),
        prefill_wait_s=mg1_wait(rate, 1 / found.prefill_s, asked["prefill"].cv) if keeps_up else None,
    )


def _reserve_seconds(trace: Describer, prefill_s: Fraction, hardware: Hardware) -> float:
    """The mean of (prompt + output) times the time that they are held: long requests are held longer."""
    in_prefill = weighted(trace.prompts, 2) + trace.products
    in_decode = weighted(trace.outputs, 2) + trace.products
    tick_s = Fraction(hardware.tick_ns, NS_PER_S)
    return float((in_prefill * prefill_s + in_decode * tick_s) / trace.prompts.total())
