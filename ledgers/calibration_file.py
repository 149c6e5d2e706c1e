"""Where the calibration of this machine is kept, and what this machine is. For drivers, not for cores."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import msgspec

from ledgers.calibration import Calibration, Machine
from ledgers.errors import InputError
from ledgers.machine import host_facts
from ledgers.rundir import tool_version, write_json


def this_machine(event_loop: str) -> Machine:
    facts = host_facts()
    return Machine(
        system=facts["system"],
        machine=facts["machine"],
        cpu=cpu_model(),
        cpus=facts["cpus"],
        python=facts["python"],
        event_loop=event_loop,
    )


def cpu_model() -> str:
    """The processor's name where Linux tells it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def calibration_file() -> Path:
    """In the user's state directory. InputError if there is none."""
    try:
        # A path that is not absolute is to be ignored, says the XDG specification.
        state = Path(os.environ.get("XDG_STATE_HOME", ""))
        return (state if state.is_absolute() else Path.home() / ".local/state") / "tokentick/calibration.json"
    except RuntimeError:
        raise InputError("no place for the calibration: neither HOME nor XDG_STATE_HOME is set") from None


def save(calibration: Calibration) -> Path:
    """Replace the stored calibration. InputError if it cannot be written."""
    path = calibration_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    write_json(path, calibration)
    return path


def load(event_loop: str) -> tuple[Calibration | None, list[str]]:
    """The calibration of this machine by this version, if there is one; a note if its file cannot be read."""
    try:
        path = calibration_file()
        found = msgspec.json.decode(path.read_bytes(), type=Calibration)
    except (InputError, FileNotFoundError):
        return None, []
    except OSError as error:
        return None, [f"{path}: not used as a calibration: {error.strerror}"]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return None, [f"{path}: not used, it is no calibration: {error}"]
    alike = found.machine == this_machine(event_loop) and found.version == tool_version()
    return (found if alike else None), []
