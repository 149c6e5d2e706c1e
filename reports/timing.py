"""(b) The client's stamps against the server's writes, token by token, and goodput as each side counts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

import msgspec

from ledgers.distributions import Distribution, distribution
from ledgers.metrics import completion_ns, e2e_ns, meets, tpot_ns, ttft_ns
from ledgers.rows import RequestRow
from reports.sides import Inputs

TIME_LIMIT_NS = 5_000_000
Pair = tuple[RequestRow, RequestRow]
Figure = int | Fraction | None


class Timing(msgspec.Struct, kw_only=True):
    """(b) client stamp minus server write."""

    agrees: bool
    limit_ms: float
    tokens: Distribution | None
    ttft: Distribution | None
    tpot: Distribution | None
    e2e: Distribution | None
    missing_tokens: list[str]
    outcome_different: list[str]
    slo_met_measured: int | None
    slo_met_served: int | None
    on_edge: list[str]
    slo_different: list[str]


class Parts(msgspec.Struct, frozen=True):
    """Where a request's time to first token went, in ns. The parts add up to the measured TTFT exactly."""

    send_lag_ns: int
    network_in_ns: int
    queue_ns: int
    prefill_ns: int
    first_decode_turn_ns: int
    tick_lateness_ns: int
    network_out_ns: int


def compare_timing(inputs: Inputs) -> Timing:
    """The distances between both sides, and whether both count the same requests as good, faults aside."""
    pairs = [
        (row, served)
        for id, row in inputs.measured.items()
        if (served := inputs.served.rows.get(id)) and not served.fault  # which is there to make a difference
    ]
    tokens = distribution([abs(distance) for pair in pairs for distance in token_distances(*pair)])
    missing = [measured.id for measured, served in pairs if not _same_tokens(measured, served)]
    outcomes = [id for id in inputs.order if not _outcomes_fit(inputs, id)]
    edge, met_measured, met_served = _goodput_of_both(inputs, pairs)
    disputed = met_measured ^ met_served
    edge -= set(outcomes)
    close = tokens is None or tokens.p95 * 1e6 <= TIME_LIMIT_NS
    return Timing(
        agrees=close and not missing and not outcomes and not disputed - edge,
        limit_ms=TIME_LIMIT_NS / 1e6,
        tokens=tokens,
        ttft=_distances(pairs, ttft_ns),
        tpot=_distances(pairs, tpot_ns),
        e2e=_distances(pairs, e2e_ns),
        missing_tokens=missing,
        outcome_different=outcomes,
        slo_met_measured=len(met_measured) if inputs.slo.given else None,
        slo_met_served=len(met_served) if inputs.slo.given else None,
        on_edge=sorted(disputed & edge),
        slo_different=sorted(disputed - edge),
    )


def token_distances(measured: RequestRow, served: RequestRow) -> Iterator[int]:
    """Client stamp − server write of each token, in ns, both rows on one clock."""
    for stamp_ns, write_ns in zip(measured.token_ns or (), served.token_ns or (), strict=False):
        yield stamp_ns - write_ns


def ttft_parts(measured: RequestRow, served: RequestRow, tick_ns: int) -> Parts | None:
    """The measured TTFT taken apart; None where a stamp is missing on either side."""
    ticks = served.ticks
    if ticks is None or ticks.prefill_start is None or ticks.prefill_end is None or ticks.first_token is None:
        return None
    a, z, f = measured.arrival_ns, measured.sent_ns, measured.first_token_ns
    r, s, w = served.received_ns, served.prefill_start_ns, served.first_token_ns
    if a is None or z is None or f is None or r is None or s is None or w is None:
        return None
    p = s + (ticks.prefill_end - ticks.prefill_start) * tick_ns
    due = s + (ticks.first_token - ticks.prefill_start) * tick_ns
    return Parts(z - a, r - z, s - r, p - s, due - p, w - due, f - w)


REFUSALS = (400, 429)


def _outcomes_fit(inputs: Inputs, id: str) -> bool:
    """Whether the client saw what the server did. Every request has a row on the client's side."""
    measured, served = inputs.measured.get(id), inputs.served.rows.get(id)
    if measured is None:
        return False
    if served is None:  # it did not get there, or not as a valid request
        return measured.outcome != "completed"
    if served.outcome == "rejected":
        return measured.outcome == "http_error" and measured.http_status in REFUSALS
    return (measured.outcome == "completed") == (served.outcome == "completed")


def _same_tokens(measured: RequestRow, served: RequestRow) -> bool:
    """Every token written was stamped and counted; a client that left early has not seen the later ones."""
    stamps, writes = measured.token_ns or [], served.token_ns or []
    if served.outcome != "completed":
        return len(stamps) <= len(writes)
    ends = (measured.first_token_ns, measured.last_token_ns)
    return len(stamps) == len(writes) and measured.tokens == served.tokens and ends == (stamps[0], stamps[-1])


def _distances(pairs: list[Pair], define: Callable[[RequestRow], Figure]) -> Distribution | None:
    both = [(define(measured), define(served)) for measured, served in pairs]
    return distribution([abs(float(m) - float(s)) for m, s in both if m is not None and s is not None])


def _goodput_of_both(inputs: Inputs, pairs: list[Pair]) -> tuple[set[str], set[str], set[str]]:
    """Who is on the edge, and who met the SLO in the window as the client and as the server see it."""
    bounds = inputs.slo.bounds_ns()
    edge: set[str] = set()
    met: tuple[set[str], set[str]] = (set(), set())
    window = tuple(_window_end(rows, inputs.tail_ns) for rows in zip(*pairs, strict=True))
    for pair in pairs:
        margins = [_margins(row, bounds, end) for row, end in zip(pair, window, strict=True)]
        for side, row, margin in zip(met, pair, margins, strict=True):
            in_window = margin[-1] is None or margin[-1] >= 0
            if inputs.slo.given and meets(row, bounds) and in_window:
                side.add(row.id)
        if any(_on_edge(client, server) for client, server in zip(*margins, strict=True)):
            edge.add(pair[0].id)
    return edge, *met


def _window_end(rows: tuple[RequestRow, ...], tail_ns: int | None) -> int | None:
    """T_obs on the rows' own clock; None if the window waits for all."""
    if tail_ns is None:
        return None
    return tail_ns + max((row.received_ns if row.arrival_ns is None else row.arrival_ns) or 0 for row in rows)


def _margins(row: RequestRow, bounds: tuple[int | None, ...], end_ns: int | None) -> list[Figure]:
    """How far a request stays below each bound (ttft, tpot, e2e), and its end before the window's.

    None where there is no bound, or no value to hold against it.
    """
    limits = (*bounds, end_ns)
    values = (ttft_ns(row), tpot_ns(row), e2e_ns(row), completion_ns(row))
    return [None if b is None or v is None else b - v for b, v in zip(limits, values, strict=True)]


def _on_edge(client: Figure, server: Figure) -> bool:
    """The bound lies no further from the server's value than the client's value does."""
    if client is None or server is None:
        return False
    return abs(Fraction(server)) <= abs(Fraction(server) - Fraction(client))
