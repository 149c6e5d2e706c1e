"""Run directories: what a run leaves behind, and everything that is ever printed about it.

Rows are appended as they happen, each with one write to the kernel, so that a run killed at any moment keeps
every row that ended. `run.json` and `summary.json` are replaced atomically. A last line without its newline
is half a row: readers leave it out and say so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from ledgers.calibration import Calibration
from ledgers.errors import InputError
from ledgers.health import HealthSample
from ledgers.machine import host_facts
from ledgers.replacing import replacing
from ledgers.requirements import Requirement
from ledgers.rows import RequestRow, TickRow, encode, row_decoder, tick_decoder
from ledgers.server_metrics import ServerSample
from ledgers.settings import Hardware, SchedulerSettings, Slo, WindowSettings
from ledgers.traffic import Traffic
from ledgers.trim import Warmup
from ledgers.units import NS_PER_S

SCHEMA = 1
SERVER_METRICS_FILE = "server_metrics.jsonl"
Kind = Literal["simulated", "served", "measured"]
T = TypeVar("T")
_READ_BYTES = 1 << 16


class LedgerInfo(msgspec.Struct, forbid_unknown_fields=True):
    """Which ledger a run replayed: the sha256 is of the planned rows, not of the file."""

    name: str
    sha256: str | None = None
    requests: int | None = None


class Clock(msgspec.Struct, forbid_unknown_fields=True):
    """Where t0 of the rows lies on the monotonic and on the wall clock, and what took the stamps."""

    t0_monotonic_ns: int | None = None
    t0_unix_ns: int | None = None
    stamp_source: str | None = None


class RunConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The settings a reader of the rows needs; None where one has no meaning for the kind of run."""

    policy: str | None = None
    max_batch: int | None = None
    max_wait_s: float | None = None
    prefill_chunk: int | None = None
    hardware: Hardware | None = None
    max_queue: int | None = None
    max_model_len: int | None = None
    traffic: Traffic | None = None
    slo: Slo = Slo()
    tail_s: float | Literal["drain"] = "drain"
    cut_at_tail: bool = False
    warmup_s: Warmup = None
    cooldown_s: float | None = None
    request_rate: float | None = None
    speed: float | None = None
    arrival: str | None = None
    burstiness: float | None = None
    stages: str | None = None
    seed: int | None = None
    base_url: str | None = None
    endpoint: str | None = None
    api: str | None = None
    model: str | None = None
    stream: bool | None = None
    extra: dict[str, Any] = {}
    metadata: dict[str, str] = {}

    @property
    def closed_loop(self) -> bool:
        """Whether a request left when another had ended, so that there was no rate that was asked for."""
        return bool(self.extra.get("closed_loop"))


class RunInfo(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The content of `run.json`."""

    kind: Kind
    schema: int = SCHEMA
    tool: str = "tokentick"
    version: str = ""
    started_at: str = ""
    command: list[str] = []
    config: RunConfig
    ledger: LedgerInfo
    clock: Clock = msgspec.field(default_factory=Clock)
    target: dict[str, Any] | None = None
    host: dict[str, Any] = {}
    calibration: Calibration | None = None
    notes: list[str] = []
    complete: bool = False
    interrupted: bool = False


def tool_version() -> str:
    try:
        return version("tokentick")
    except PackageNotFoundError:  # a checkout that was not installed
        return "0+unknown"


def settings_config(
    config: RunConfig, scheduler: SchedulerSettings | None, window: WindowSettings
) -> RunConfig:
    """The config with the settings of the scheduler, if there is one, and of the window filled in."""
    config.slo = window.slo
    config.tail_s = "drain" if window.tail_ns == "drain" else window.tail_ns / NS_PER_S
    config.warmup_s, config.cooldown_s = window.warmup_s, window.cooldown_s
    if scheduler:
        config.policy = scheduler.policy
        config.max_batch = scheduler.max_batch
        config.max_wait_s = scheduler.max_wait_ns / NS_PER_S
        config.prefill_chunk = scheduler.prefill_chunk
        config.hardware = scheduler.hardware
        config.max_queue = scheduler.max_queue
        config.max_model_len = scheduler.max_model_len
        config.traffic = scheduler.traffic if scheduler.policy == "classes" else None
    return config


def command_line() -> list[str]:
    """The command of this process, without the path of the program."""
    return ["tokentick", *sys.argv[1:]]


def file_stem(name: str) -> str:
    """A name as it can stand in a file's."""
    return "".join(char if char.isalnum() or char in "._-" else "_" for char in name)[:40]


def default_path(kind: str, ledger_name: str) -> Path:
    """Where a run goes that was not told: `runs/<UTC time>-<kind>-<ledger>`."""
    return Path("runs") / f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{kind}-{file_stem(ledger_name)}"


class Finished(NamedTuple):
    """What a command that made a run directory hands to the front door, which shows it.

    `said`: notes of the run that stand on stderr already. `required`: what it is to be judged by.
    `plain`: text for a screen reader. `html`: where its page is to be, if anywhere.
    """

    path: Path
    exit_code: int = 0
    as_json: bool = False
    quiet: bool = False
    said: Sequence[str] = ()
    required: Sequence[Requirement] = ()
    plain: bool = False
    html: Path | None = None


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def make_empty(path: Path) -> Path:
    """Make a directory for results. InputError if it cannot be made, or holds anything: nothing is mixed."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        occupied = any(path.iterdir())
    except OSError as error:
        raise InputError(f"--out {path}: {error.strerror}") from None
    if occupied:
        raise InputError(f"--out {path}: exists and is not empty")
    return path


class RunWriter:
    """Writes a run directory. Files a kind of run does not need are not made."""

    def __init__(self, path: Path, info: RunInfo) -> None:
        """Make the directory and its `run.json`. InputError if it is not empty, or cannot be made."""
        self.path = path
        self.info = info
        info.version = info.version or tool_version()
        info.started_at = info.started_at or utc_now()
        info.host = info.host or host_facts()
        self._files: dict[str, int] = {}
        self._failed: dict[str, str] = {}  # files that may end in half a line, and why
        make_empty(path)
        self.save_info()
        self._open("requests.jsonl")

    def open_files(self, *names: str) -> None:
        """Make these files now: a process that runs out of descriptors later can still write to them."""
        for name in names:
            if name not in self._files:
                self._open(name)

    def add(self, row: RequestRow) -> None:
        self._append("requests.jsonl", encode(row))

    def add_tick(self, tick: TickRow) -> None:
        self._append("ticks.jsonl", encode(tick))

    def add_health(self, sample: HealthSample) -> None:
        self._append("health.jsonl", encode(sample))

    def add_lines(self, name: str, lines: bytes) -> None:
        """Append whole lines, their newlines included, to any other file of the directory."""
        self._append(name, lines.removesuffix(b"\n"))

    def start_over(self) -> None:
        """Drop all rows written so far: the run begins anew."""
        for file in self._files.values():
            os.ftruncate(file, 0)
        self._failed.clear()

    def save_info(self) -> None:
        write_json(self.path / "run.json", self.info)

    def close(self, *, complete: bool, interrupted: bool = False) -> None:
        """Close the files and say in `run.json` whether all rows are there."""
        while self._files:
            os.close(self._files.popitem()[1])
        self.info.complete = complete
        self.info.interrupted = interrupted
        self.save_info()

    def _open(self, name: str) -> int:
        path = self.path / name
        try:
            self._files[name] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from None
        return self._files[name]

    def _append(self, name: str, line: bytes) -> None:
        if name in self._failed:  # what is half a line must stay the last
            raise InputError(self._failed[name])
        file = self._files.get(name)
        if file is None:
            file = self._open(name)
        data = line + b"\n"
        try:
            while data:  # a signal or a nearly full disk can make a write short
                data = data[os.write(file, data) :]
        except OSError as error:
            self._failed[name] = f"{self.path / name}: {error.strerror}"
            raise InputError(self._failed[name]) from None


def json_file(value: Any) -> bytes:
    """A value as the content of a JSON file that people can read."""
    return msgspec.json.format(encode(value), indent=2) + b"\n"


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file so that a reader sees the old or the new one, never half of it."""
    replace_file(path, json_file(value))


def replace_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all. InputError if it cannot be done."""
    with replacing(path) as file:
        file.write(data)


class Run:
    """A run directory to read. Rows and ticks are read from the files each time, never held."""

    def __init__(self, path: Path) -> None:
        """Open a directory. InputError if it is none, or its `run.json` is not ours."""
        self.path = path
        self.info = self._read_info(path / "run.json")
        self.notes: list[str] = []

    def rows(self) -> Iterator[RequestRow]:
        return self._lines("requests.jsonl", row_decoder)

    def ticks(self) -> Iterator[TickRow]:
        return self._lines("ticks.jsonl", tick_decoder)

    def health(self) -> Iterator[HealthSample]:
        return self._lines("health.jsonl", _health_decoder)

    def server_metrics(self) -> Iterator[ServerSample]:
        return self._lines(SERVER_METRICS_FILE, _server_decoder)

    @staticmethod
    def _read_info(path: Path) -> RunInfo:
        try:
            data = path.read_bytes()
            schema = msgspec.json.decode(data, type=dict[str, Any]).get("schema")
            if schema != SCHEMA:
                raise InputError(f"{path}: schema {schema!r}, this version reads {SCHEMA}")
            return msgspec.json.decode(data, type=RunInfo)
        except FileNotFoundError:
            below = [*sorted(path.parent.glob("*/run.json")), *sorted(path.parent.glob("*/*/run.json"))]
            inside = f"; {below[0].parent} is one" if below else ""
            raise InputError(f"{path.parent}: not a run directory (it has no run.json{inside})") from None
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from None
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise InputError(f"{path}: {error}") from None

    def _lines(self, name: str, decoder: msgspec.json.Decoder[T]) -> Iterator[T]:
        path = self.path / name
        if not path.exists():
            return
        count = 0
        try:
            with path.open("rb") as file:
                while lines := file.readlines(_READ_BYTES):
                    whole = lines if lines[-1].endswith(b"\n") else lines[:-1]
                    yield from _decoded(decoder, whole, path, count)
                    count += len(lines)
                    if len(whole) < len(lines):
                        self._note(f"{name}: line {count} is cut off and left out")
                        return
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from None

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


_health_decoder = msgspec.json.Decoder(HealthSample)
_server_decoder = msgspec.json.Decoder(ServerSample)


def _decoded(decoder: msgspec.json.Decoder[T], lines: list[bytes], path: Path, count: int) -> Iterator[T]:
    """The values of lines that follow the first `count` of a file."""
    if values := _decoded_at_once(decoder, lines):
        yield from values
        return
    for number, line in enumerate(lines, count + 1):
        try:
            yield decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: line {number}: {error}") from None


def _decoded_at_once(decoder: msgspec.json.Decoder[T], lines: list[bytes]) -> list[T]:
    """The values of lines, in half the time; none unless each line surely holds one object."""
    data = b"".join(lines)
    if not data.startswith(b"{") or data.count(b"}\n{") != len(lines) - 1:  # one may go on in the next line
        return []
    try:
        values = decoder.decode_lines(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    return values if len(values) == len(lines) else []  # two may stand in one line
