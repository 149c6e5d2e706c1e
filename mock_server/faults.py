"""Faults by name: the words for them, and what each makes of a request's outcome. Pure.

One spelling everywhere (flag, header, plan, configuration, ledger): `KIND` or `KIND:name=value,name=value`.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ledgers.formats.fields import shown
from ledgers.rows import Outcome, RequestRow

KINDS: dict[str, tuple[str, ...]] = {
    "http-429": ("retry_after",),
    "http-500": (),
    "http-503": ("retry_after",),
    "error-event": ("after",),
    "cut": ("after",),
    "stall": ("after", "seconds"),
    "slow-first-byte": ("seconds",),
    "malformed-event": ("after",),
    "broken-utf8": ("after",),
    "wrong-usage": ("by",),
}
"""Each kind with its parameters. `script:NAME`, which has none, is the one kind more."""

SCRIPT = "script"
NAME = re.compile(r"[A-Za-z0-9._-]+")
MOST = 10**9
MOST_SECONDS = 3600.0
ENDS_EARLY: dict[str, tuple[Outcome, Outcome]] = {
    "cut": ("truncated", "connect_error"),
    "error-event": ("stream_error", "http_error"),
}
"""The kinds by which a request leaves before its last token: how a streamed answer ends, and a whole one."""


class Fault(msgspec.Struct, frozen=True):
    """One fault; of the parameters, those of its kind mean something."""

    kind: str
    after: int = 1
    seconds: float = 1.0
    retry_after: int = 1
    by: int = 1
    script: str = ""

    @property
    def word(self) -> str:
        """With all its parameters, so that a ledger needs no defaults to be understood."""
        if self.script:
            return f"{SCRIPT}:{self.script}"
        given = ",".join(f"{name}={_spelt(getattr(self, name))}" for name in KINDS[self.kind])
        return f"{self.kind}:{given}" if given else self.kind

    @property
    def strikes_after(self) -> int:
        """How many tokens come before it; an answer of no more than that is spared."""
        return self.after if "after" in KINDS.get(self.kind, ()) else 0

    @property
    def http_status(self) -> int | None:
        """The status that is the whole fault."""
        return int(self.kind[5:]) if self.kind.startswith("http-") else None

    @property
    def told_retry_after(self) -> int | None:
        return self.retry_after if "retry_after" in KINDS.get(self.kind, ()) else None

    @property
    def ends_early(self) -> bool:
        return self.kind in ENDS_EARLY


def parse_fault(word: str) -> Fault:
    """ValueError, in words that follow the name of whatever gave the word, if it is none."""
    kind, _, rest = word.strip().partition(":")
    if kind == SCRIPT:
        if not NAME.fullmatch(rest):
            raise ValueError(f"{shown(word)}: a script is named as {SCRIPT}:NAME")
        return Fault(kind, script=rest)
    if kind not in KINDS:
        raise ValueError(f"unknown fault {shown(kind)} (there are {', '.join(KINDS)}, {SCRIPT}:NAME)")
    parameters: dict[str, Any] = {}
    for pair in rest.split(",") if rest else ():
        name, _, value = pair.partition("=")
        if name not in KINDS[kind]:
            known = ", ".join(KINDS[kind]) or "none"
            raise ValueError(f"{shown(word)}: unknown parameter {shown(name)} (of {kind}: {known})")
        if name in parameters:
            raise ValueError(f"{shown(word)}: {name} is there twice")
        parameters[name] = _value(word, name, value)
    return Fault(kind, **parameters)


def _value(word: str, name: str, value: str) -> float:
    if name == "seconds":
        number = float(value) if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value) else -1.0
        if 0 <= number <= MOST_SECONDS:
            return number
        raise ValueError(f"{shown(word)}: {name} must be a number from 0 to {MOST_SECONDS:g}")
    sign = "-?" if name == "by" else ""
    if re.fullmatch(sign + r"\d{1,10}", value) and abs(int(value)) <= MOST:
        return int(value)
    raise ValueError(f"{shown(word)}: {name} must be a whole number of at most {MOST:,}")


def _spelt(value: float) -> str:
    return repr(value).removesuffix(".0")


def settle(row: RequestRow) -> None:
    """Put the outcome of a scheduled row right: what its fault, which struck, made the client see."""
    fault = parse_fault(row.fault or "")
    if fault.ends_early and row.outcome == "cancelled":
        row.outcome = ENDS_EARLY[fault.kind][0 if row.streamed else 1]
    elif fault.kind == "malformed-event" and row.outcome in ("completed", "cancelled"):
        row.outcome = "stream_error"
    else:
        return
    row.error = f"fault {row.fault}"
    if row.outcome == "http_error":
        row.http_status = 500
