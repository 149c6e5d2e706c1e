"""Which request gets which fault: by its header, by a plan, or by a seeded draw.

A draw depends on the seed and the request's own id alone (its number, if it has none), so neither order nor
timing changes who is hit. `tokentick run` puts something new before its ids in each run: that does not count.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ledgers.errors import InputError
from ledgers.formats.fields import shown
from mock_server.faults import Fault, parse_fault

NONE = "none"  # said of a request that must be spared
MOST_PLAN_BYTES = 2**22
_RUN = re.compile(r"^tt-[0-9a-f]{8}-")
Number = Annotated[int, Meta(ge=1)]


class Planned(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A line of a plan: a request by its `X-Request-Id`, or by its number in the served ledger."""

    request_id: str | None = None
    number: Number | None = None
    fault: str


class FaultSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is in force. `faults` are words with a probability, `WORD@P`; without one it is 1."""

    faults: list[str] = []
    seed: int = 0
    plan: list[Planned] = []


class FaultChoice:
    """The settings, checked and ready. ValueError if anything in them is wrong."""

    def __init__(self, settings: FaultSettings, scripts: Collection[str] = ()) -> None:
        self._scripts = scripts
        self._drawn: list[tuple[float, Fault | None]] = []  # with the upper end of each one's share of 0..1
        self._by_id: dict[str, Fault | None] = {}
        self._by_number: dict[int, Fault | None] = {}
        self._seed = settings.seed
        words = [self._add_drawn(word) for word in settings.faults]
        plan = [self._add_planned(line) for line in settings.plan]
        self.settings = FaultSettings(faults=words, seed=settings.seed, plan=plan)

    def choose(self, request_id: str | None, number: int, header: str | None = None) -> Fault | None:
        """The fault of a request. ValueError if its header names none."""
        if header is not None:
            return self._fault(header)
        id = None if request_id is None else _RUN.sub("", request_id)
        if id is not None and id in self._by_id:
            return self._by_id[id]
        if number in self._by_number:
            return self._by_number[number]
        if not self._drawn:
            return None
        point = uniform(self._seed, f"#{number}" if id is None else id)
        return next((fault for end, fault in self._drawn if point < end), None)

    def _add_drawn(self, word: str) -> str:
        spelt, at, share = word.partition("@")
        fault = self._fault(spelt)
        probability = _probability(word, share) if at else 1.0
        end = (self._drawn[-1][0] if self._drawn else 0.0) + probability
        if end > 1 + 1e-9:
            raise ValueError(f"{shown(word)}: the probabilities add up to more than 1")
        self._drawn.append((end, fault))
        return f"{fault.word if fault else NONE}@{probability:.12g}"

    def _add_planned(self, line: Planned) -> Planned:
        if (line.request_id is None) == (line.number is None):
            raise ValueError(f"plan: {shown(line.fault)} needs a request_id or a number, and not both")
        fault = self._fault(line.fault)
        if line.request_id is not None:
            self._add(self._by_id, _RUN.sub("", line.request_id), fault)
        elif line.number is not None:
            self._add(self._by_number, line.number, fault)
        return msgspec.structs.replace(line, fault=fault.word if fault else NONE)

    @staticmethod
    def _add(planned: dict[Any, Fault | None], key: str | int, fault: Fault | None) -> None:
        if key in planned:
            raise ValueError(f"plan: request {shown(str(key))} is there twice")
        planned[key] = fault

    def _fault(self, word: str) -> Fault | None:
        if word.strip() == NONE:
            return None
        fault = parse_fault(word)
        self._check_script(fault)
        return fault

    def _check_script(self, fault: Fault) -> None:
        if fault.script and fault.script not in self._scripts:
            known = ", ".join(sorted(self._scripts)[:5]) + (", ..." if len(self._scripts) > 5 else "")
            raise ValueError(f"unknown script {shown(fault.script)} (loaded: {known or 'none'})")


def _probability(word: str, share: str) -> float:
    try:
        probability = float(share)
    except ValueError:
        probability = -1.0
    if not 0 <= probability <= 1:
        raise ValueError(f"{shown(word)}: the probability must be a number from 0 to 1")
    return probability


def uniform(seed: int, name: str) -> float:
    """A number in [0, 1) that is the same for the same seed and name on every machine."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:7]) / 2**56


def fault_settings(
    faults: Sequence[str], seed: int, plan_path: Path | None, scripts: Collection[str]
) -> FaultSettings:
    """What the flags of a server say. InputError if anything in them is wrong."""
    drawn = FaultSettings(faults=list(faults), seed=seed)
    planned = FaultSettings(plan=load_plan(plan_path) if plan_path else [])
    for where, settings in (("--fault", drawn), (f"--fault-plan {plan_path}", planned)):
        try:
            FaultChoice(settings, scripts)
        except ValueError as error:
            raise InputError(f"{where}: {error}") from None
    return msgspec.structs.replace(drawn, plan=planned.plan)


def load_plan(path: Path) -> list[Planned]:
    """A plan from JSONL, or from CSV whose header names the fields of `Planned`. InputError if it is none."""
    where = f"--fault-plan {path}"
    text = _text(path, where)
    read = _json_lines if text.lstrip().startswith("{") else _csv_lines
    lines = []
    for number, fields in read(text, where):
        try:
            lines.append(msgspec.convert(fields, Planned))
        except msgspec.ValidationError as error:
            raise InputError(f"{where}: line {number}: {error}") from None
    return lines


def _text(path: Path, where: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_PLAN_BYTES + 1)
        if len(data) > MOST_PLAN_BYTES:
            raise InputError(f"{where}: larger than {MOST_PLAN_BYTES // 2**20} MiB")
        return data.decode()
    except OSError as error:
        raise InputError(f"{where}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{where}: not UTF-8 text") from None


def _json_lines(text: str, where: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield number, msgspec.json.decode(line)
            except (ValueError, RecursionError) as error:  # msgspec's are ValueErrors
                raise InputError(f"{where}: line {number}: {error}") from None


def _csv_lines(text: str, where: str) -> Iterator[tuple[int, Any]]:
    lines = csv.reader(text.splitlines())
    names = next(lines, [])
    if not set(names) <= set(Planned.__struct_fields__) or "fault" not in names:
        raise InputError(f"{where}: line 1: the columns are request_id or number, and fault")
    try:
        for cells in lines:
            if len(cells) > len(names):
                raise InputError(f"{where}: line {lines.line_num}: more cells than the header has")
            fields: dict[str, Any] = {name: cell for name, cell in zip(names, cells, strict=False) if cell}
            number = fields.get("number", "")
            if number.isdecimal() and len(number) < 19:  # longer ones are refused as the text that they are
                fields["number"] = int(number)
            if fields:
                yield lines.line_num, fields
    except csv.Error as error:
        raise InputError(f"{where}: line {lines.line_num}: {error}") from None
