"""How to serve, besides the scheduler's settings."""

from __future__ import annotations

import msgspec

from mock_server.fault_choice import FaultSettings
from mock_server.keys import ApiKeys
from mock_server.scripts import Script
from mock_server.sse import Style


class ServeOptions(msgspec.Struct, frozen=True):
    """`strict_ms`: a tick that runs later than that ends the server."""

    model: str = "tokentick-mock"
    default_output_tokens: int = 16
    grace_s: float = 5.0
    request_timeout_s: float = 30.0
    max_connections: int = 16_384
    strict_ms: float | None = None
    record_tokens: bool = False
    record_events: bool = False
    record_ticks: bool = True
    style: Style = Style()
    keys: ApiKeys | None = None
    faults: FaultSettings = FaultSettings()
    scripts: dict[str, Script] = {}
