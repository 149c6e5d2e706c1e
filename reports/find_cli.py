"""`tokentick sweep --find`: from its flags to the answer, its files and its exit code."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ledgers.errors import InputError
from ledgers.html_file import save_page
from ledgers.options import window_from
from ledgers.requirements import needs_slo
from ledgers.rows import encode
from ledgers.rundir import default_path, tool_version, write_json
from reports.find import Found, Search, check, distinct
from reports.find import find as find_rate
from reports.find_dir import FIND_FILE, RATES_FILE, SearchDirectory
from reports.find_text import find_text
from reports.forms import Form, print_form
from reports.grid import AUTO, label, points, settings
from reports.points import Server
from reports.pool import cores, pool
from reports.sweep import Sweep, draws, identity
from reports.sweep_markdown import find_markdown

INTERRUPTED = 130
MOST_SIMULATED, MOST_MEASURED = 200_000, 20_000  # requests for one rate


def find(
    options: dict[str, Any], axes: dict[str, list[Any]], server: Server | None, tell: Callable[[str], None]
) -> int:
    """The exit code: 0 found, 1 kept at no rate, 4 not resolvable."""
    search = _search(options, server)
    check(search)
    out = options["out"] or default_path("find", options["ledger"] or "made")
    directory = SearchDirectory(out, _identity(search, axes))
    if directory.done:
        tell(f"going on behind {len(directory.done)} rates")
    found: list[Found] = []
    try:
        with pool(1 if server else options["jobs"] or cores()) as each:
            for place, setting in enumerate(settings(axes)):
                known, judged = directory.judged(place), partial(directory.add, place)
                runs, name = out / "runs" / str(place), label(setting, axes)
                found.append(find_rate(search, setting, name, runs, each, tell, judged, known))
                _save(search, found, out)
    except KeyboardInterrupt:
        done = f"{len(found)} settings were answered; {out / RATES_FILE} has every rate judged"
        tell(f"interrupted: {done}; the same command with --out goes on behind them")
        return INTERRUPTED
    finally:
        directory.close()
    if not search.keep_runs:
        shutil.rmtree(out / "runs", ignore_errors=True)
    print_form(SEARCHES, options["form"], found, search, out, html=options["html"], plain=options["plain"])
    if options["html"]:
        from reports.find_page import find_page

        save_page(options["html"], find_page(_asked(search), found))
    verdicts = [each.answer.verdict for each in found]
    return 4 if "open" in verdicts else 1 if set(verdicts) == {"never"} else 0


def _json(found: Sequence[Found], search: Search, out: Path) -> bytes:
    return encode({"path": str(out), "settings": found})


SEARCHES: dict[str, Form] = {
    "text": find_text,
    "markdown": find_markdown,
    "json": _json,
    "quiet": lambda *_: (),
}


def _save(search: Search, found: list[Found], out: Path) -> None:
    write_json(out / FIND_FILE, {**_asked(search), "settings": found})


def _asked(search: Search) -> dict[str, Any]:
    """What makes a search the one that it is."""
    return {
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
    }


def _identity(search: Search, axes: dict[str, list[Any]]) -> dict[str, Any]:
    """And what each of its rates depends on."""
    low, high = search.rates or (None, None)
    grid = settings(axes)
    alike = Sweep(
        search.options,
        axes,
        grid,
        [low, high],
        points([Fraction(1)], 1, search.options["seed"], 1),
        1,
        search.server,
    )
    of_runs = identity(msgspec.structs.replace(alike, keep_runs=search.keep_runs))
    return {**of_runs, **_asked(search), "measured": of_runs["measured"]}


def _search(options: dict[str, Any], server: Server | None) -> Search:
    requirements = distinct(options["require"])
    if not requirements:
        raise InputError("--find: needs a --require, as in 'ttft.p95<=200'")
    if needs_slo(requirements) and not window_from(options).slo.given:
        raise InputError("--require: attainment and goodput need an SLO, as in --goodput e2e:1500")
    if options["repeats"] > 1:
        raise InputError("--repeats: --find repeats as often as it needs, up to --max-requests")
    rates = options["request_rate"]
    given = None if rates in (None, AUTO) else (rates[0], rates[-1])
    if given and len(rates) != 2:
        raise InputError("--request-rate: --find needs the lowest and the highest rate to try, as in 1,20")
    if options["keep_runs"] and server is None:
        raise InputError(
            "--keep-runs: a search keeps runs that it measures (--mock, --base-url), no simulated"
        )
    base = {**options, "request_rate": None}
    return Search(
        options=base,
        requirements=requirements,
        rates=given,
        resolution=options["resolution"],
        confidence=options["confidence"],
        max_requests=options["max_requests"] or (MOST_MEASURED if server else MOST_SIMULATED),
        server=server,
        keep_runs=options["keep_runs"],
        repeatable=draws({**base, "stages": None}, Fraction(1)),
    )
