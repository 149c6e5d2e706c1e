"""What a server said of itself, beside what its client saw: a few lines, and a small table over time."""

from __future__ import annotations

from typing import Any

from reports.tables import DASH, ms, number, table, wrapped


def server_text(summary: dict[str, Any]) -> str:
    """Empty where the server was not asked, or had nothing to say."""
    server = summary["server"]
    if server is None:
        return ""
    return "\n".join([*_totals(server), "", _over_time(server["series"])])


def _totals(server: dict[str, Any]) -> list[str]:
    missed = f", {server['missed']} missed" if server["missed"] else ""
    pairs = [
        ("output tokens", _pair(server["generation_tokens"], server["client_generation_tokens"])),
        ("prompt tokens", _pair(server["prompt_tokens"], server["client_prompt_tokens"])),
        ("in flight", _pair(_in_flight(server, "_mean"), server["client_in_flight_mean"])),
        ("TTFT mean", _times(server["ttft_mean_ms"], server["client_ttft_from_send_mean_ms"])),
        ("waiting max", number(server["waiting_max"], 0)),
        ("KV max", DASH if server["kv_usage_max"] is None else f"{server['kv_usage_max']:.0%}"),
        ("queue mean", _with_unit(server["queue_mean_ms"])),
        ("preemptions", number(server["preemptions"] or None, 0)),
    ]
    said = " | ".join(f"{name} {value}" for name, value in pairs if value != DASH)
    return wrapped(f"server metrics ({server['samples']} samples{missed}): {said}", then="  ")


def _pair(server: float | None, client: float | None) -> str:
    if server is None:
        return DASH
    return f"{_plain(server)} (client {_plain(client)})"


def _times(server: float | None, client: float | None) -> str:
    return DASH if server is None else f"{ms(server)} ms (client, from the send: {ms(client)})"


def _with_unit(value: float | None) -> str:
    return DASH if value is None else f"{ms(value)} ms"


def _plain(value: float | None) -> str:
    """A count as a count, a mean with a digit."""
    return DASH if value is None else f"{value:.0f}" if value == int(value) else f"{value:.1f}"


def _in_flight(found: dict[str, Any], suffix: str = "") -> float | None:
    known = [found[f"{name}{suffix}"] for name in ("running", "waiting")]
    values = [value for value in known if value is not None]
    return sum(values) if values else None


def _over_time(series: list[dict[str, Any]]) -> str:
    """Each line tells of the time since the one before: means of what was so at the samples, and rates."""
    columns = ["until s", "in flight", "server", "running", "waiting", "KV", "tokens/s", "server"]
    lines = [
        [
            f"{interval['t_s']:.1f}",
            number(interval["client_in_flight"], 1),
            number(_in_flight(interval), 1),
            number(interval["running"], 1),
            number(interval["waiting"], 1),
            DASH if interval["kv_usage"] is None else f"{interval['kv_usage']:.0%}",
            number(interval["client_tokens_per_s"], 1),
            number(interval["tokens_per_s"], 1),
        ]
        for interval in series
    ]
    return table(columns, lines, left=0)
