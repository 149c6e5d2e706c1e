"""Pages made again from what earlier commands have left: of agreements, sweeps, searches and calibrations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ledgers.calibration import Calibration
from ledgers.errors import InputError
from reports.curves import Curve
from reports.find import Found
from reports.page_file import save_page

T = TypeVar("T")


def save_directory_page(file: Path, directory: Path) -> bool:
    """Write the page, if there is one."""
    page = directory_page(directory)
    if page is not None:
        save_page(file, page)
    return page is not None


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

    curves = _read(directory / "curves.json", dict[str, Any])["curves"]
    return sweep_page(
        _read(directory / "sweep.json", dict[str, Any]), _as(list[Curve], curves, directory / "curves.json")
    )


def _find(directory: Path) -> str:
    from reports.find_page import find_page

    path = directory / "find.json"
    asked = _read(path, dict[str, Any])
    return find_page(asked, _as(list[Found], asked["settings"], path))


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


def _read(path: Path, type: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=type)
    except FileNotFoundError:
        raise InputError(f"{path}: is not there, so this has not come to its end") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InputError(f"{path}: {error}") from None


def _as(type: type[T], value: Any, path: Path) -> T:
    try:
        return msgspec.convert(value, type)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {error}") from None
