"""A whole setting of the lab as the query of a URL, and back. Pure.

Owns the knobs, their order and their bounds. Two queries that mean the same have one canonical form, which
names what differs from the default. A value that cannot be used is replaced by its default, and said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

import msgspec

from ledgers.settings import (
    DEFAULT_PRESET,
    HARDWARE,
    PRESETS,
    Hardware,
    Preset,
    SchedulerSettings,
    Slo,
    WindowSettings,
)
from ledgers.units import NS_PER_MS, exact, to_ns
from mock_server.policies import POLICIES as EVERY_POLICY
from reports.lab.words import LANGUAGES

POLICIES = tuple(name for name in EVERY_POLICY if name != "classes")
"""Without a file of classes `classes` is `continuous` once more."""
MOST_CHARS = 512
MOST_FIELDS = 32
MOST_DECIMALS = 3
_OF_NUMBERS = re.compile(r"[-+.0-9eE]+", re.ASCII)  # as a number field of a form gives them
_SHOWN = 24


class Knob(NamedTuple):
    """A number that can be turned: its bounds, the step of its control, and its unit. Whole: no fractions."""

    name: str
    min: float
    max: float
    step: float
    unit: str
    whole: bool = False
    optional: bool = False


KNOBS = (
    Knob("rate", 0.1, 100, 0.1, "req/s"),
    Knob("tick", 0.02, 1, 0.01, "s", optional=True),
    Knob("batch", 1, 64, 1, "requests", whole=True),
    Knob("wait", 0, 10, 0.05, "s"),
    Knob("chunk", 1, 512, 1, "tokens", whole=True),
    Knob("slo", 1, 600_000, 50, "ms"),
    Knob("ttft", 1, 600_000, 50, "ms", optional=True),
    Knob("tpot", 1, 600_000, 10, "ms", optional=True),
)
CHOICES: Mapping[str, tuple[str, ...]] = {
    "preset": tuple(PRESETS),
    "hardware": tuple(HARDWARE),
    "policy": POLICIES,
    "lang": tuple(LANGUAGES),
}


class Problem(msgspec.Struct, frozen=True):
    """What is refused, and why. The field is None where it is no single one that there is.

    `code` stays the same whatever the message says, and `values` are the figures in it: a page can say it in
    words of its own.
    """

    field: str | None
    message: str
    code: str
    values: dict[str, Any] = {}


class SettingError(Exception):
    """A setting that cannot be used."""

    def __init__(self, field: str | None, message: str, code: str, **values: Any) -> None:
        super().__init__(message)
        self.problem = Problem(field, message, code, values)


class Setting(NamedTuple):
    """Rates in requests per second, the wait and the tick in s, bounds in ms, as the flags have them.

    None: no bound, the hardware's own tick, the language that the browser asks for.
    """

    rate: float
    batch: int
    wait: float
    slo: float
    policy: str = "continuous"
    chunk: int = 8
    hardware: str = "toy"
    tick: float | None = None
    ttft: float | None = None
    tpot: float | None = None
    lang: str | None = None

    @property
    def preset(self) -> str | None:
        """The preset that it is, as far as presets go."""
        return next((name for name in PRESETS if self == self._replace(**_of_preset(name))), None)

    def query(self) -> str:
        """The canonical one: the preset if it is one, then what differs from the default."""
        values = self._asdict()
        usual = {**DEFAULT._asdict(), **(_of_preset(self.preset) if self.preset else {})}
        named = {name: _text(value) for name, value in values.items() if value != usual[name]}
        return urlencode({**({"preset": self.preset} if self.preset else {}), **named})

    def machine(self) -> Hardware:
        hardware = HARDWARE[self.hardware]
        return hardware if self.tick is None else msgspec.structs.replace(hardware, tick_s=self.tick)

    def scheduler(self, policy: str) -> SchedulerSettings:
        return SchedulerSettings(
            policy=policy,
            max_batch=self.batch,
            max_wait_ns=to_ns(self.wait),
            prefill_chunk=self.chunk,
            hardware=self.machine(),
        )

    def window(self) -> WindowSettings:
        slo = Slo(ttft_ms=self.ttft, tpot_ms=self.tpot, e2e_ms=self.slo)
        return WindowSettings(slo=slo, tail_ns=to_ns(PRESETS[DEFAULT_PRESET].tail_s))

    def request_rate(self) -> Fraction:
        return exact(self.rate)

    def to_json(self) -> dict[str, Any]:
        return {"preset": self.preset, **self._asdict()}

    @property
    def tick_ms(self) -> float:
        return self.machine().tick_ns / NS_PER_MS


def _of_preset(name: str) -> dict[str, Any]:
    preset: Preset = PRESETS[name]
    return {
        "rate": float(preset.request_rate),
        "batch": preset.max_batch,
        "wait": float(preset.max_wait_s),
        "slo": preset.slo.e2e_ms,
    }


DEFAULT = Setting(**_of_preset(DEFAULT_PRESET))


def parse(query: str) -> tuple[Setting, list[Problem]]:
    """The setting that a query means, and what of it cannot be used. An empty value is one not given."""
    if len(query) > MOST_CHARS:
        message = f"the query is longer than {MOST_CHARS} characters"
        return DEFAULT, [Problem(None, message, "query_too_long", {"most": MOST_CHARS})]
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        message = f"the query has more than {MOST_FIELDS} fields"
        return DEFAULT, [Problem(None, message, "too_many_fields", {"most": MOST_FIELDS})]
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, text in pairs:
        if name in values:
            problems.append(Problem(name, f"{name}: given twice", "given_twice"))
        elif text.strip():
            try:
                values[name] = _value(name, text.strip())
            except SettingError as error:
                problems.append(error.problem)
    usual = _of_preset(values.pop("preset", DEFAULT_PRESET))
    setting = DEFAULT._replace(**{**usual, **values})
    if setting.tick == HARDWARE[setting.hardware].tick_s:
        setting = setting._replace(tick=None)
    return setting, problems


def parse_strictly(query: str) -> Setting:
    """SettingError names the first thing that cannot be used."""
    setting, problems = parse(query)
    if problems:
        first = problems[0]
        raise SettingError(first.field, first.message, first.code, **first.values)
    return setting


_BY_NAME = {knob.name: knob for knob in KNOBS}


def _value(name: str, text: str) -> str | float:
    if name in CHOICES:
        if text not in CHOICES[name]:
            message = f"{name}: {_shown(text)} is not one of {', '.join(CHOICES[name])}"
            raise SettingError(name, message, "not_a_choice", value=_shown(text), choices=CHOICES[name])
        return text
    if name not in _BY_NAME:
        message = f"{_shown(name)} is not a setting; there are {', '.join(NAMES)}"
        raise SettingError(None, message, "unknown_field", value=_shown(name), names=NAMES)
    return _number(_BY_NAME[name], text)


NAMES = (*CHOICES, *_BY_NAME)


def _number(knob: Knob, text: str) -> float:
    decimals = 0 if knob.whole else MOST_DECIMALS
    value = _exactly(text)
    if value is None:
        code, why = "not_a_number", "is not a number"
    elif not exact(knob.min) <= value <= exact(knob.max):
        code, why = "out_of_range", "is out of range"
    elif (value * 10**decimals).denominator > 1:
        code = "too_many_decimals"
        why = "is not a whole number" if knob.whole else f"has more than {decimals} decimals"
    else:
        return int(value) if knob.whole else float(value)
    kind = "a whole number" if knob.whole else "a number"
    expected = f"{kind} from {knob.min:,g} to {knob.max:,g} ({knob.unit})"
    values = {
        "value": _shown(text),
        "min": knob.min,
        "max": knob.max,
        "unit": knob.unit,
        "decimals": decimals,
    }
    raise SettingError(knob.name, f"{knob.name}: {_shown(text)} {why}; expected {expected}", code, **values)


def _exactly(text: str) -> Fraction | None:
    """None if it is no decimal number."""
    try:
        return exact(text) if _OF_NUMBERS.fullmatch(text) else None
    except ValueError:
        return None


def _shown(text: str) -> str:
    """As it can stand in a message: short, and without control characters."""
    cut = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return "".join(char if char.isprintable() else "?" for char in cut)


def _text(value: str | float | None) -> str:
    return value if isinstance(value, str) else "" if value is None else f"{value:.10g}"


def knobs(setting: Setting) -> list[dict[str, Any]]:
    """Every control with its value: choices by their names, numbers by their bounds."""
    values = setting.to_json()
    named = [
        {"name": name, "kind": "choice", "value": values[name], "choices": list(choices)}
        for name, choices in CHOICES.items()
    ]
    numbers = [{**knob._asdict(), "kind": "number", "value": values[knob.name]} for knob in KNOBS]
    return named + numbers
