"""What an agreement has left in its directory, read for its page: verdicts, summaries, rows on one clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ledgers.errors import InputError
from ledgers.rundir import Run
from ledgers.settings import Hardware
from reports.agree import overall, planned_ids, side
from reports.agree_charts import Ledgers
from reports.agree_page import agreement_page
from reports.agreement import Agreement
from reports.agreement_text import PolicyResult
from reports.show import read_summary
from reports.sides import on_clock

AGREEMENT_FILE = "agreement.json"


def agreement_page_of(directory: Path) -> str:
    """The page of a directory that `tokentick agree` has made, or of one policy below it."""
    found = _agreements(directory / AGREEMENT_FILE)
    policies = {directory / name if name else directory: each for name, each in found.items()}
    results = [_result(path, each) for path, each in policies.items()]
    verdict = overall([each.verdict for each in policies.values()])
    ledger = Run(next(iter(policies)) / "simulated").info.ledger.name
    return agreement_page(ledger, verdict, results, [_ledgers(path) for path in policies])


def _agreements(path: Path) -> dict[str, Agreement]:
    """By the name of the directory below; of one policy alone under an empty name."""
    try:
        content = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        found = msgspec.convert(content.get("policies", {"": content}), dict[str, Agreement])
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InputError(f"{path}: {error}") from None
    if not found:
        raise InputError(f"{path}: has no policies")
    return found


def _result(path: Path, agreement: Agreement) -> PolicyResult:
    policy = Run(path / "simulated").info.config.policy or path.name
    return PolicyResult(
        policy, agreement, *(read_summary(path / of) for of in ("measured", "served", "simulated"))
    )


def _ledgers(path: Path) -> Ledgers:
    measured, served, simulated = (Run(path / name) for name in ("measured", "served", "simulated"))
    rows = list(measured.rows())
    shift_ns = (measured.info.clock.t0_monotonic_ns or 0) - (served.info.clock.t0_monotonic_ns or 0)
    of_server = side(served, planned_ids(served, rows))
    planned = side(simulated, {})
    return Ledgers(
        measured={row.id: on_clock(row, shift_ns) for row in rows},
        served=of_server.rows,
        simulated=planned.rows,
        served_ticks=of_server.ticks,
        simulated_ticks=planned.ticks,
        hardware=simulated.info.config.hardware or Hardware(),
    )
