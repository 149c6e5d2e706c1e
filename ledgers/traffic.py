"""Traffic classes: what each may have of a scheduler, and the file that says so."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from ledgers.errors import InputError
from ledgers.rows import encode
from ledgers.units import to_ns

EVERY_OTHER = "*"
"""The class of requests without a class, and of those whose class has no table."""
MOST_PRIORITY = 1_000_000


class TrafficClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rules of one class. None is what the scheduler has for all."""

    max_batch: Annotated[int, Meta(ge=1)] | None = None
    max_wait_s: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    reserved_slots: Annotated[int, Meta(ge=0)] = 0
    priority: Annotated[int, Meta(ge=-MOST_PRIORITY, le=MOST_PRIORITY)] = 0

    def max_wait_ns(self, usual_ns: int) -> int:
        return usual_ns if self.max_wait_s is None else to_ns(self.max_wait_s)


class Traffic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All classes, in the order of the file, and how much waiting makes up for a step of priority."""

    ageing_s: Annotated[float, Meta(gt=0, le=1e9)] = 1.0
    classes: dict[str, TrafficClass] = {}

    def every_class(self) -> dict[str, TrafficClass]:
        """With the one for every other request, which is the last one if the file does not name it."""
        return self.classes if EVERY_OTHER in self.classes else {**self.classes, EVERY_OTHER: TrafficClass()}

    def of(self, class_: str | None) -> TrafficClass:
        classes = self.every_class()
        return classes.get(class_ or EVERY_OTHER) or classes[EVERY_OTHER]

    def check_slots(self, decode_slots: int) -> None:
        """InputError if more slots are reserved than there are, or all of them and some class has none."""
        classes = self.every_class()
        reserved = sum(rules.reserved_slots for rules in classes.values())
        if reserved > decode_slots:
            raise InputError(f"--classes: {reserved} slots are reserved, but there are only {decode_slots}")
        without = next((name for name, rules in classes.items() if not rules.reserved_slots), None)
        if reserved == decode_slots and without is not None:
            raise InputError(
                f"--classes: all {decode_slots} slots are reserved, none of them for class {without}: "
                "it could wait for ever"
            )


def load_traffic(path: Path) -> Traffic:
    """The classes of a TOML file. InputError if it cannot be read, or has anything that is not known."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Traffic)
    except OSError as error:
        raise InputError(f"--classes {path}: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InputError(f"--classes {path}: {error}") from None


def traffic_toml(traffic: Traffic) -> str:
    """As the file that `load_traffic` reads."""
    lines = [f"ageing_s = {traffic.ageing_s!r}"]
    for name, rules in traffic.classes.items():
        given = {key: value for key, value in msgspec.structs.asdict(rules).items() if value is not None}
        lines += [
            f"\n[classes.{encode(name).decode()}]",
            *(f"{key} = {value!r}" for key, value in given.items()),
        ]
    return "\n".join(lines) + "\n"
