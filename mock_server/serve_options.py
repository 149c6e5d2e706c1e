"""How to serve, besides the scheduler's settings. What is usual is said where the flags are."""

from __future__ import annotations

import msgspec

from mock_server.fault_choice import FaultSettings
from mock_server.keys import ApiKeys
from mock_server.scripts import Script
from mock_server.sse import Style


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`strict_ms`: a tick that runs later than that ends the server."""

    model: str
    default_output_tokens: int
    grace_s: float
    request_timeout_s: float
    keep_alive_s: float
    max_connections: int
    strict_ms: float | None
    record_tokens: bool
    record_events: bool
    record_ticks: bool
    style: Style
    keys: ApiKeys | None
    faults: FaultSettings
    scripts: dict[str, Script]
