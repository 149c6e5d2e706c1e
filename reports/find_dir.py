"""The directory of a search: `search.json` says what it is, `rates.jsonl` has a line for each rate judged.

When all settings are answered, `find.json` has the answers. What decides on the next rate are the verdicts so
far, so a search that was stopped comes to the same end if it takes from here what it has judged already.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ledgers.errors import InputError
from reports.sweep_dir import SweepDirectory
from reports.trial import Candidate

FIND_FILE, RATES_FILE = "find.json", "rates.jsonl"


class _Line(Candidate, frozen=True, kw_only=True):
    setting: int


class SearchDirectory(SweepDirectory):
    """Made, or opened where the same search has stopped."""

    WHAT, SETTINGS, LINES = "search", "search.json", RATES_FILE

    def judged(self, setting: int) -> dict[float, Candidate]:
        """The rates of a setting that were judged before."""
        of_setting = (record for record in self.done if record["setting"] == setting)
        return {record["rate"]: msgspec.convert(record, Candidate) for record in of_setting}

    def add(self, setting: int, candidate: Candidate) -> None:
        """So that a search that is stopped leaves what it has found."""
        self.append({"setting": setting, **msgspec.to_builtins(candidate)})

    @staticmethod
    def _record(path: Path, place: int, line: bytes) -> dict[str, Any]:
        try:
            msgspec.json.decode(line, type=_Line)
            record: dict[str, Any] = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: line {place + 1}: {error}") from None
        return record
