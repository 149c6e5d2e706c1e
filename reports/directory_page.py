"""Pages made again from what earlier commands have left: of agreements, sweeps, searches and calibrations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ledgers.calibration import Calibration
from ledgers.errors import InputError
from ledgers.settings import Slo
from reports.curves import Curve
from reports.find import Found

T = TypeVar("T")


class SweptLedger(msgspec.Struct):
    name: str
    requests: int


class SweptWindow(msgspec.Struct):
    slo: Slo


class SweptServer(msgspec.Struct):
    server: str


class SweepFile(msgspec.Struct):
    """What the page reads of `sweep.json`."""

    ledger: SweptLedger
    window: SweptWindow
    rates: list[float | None]
    repeats: int
    measured: SweptServer | None


class Curves(msgspec.Struct):
    curves: list[Curve]


class FindFile(msgspec.Struct):
    """What the page reads of `find.json`."""

    require: list[str]
    resolution: float
    confidence: float
    max_requests: int
    measured: str | None
    settings: list[Found]


def directory_page(directory: Path) -> str | None:
    """The page of a directory that is none of a run; None if nothing in it is known."""
    for name, page in PAGES.items():
        if (directory / name).exists():
            return page(directory)
    return None


def _agreement(directory: Path) -> str:
    from reports.agree_files import agreement_page_of

    return agreement_page_of(directory)


def _sweep(directory: Path) -> str:
    from reports.sweep_page import sweep_page

    asked, _ = _checked(directory / "sweep.json", SweepFile)
    return sweep_page(asked, _read(directory / "curves.json", Curves).curves)


def _find(directory: Path) -> str:
    from reports.find_page import find_page

    asked, checked = _checked(directory / "find.json", FindFile)
    return find_page(asked, checked.settings)


def _calibration(directory: Path) -> str:
    from reports.calibration_page import calibration_page

    return calibration_page(_read(directory / "calibration.json", Calibration))


PAGES: dict[str, Callable[[Path], str]] = {
    "agreement.json": _agreement,
    "sweep.json": _sweep,
    "find.json": _find,
    "calibration.json": _calibration,
}
"""By the file that tells what a directory is."""


def _checked(path: Path, type: type[T]) -> tuple[dict[str, Any], T]:
    """A file as it is, and as it has to be."""
    return _read(path, dict[str, Any]), _read(path, type)


def _read(path: Path, type: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=type)
    except FileNotFoundError:
        raise InputError(f"{path}: is not there, so this has not come to its end") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InputError(f"{path}: {error}") from None
