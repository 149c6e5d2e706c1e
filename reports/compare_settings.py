"""In what runs differ apart from their figures, and whether they may be compared all the same. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ledgers.errors import InputError
from ledgers.rundir import RunInfo

_CHARS = 24
_MOST = 4  # keys said of one kind
_POLICY = ("policy", "max_batch", "max_wait_s", "prefill_chunk", "max_queue", "max_model_len", "traffic")
_WINDOW = ("tail_s", "cut_at_tail", "warmup_s", "cooldown_s")
_ASKING = ("api", "stream")
_NO_MATTER = ("headers",)


def _config(info: RunInfo, names: Sequence[str]) -> dict[str, Any]:
    return {name: msgspec.to_builtins(getattr(info.config, name, None)) for name in names}


def _ledger(info: RunInfo) -> dict[str, Any]:
    ledger = info.ledger
    return {"sha256": ledger.sha256 and ledger.sha256[:12], "requests": ledger.requests}


def _asking(info: RunInfo) -> dict[str, Any]:
    extra = {name: value for name, value in info.config.extra.items() if name not in _NO_MATTER}
    prompts = extra.get("prompts")
    if isinstance(prompts, Mapping):  # the seed aside: repeats have prompts that no cache knows
        extra["prompts"] = {name: value for name, value in prompts.items() if name != "seed"}
    return {**_config(info, _ASKING), **extra}


SETTINGS: dict[str, Callable[[RunInfo], dict[str, Any]]] = {
    "kind": lambda info: {"kind": info.kind},
    "ledger": _ledger,
    "policy": lambda info: _config(info, _POLICY),
    "hardware": lambda info: msgspec.to_builtins(info.config.hardware) or {},
    "slo": lambda info: msgspec.to_builtins(info.config.slo),
    "window": lambda info: _config(info, _WINDOW),
    "stamping": lambda info: {"stamp_source": info.clock.stamp_source},
    "asking": _asking,
}
"""What can differ, by the name that `--allow` takes: the keys of each and their values."""

Difference = dict[str, tuple[Any, Any]]


def differences(one: RunInfo, other: RunInfo) -> dict[str, Difference]:
    """By name, each key that differs with both values; None is a key that one of them has not."""
    found = {name: _differing(read(one), read(other)) for name, read in SETTINGS.items()}
    return {name: keys for name, keys in found.items() if keys}


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> Difference:
    keys = dict.fromkeys([*one, *other])
    return {key: (one.get(key), other.get(key)) for key in keys if one.get(key) != other.get(key)}


def parse_allowed(words: Sequence[str]) -> frozenset[str]:
    """`--allow ledger,hardware`, or all."""
    names = {name.strip() for word in words for name in word.split(",") if name.strip()}
    unknown = sorted(names - {*SETTINGS, "all"})
    if unknown:
        raise InputError(f"--allow {unknown[0]}: expected any of {', '.join(SETTINGS)}, or all")
    return frozenset(SETTINGS if "all" in names else names)


def refuse_others(
    one: tuple[str, RunInfo], other: tuple[str, RunInfo], allowed: frozenset[str]
) -> dict[str, Difference]:
    """What differs and may; InputError that says what differs and may not."""
    found = differences(one[1], other[1])
    refused = {name: keys for name, keys in found.items() if name not in allowed}
    if refused:
        raise InputError(
            f"{one[0]} and {other[0]} differ in {'; '.join(map(in_words, refused, refused.values()))}. "
            f"To compare them all the same: --allow {','.join(refused)}"
        )
    return found


def notes(one: RunInfo, other: RunInfo) -> list[str]:
    """What is no reason to refuse, and may be one for a difference."""
    read: dict[str, Callable[[RunInfo], dict[str, Any]]] = {
        "made by": lambda info: {"version": info.version},
        "made on": lambda info: info.host,
        "model": lambda info: {"model": info.config.model},
    }
    found = {name: _differing(of(one), of(other)) for name, of in read.items()}
    return [in_words(name, keys) for name, keys in found.items() if keys]


def in_words(name: str, keys: Difference) -> str:
    """`hardware: decode_slots 3 | 4`."""
    said = [f"{key} {_short(one)} | {_short(other)}" for key, (one, other) in list(keys.items())[:_MOST]]
    more = f", and {len(keys) - _MOST} more" if len(keys) > _MOST else ""
    return f"{name}: {', '.join(said)}{more}" if list(keys) != [name] else f"{said[0]}{more}"


def _short(value: Any) -> str:
    """On one line: a value as JSON has it, its end left out if it is long."""
    text = (
        "none" if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()
    )
    text = " ".join(text.split())
    return text if len(text) <= _CHARS else f"{text[: _CHARS - 1]}…"
