"""What a run is set up with: the modelled hardware, the SLO, the presets of the toy ledger."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ledgers.errors import InputError
from ledgers.traffic import Traffic
from ledgers.trim import Warmup
from ledgers.units import NS_PER_MS, exact, to_ns

Positive = Annotated[int, Meta(ge=1)]


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The machine a tick scheduler models. The defaults are the toy hardware."""

    tick_s: Annotated[float, Meta(gt=0, le=3600)] = 0.1
    prefill_tokens_per_tick: Positive = 24
    decode_slots: Positive = 3
    kv_budget_tokens: Positive = 72
    kv_mb_per_token: Annotated[float, Meta(gt=0, le=1e6)] = 0.25

    @property
    def tick_ns(self) -> int:
        return to_ns(self.tick_s)


HARDWARE: dict[str, Hardware] = {
    "toy": Hardware(),
    # One mid-range accelerator, an 8 B model: 32 layers x 8 KV heads x 128 x 2 x 2 bytes per token.
    "medium": Hardware(0.02, 2_048, 64, 200_000, 0.125),
    # Several accelerators with a long-context model of 70 B: 80 layers x 8 x 128 x 2 x 2 bytes per token.
    "large": Hardware(0.02, 16_384, 256, 8_000_000, 0.3125),
}


def load_hardware(name_or_file: str, tick_s: float | None = None) -> Hardware:
    """A named hardware, or the keys of a TOML file over the toy's defaults; `tick_s` overrides the tick."""
    hardware = HARDWARE.get(name_or_file) or _from_toml(Path(name_or_file))
    if tick_s is not None:
        hardware = msgspec.structs.replace(hardware, tick_s=tick_s)
    if not 1 <= hardware.tick_ns <= to_ns(3600):
        raise InputError(f"hardware {name_or_file}: tick_s is {hardware.tick_s}, not between 1 ns and 1 h")
    return hardware


def _from_toml(path: Path) -> Hardware:
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Hardware)
    except FileNotFoundError:
        known = ", ".join(HARDWARE)
        raise InputError(f"hardware {path}: neither a known name ({known}) nor a file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InputError(f"hardware {path}: {error}") from None


class Slo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds that a request must meet, each in ms; None where there is no bound."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    @property
    def given(self) -> bool:
        return (self.ttft_ms, self.tpot_ms, self.e2e_ms) != (None, None, None)

    def bounds_ns(self) -> tuple[int | None, int | None, int | None]:
        """The bounds on TTFT, TPOT and E2E in ns."""
        return _ms_to_ns(self.ttft_ms), _ms_to_ns(self.tpot_ms), _ms_to_ns(self.e2e_ms)


def _ms_to_ns(ms: float | None) -> int | None:
    return None if ms is None else round(exact(ms) * NS_PER_MS)


class Preset(msgspec.Struct, frozen=True):
    """A setting of the toy ledger that shows one behaviour."""

    request_rate: str
    max_batch: int = 4
    max_wait_s: str = "0.2"
    slo: Slo = Slo(e2e_ms=1550)
    tail_s: str = "1.4"


PRESETS = {
    "steady": Preset("2.2"),
    "head-of-line": Preset("4.0"),
    "busy": Preset("8.0"),
    "overload": Preset("16.9"),
}
DEFAULT_PRESET = "head-of-line"


def parse_slo(words: list[str]) -> Slo:
    """`["ttft:200", "e2e:1500"]` (ms) as a Slo. `e2el` is accepted for `e2e`."""
    bounds: dict[str, Any] = {}
    for word in words:
        name, colon, value = word.partition(":")
        key = {"ttft": "ttft_ms", "tpot": "tpot_ms", "e2e": "e2e_ms", "e2el": "e2e_ms"}.get(name)
        try:
            bound = float(value)
        except ValueError:
            bound = float("nan")
        if not key or not colon or not 0 < bound < float("inf"):
            raise InputError(f"--goodput {word}: expected ttft:MS, tpot:MS or e2e:MS with MS above 0")
        bounds[key] = bound
    return Slo(**bounds)


class SchedulerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a scheduler is set up: the policy, its parameters, and the hardware under it."""

    policy: str = "continuous"
    max_batch: Positive = 4
    max_wait_ns: Annotated[int, Meta(ge=0)] = 200_000_000
    prefill_chunk: Positive = 8
    hardware: Hardware = Hardware()
    max_queue: Positive | None = None
    max_model_len: Positive | None = None
    traffic: Traffic = Traffic()

    def __post_init__(self) -> None:
        if self.policy == "classes":
            self.traffic.check_slots(self.hardware.decode_slots)

    def wait_ns(self, class_: str | None) -> int:
        """How long the head of the queue waits for a batch to fill."""
        if self.policy != "classes":
            return self.max_wait_ns
        return self.traffic.of(class_).max_wait_ns(self.max_wait_ns)


class WindowSettings(msgspec.Struct, frozen=True):
    """What the observation window is and what a request must meet in it."""

    slo: Slo = Slo()
    tail_ns: int | Literal["drain"] = "drain"
    warmup_s: Warmup = None
    cooldown_s: float | None = None
