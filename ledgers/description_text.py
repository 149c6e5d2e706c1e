"""A trace's description for a terminal of 80 columns: figures, small pictures, and what the figures mean.

Pure. Values in, lines out; `plain` draws with ASCII alone. * marks a percentile that rests on the largest
value, for there are too few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

import msgspec

from ledgers.demand import Demand
from ledgers.description import Description, Lengths
from ledgers.distributions import PERCENTILES, rests_on_largest
from ledgers.printable import printable
from ledgers.units import NS_PER_S, ceil_div

if TYPE_CHECKING:
    from ledgers.describer import Describer

WIDTH = 80
BLOCKS, ASCII_BLOCKS = " ▁▂▃▄▅▆▇█", " .:-=+*%#"
BARS, ASCII_BARS = "▏▎▍▌▋▊▉█", "#"
BAR_WIDTH = 22
SHOWN = ("mean", "min", "p50", "p90", "p95", "p99", "max")
RESTS = "* rests on the largest value"


def description_text(
    name: str, found: Description, trace: Describer, demand: Demand | None, *, plain: bool
) -> str:
    """All that is said of a trace."""
    blocks = [_heading(name, found), _times(found)]
    if found.requests:
        blocks += [_over_time(trace, plain), _lengths_table(found), _histogram(trace, plain), _shared(found)]
    if demand is not None:
        blocks.append(_demand(demand, plain))
    blocks.append("\n".join(line for note in found.notes for line in _wrapped(f"note: {note}")))
    return "\n\n".join(block for block in blocks if block)


def _wrapped(text: str) -> list[str]:
    return wrap(printable(text), WIDTH, subsequent_indent="  ")


def _heading(name: str, found: Description) -> str:
    counts = f"{_requests(found.requests)}, {found.prompt_tokens:,} prompt and {found.output_tokens:,} output"
    return "\n".join(_wrapped(f"{name} ({found.format}): {counts} tokens"))


def _requests(count: int) -> str:
    return f"{count:,} request{'s' * (count != 1)}"


def _times(found: Description) -> str:
    if found.first_time is None:
        return "no arrival times" if found.requests else ""
    first, last = (_time(moment) for moment in (found.first_time, found.last_time))
    unit = "" if found.duration_s is not None else ", a shape without a unit"
    told = [] if found.duration_s is None else [_seconds(found.duration_s)]
    if found.mean_rate_rps is not None:
        told.append(f"{found.mean_rate_rps:.4g} req/s on average")
    if found.cv is not None:
        told.append(f"gaps with a CV of {found.cv:.3g} (Poisson: 1)")
    return "\n".join([*_wrapped(f"arrivals from {first} to {last}{unit}"), *_wrapped(", ".join(told))])


def _time(moment: str | msgspec.Raw | None) -> str:
    return moment if isinstance(moment, str) else bytes(moment or b"").decode()


# Pictures


def _over_time(trace: Describer, plain: bool) -> str:
    """The rate in equal parts of the time, one column each."""
    if not trace.arrivals.span:
        return ""
    counts = trace.arrivals.over_time()
    levels = ASCII_BLOCKS if plain else BLOCKS
    top, most = len(levels) - 1, max(counts)
    picture = "".join(levels[ceil_div(count * top, most)] for count in counts)
    width_s = float(trace.arrivals.span) / NS_PER_S / len(counts)
    highest = f"{most / width_s:.4g} req/s" if trace.has_unit else _requests(most)
    width = f"{_seconds(width_s)} a column, " if trace.has_unit else ""
    return f"arrivals over time: {width}the highest {highest}\n|{picture}|"


def _histogram(trace: Describer, plain: bool) -> str:
    """How many requests have lengths from a power of two to below the next one, in rows of bars."""
    sides = [_by_power(counts) for counts in (trace.prompts, trace.outputs)]
    powers = range(min(map(min, sides)), max(map(max, sides)) + 1)
    n = trace.prompts.total()
    lines = [f"{'tokens':>13}  {'prompts':<{BAR_WIDTH + 8}}  outputs"]
    for power in powers:
        cells = [_bar(side[power], max(side.values()), n, plain) for side in sides]
        lines.append(f"{_range(power):>13}  {'  '.join(cells)}".rstrip())
    return "\n".join(lines)


def _by_power(counts: Counter[int]) -> Counter[int]:
    sums: Counter[int] = Counter()
    for value, count in counts.items():
        sums[value.bit_length()] += count
    return sums


def _range(power: int) -> str:
    least, most = 1 << power - 1, (1 << power) - 1
    return f"{_short(least)}-{_short(most)}" if most > least else str(least)


def _short(tokens: int) -> str:
    return str(tokens) if tokens < 10_000_000 else f"{tokens / 1e6:.0f}M"


def _bar(count: int, most: int, n: int, plain: bool) -> str:
    """As long as the count, with the share of all behind it."""
    if not count:
        return " " * (BAR_WIDTH + 8)
    parts = ASCII_BARS if plain else BARS
    eighths = max(1, round(count * BAR_WIDTH * len(parts) / most))
    whole, rest = divmod(eighths, len(parts))
    bar = parts[-1] * whole + (parts[rest - 1] if rest else "")
    return f"{f'{bar} {count / n:.1%}':<{BAR_WIDTH + 8}}"


# Figures


def _lengths_table(found: Description) -> str:
    sides = (("prompt", found.prompt_percentiles), ("output", found.output_percentiles))
    rows = [(name, _cells(side)) for name, side in sides if side is not None]
    widths = [max(8, *(len(cells[place]) for _, cells in rows)) for place in range(len(SHOWN))]
    lines = [_line("tokens", SHOWN, widths), *(_line(name, cells, widths) for name, cells in rows)]
    if any(cell.endswith("*") for _, cells in rows for cell in cells):
        lines.append(RESTS)
    return "\n".join(lines)


def _cells(side: Lengths) -> list[str]:
    resting = {f"p{p}" for p in PERCENTILES if rests_on_largest(p, side.n)}
    return [
        f"{getattr(side, name):{'.1f' if name == 'mean' else ''}}{'*' * (name in resting)}" for name in SHOWN
    ]


def _line(name: str, cells: Sequence[str], widths: Sequence[int]) -> str:
    return f"{name:<6} " + " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _shared(found: Description) -> str:
    told = [] if found.sessions is None else [f"{found.sessions:,} session{'s' * (found.sessions != 1)}"]
    if found.prefix_reuse is not None:
        told.append(f"{found.prefix_reuse:.2%} of the prompt tokens are in blocks that came before")
    return "\n".join(told)


def _demand(demand: Demand, plain: bool) -> str:
    return "\n".join(line for part in _demand_words(demand, plain) for line in _wrapped(part))


def _demand_words(demand: Demand, plain: bool) -> Iterator[str]:
    yield (
        f"service demand {_seconds(demand.service_demand_s)} a request: "
        f"prefill {_seconds(demand.prefill_s)}, decode {_seconds(demand.decode_s)}"
    )
    yield f"a request stays {_seconds(demand.residence_s)} on average, or longer where it has to wait"
    if demand.too_large:
        yield f"{_requests(demand.too_large)} too large for the KV budget: will be rejected"
    if demand.rho_prefill is None or demand.rho_decode is None:
        yield "load and KV need: not known, for the trace has no rate of its own"
        return
    rho = "rho" if plain else "ρ"
    for stage, load in (("prefill", demand.rho_prefill), ("decode", demand.rho_decode)):
        yield f"{stage} {rho} {load:.3g}: {_meaning(load)}"
    if demand.prefill_wait_s is not None:
        yield f"prefill wait {_seconds(demand.prefill_wait_s)} on average, if arrivals were Poisson (M/G/1)"
    for what, tokens in (("mean", demand.kv_mean_tokens), ("peak", demand.kv_peak_tokens)):
        yield _kv(what, tokens or 0.0, demand)


def _meaning(rho: float) -> str:
    if rho >= 1:
        return "will not keep up: the queue grows for as long as requests come"
    return f"keeps up on average, {1 - rho:.0%} to spare"


def _kv(what: str, tokens: float, demand: Demand) -> str:
    share = tokens / demand.kv_budget_tokens
    fits = "more than there is, so requests will wait" if share > 1 else "fits"
    size = f"{tokens:,.0f} tokens ({tokens * demand.kv_mb_per_token:,.0f} MB)"
    return f"KV need, {what}: {size}, {share:,.0%} of {demand.kv_budget_tokens:,}: {fits}"


def _seconds(value: float) -> str:
    return f"{value * 1000:.3g} ms" if 0 < value < 1 else f"{value:,.{3 if value < 1e6 else 0}f} s"
