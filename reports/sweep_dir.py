"""The directory of a sweep: `sweep.json` says what it is, `points.jsonl` has a line for each point done.

When all are, `curves.json` has the curve of each setting with its knee.

Points are appended in the order of the grid, each with one write to the kernel, so that a sweep killed at any
moment has every point that it finished, and the same command goes on behind them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ledgers.errors import InputError
from ledgers.rows import encode
from ledgers.rundir import make_empty, write_json
from reports.curves import Curve

SCHEMA = 1
SWEEP_FILE, POINTS_FILE, CURVES_FILE = "sweep.json", "points.jsonl", "curves.json"


class SweepDirectory:
    """Made, or opened where a sweep of the same settings has stopped. `done`: the points that are there."""

    WHAT, SETTINGS, LINES = "sweep", SWEEP_FILE, POINTS_FILE

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        """InputError if the directory holds anything else, another sweep, or one that is running."""
        self.path = path
        self.settings: dict[str, Any] = msgspec.json.decode(encode({"schema": SCHEMA, **settings}))
        found = _settings(path / self.SETTINGS)
        if found is None:
            make_empty(path)
            write_json(path / self.SETTINGS, self.settings)
        elif found != self.settings and self._begun():
            raise InputError(f"--out {path}: is of another {self.WHAT} ({_difference(found, self.settings)})")
        self._file = self._open()
        if found not in (None, self.settings):  # nothing was done under those
            write_json(path / self.SETTINGS, self.settings)
        self.done = self._read()

    def append(self, record: dict[str, Any]) -> None:
        """Add the next point."""
        data = encode(record) + b"\n"
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            raise InputError(f"{self.path / self.LINES}: {error.strerror}") from None
        self.done.append(record)

    def keep_curves(self, curves: Sequence[Curve]) -> None:
        write_json(self.path / CURVES_FILE, {"schema": SCHEMA, "kind": "curves", "curves": curves})

    def close(self) -> None:
        os.close(self._file)

    def _begun(self) -> bool:
        path = self.path / self.LINES
        return path.exists() and path.stat().st_size > 0

    def _open(self) -> int:
        path = self.path / self.LINES
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise InputError(f"--out {self.path}: another process is at work on it") from None
        return file

    def _read(self) -> list[dict[str, Any]]:
        """What is there; half a line at the end, of a point that was being written, is dropped."""
        path = self.path / self.LINES
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        os.ftruncate(self._file, len(whole))
        return [self._record(path, place, line) for place, line in enumerate(whole.splitlines())]

    @staticmethod
    def _record(path: Path, place: int, line: bytes) -> dict[str, Any]:
        return _record(path, place, line)


class Figures(msgspec.Struct):
    """What every point has; None is what a run may have none of."""

    point: int
    setting: int
    rate: float | None
    scheduled: int
    completed: int
    rejected: int
    censored: bool
    rests_on_largest: dict[str, list[str]]
    offered_rps: float | None
    throughput_rps: float | None
    goodput_rps: float | None
    attainment: float | None
    concurrency_mean: float | None
    ttft_ms: dict[str, float] | None
    tpot_ms: dict[str, float] | None
    e2e_ms: dict[str, float] | None


def _record(path: Path, place: int, line: bytes) -> dict[str, Any]:
    """The point that is at this place. InputError, naming the line, if it is not, or is damaged."""
    try:
        point = msgspec.json.decode(line, type=Figures).point
        record: dict[str, Any] = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: line {place + 1}: {error}") from None
    if point != place:
        raise InputError(f"{path}: line {place + 1}: is point {point}, and not {place}, which is next")
    return record


def _settings(path: Path) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise InputError(f"{path}: {error}") from None


def _difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return f"it differs in {', '.join(names)}"
