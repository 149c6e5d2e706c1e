"""`tokentick sweep --find`: from its flags to the answer, its files and its exit code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ledgers.errors import InputError
from ledgers.options import window_from
from ledgers.requirements import needs_slo
from ledgers.rows import encode
from ledgers.rundir import default_path, make_empty, tool_version, write_json
from reports.find import Search, check
from reports.find import find as find_rate
from reports.find_text import find_text
from reports.grid import AUTO, label, settings
from reports.points import Server
from reports.pool import cores, pool
from reports.show import say

INTERRUPTED = 130


def find(
    options: dict[str, Any], axes: dict[str, list[Any]], server: Server | None, tell: Callable[[str], None]
) -> int:
    """The exit code: 0 found, 1 kept at no rate, 4 not resolvable."""
    search = _search(options, server)
    check(search)
    out = make_empty(options["out"] or default_path("find", options["ledger"] or "made"))
    found = []
    with pool(1 if server else options["jobs"] or cores()) as each:
        for setting in settings(axes):
            try:
                found.append(find_rate(search, setting, label(setting, axes), out, each, tell))
            except KeyboardInterrupt:
                tell(f"interrupted: {len(found)} settings were answered; see {out}")
                raise
            _save(search, found, out)
    if options["as_json"]:
        click.echo(encode({"path": str(out), "settings": found}))
    elif not options["quiet"]:
        say(find_text(found, search, out))
    verdicts = [each.answer.verdict for each in found]
    return 4 if "open" in verdicts else 1 if set(verdicts) == {"never"} else 0


def _save(search: Search, found: list[Any], out: Any) -> None:
    write_json(
        out / "find.json",
        {
            "schema": 1,
            "kind": "find",
            "tool": "tokentick",
            "version": tool_version(),
            "require": [requirement.text for requirement in search.requirements],
            "resolution": search.resolution,
            "confidence": search.confidence,
            "max_requests": search.max_requests,
            "measured": search.server.shown_url if search.server else None,
            "window": window_from(search.options),
            "settings": found,
        },
    )


def _search(options: dict[str, Any], server: Server | None) -> Search:
    requirements = options["require"]
    if not requirements:
        raise InputError("--find: needs a --require, as in 'ttft.p95<=200'")
    if needs_slo(requirements) and not window_from(options).slo.given:
        raise InputError("--require: attainment and goodput need an SLO, as in --goodput e2e:1500")
    if options["repeats"] > 1:
        raise InputError("--repeats: --find repeats as often as it needs, up to --max-requests")
    rates = options["request_rate"]
    given = None if rates in (None, AUTO) else (rates[0], rates[-1])
    if given and given[0] == given[1]:
        raise InputError("--request-rate: --find needs the lowest and the highest rate to try, as in 1,20")
    return Search(
        options={**options, "request_rate": None},
        requirements=requirements,
        rates=given,
        resolution=options["resolution"],
        confidence=options["confidence"],
        max_requests=options["max_requests"],
        server=server,
        keep_runs=options["keep_runs"],
    )
