"""What can be changed while the server runs: `GET` and `POST /mock/config`, and the record of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from mock_server.fault_choice import FaultChoice, FaultSettings
from mock_server.openai import ApiError
from mock_server.scripts import Script

MAX_CONFIG_BYTES = 2**16  # all that are kept are written down
MOST_CHANGES = 100
"""As many are kept; each row has its fault anyhow."""

Changes = list[dict[str, Any]]


class Control:
    """The faults in force. `record` gets all settings since the start, each with its first request."""

    def __init__(
        self, faults: FaultChoice, scripts: Mapping[str, Script], record: Callable[[Changes], None]
    ) -> None:
        self.faults = faults
        self.scripts = scripts
        self._record = record
        self._changes: Changes = []
        if faults.settings != FaultSettings():
            self._note(1)

    def change(self, body: bytes, next_number: int) -> None:
        """Put the settings that a body names into force, all of them or, with ApiError, none."""
        try:
            changes = msgspec.json.decode(body, type=dict[str, Any])
            settings = {**msgspec.to_builtins(self.faults.settings), **changes}
            self.faults = FaultChoice(msgspec.convert(settings, FaultSettings), self.scripts)
        except (ValueError, RecursionError) as error:
            raise ApiError(f"config: {error}", code="invalid_config") from None
        self._note(next_number)

    def start_over(self) -> None:
        """The requests are numbered from 1 again."""
        if self._changes:
            self._changes.clear()
            self._note(1)

    def _note(self, from_number: int) -> None:
        settings = msgspec.to_builtins(self.faults.settings)
        self._changes.append({"from_request": f"S{from_number}", **settings})
        del self._changes[:-MOST_CHANGES]
        self._record(list(self._changes))
