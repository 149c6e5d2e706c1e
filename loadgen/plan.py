"""Everything a measured run needs to know, and what follows from that alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ledgers.ledger import Ledger
from ledgers.rundir import RunConfig
from loadgen.dialects.dialect import Dialect
from loadgen.prompts import RequestEncoder
from loadgen.replay import Rules
from loadgen.scrape import Scrape
from loadgen.target import Address, Target
from loadgen.tokenizer import TokenCounter
from loadgen.transport import Transport
from loadgen.wording import Wording


class Plan(msgspec.Struct, kw_only=True):
    """What the user asked for, made out. `headers` carry the secrets; `config` must not.

    `before` is `turns_before` of the ledger's rows. `show` prints a line, and with `show_progress` how far
    the run is; `live`: a view of that is wanted where there is a terminal.
    """

    ledger: Ledger
    before: Sequence[int] | None = None
    out: Path
    command: list[str]
    config: RunConfig
    target: Target
    dialect: Dialect
    endpoint: str
    headers: Mapping[str, str]
    scrub: Callable[[str], str]
    id_prefix: str
    prompt_seed: int = 0
    model: str | None = None
    extra_body: Mapping[str, Any] = {}
    fields: frozenset[str] = frozenset()
    wording: Wording = Wording()
    insecure: bool = False
    ca_file: Path | None = None
    key_source: str | None = None
    preflight: bool = True
    warm_ups: int = 0
    reset_mock: bool = False
    connect_timeout_s: float = 30.0
    rules: Rules = Rules()
    scrape: Scrape | None = None
    workers: int = 1
    tokenizer: TokenCounter | None = None
    record_tokens: bool = False
    record_text: bool = False
    show: Callable[[str], None] = lambda line: None
    show_progress: bool = True
    live: bool = False

    def transport(self, address: Address) -> Transport:
        return Transport(
            self.target,
            address,
            tls=self.target.tls(insecure=self.insecure, ca_file=self.ca_file),
            connect_timeout_s=self.connect_timeout_s,
        )

    def encoder(self) -> RequestEncoder:
        """As requests are written before a preflight has found what the server takes."""
        return RequestEncoder(
            dialect=self.dialect,
            target=self.target,
            path=self.target.path(self.endpoint),
            headers=self.headers,
            model=self.model or "",
            seed=self.prompt_seed,
            fields=self.fields,
            wording=self.wording,
            extra_body=self.extra_body,
        )
