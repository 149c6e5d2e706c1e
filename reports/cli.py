"""The commands of the top floor: `agree` and `report`, and how the front door shows a finished run."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from ledgers.errors import InputError
from ledgers.options import (
    ledger_from,
    ledger_options,
    number,
    scheduler_from,
    scheduler_options,
    window_from,
    window_options,
)
from ledgers.printable import printable
from ledgers.rows import encode
from ledgers.rundir import Finished, Run, default_path, make_empty, write_json
from ledgers.summary import save_summary, summarize
from ledgers.units import NS_PER_S, to_ns
from mock_server.policies import POLICIES
from reports.agree import Replay, overall, read_summary
from reports.agree import agree as run_agreement
from reports.agreement import Verdict
from reports.agreement_text import PolicyResult, agreement_text, overall_text, parts_table, side_by_side
from reports.text import request_labels, request_table, run_text, tick_lines

ROWS_SHOWN = 40
EXIT_CODES: dict[Verdict, int] = {"agree": 0, "disagree": 1, "inconclusive": 4}


@click.command(
    short_help="Do all three agree?", epilog="Example: tokentick agree toy --preset head-of-line --policy all"
)
@ledger_options
@scheduler_options([*POLICIES, "all"])
@window_options
@click.option(
    "--stall-limit",
    callback=number(),
    default="0.25",
    show_default=True,
    metavar="SECONDS",
    help="A tick or a send later than this makes the run inconclusive.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Directory for all files.  [default: under runs/]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the agreement as one JSON object.")
@click.option("--quiet", is_flag=True, help="Print the verdict only.")
def agree(**options: Any) -> int:
    """Replay LEDGER against the mock server, simulate it, and compare the two.

    Starts a mock server and a load generator as processes of their own. LEDGER is toy (the default) or a
    trace file. `--policy all` does it once for each policy.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the processes in order, as Ctrl-C does
    ledger = ledger_from(options, default="toy")
    window = window_from(options)
    policies = list(POLICIES) if options["policy"] == "all" else [options["policy"]]
    settings = [scheduler_from({**options, "policy": policy}) for policy in policies]
    out = make_empty(options["out"] or default_path("agree", ledger.name))
    limit_ns = to_ns(options["stall_limit"])
    tell = _teller(silent=options["quiet"] or options["as_json"])
    for note in ledger.notes:
        tell(f"note: {note}")
    results = []
    span_s = (ledger.rows[-1].arrival_ns or 0) / NS_PER_S
    for setting in settings:
        tell(f"replaying {len(ledger.rows)} requests in {span_s:.0f} s and more under {setting.policy} ...")
        replay = Replay(ledger, setting, window, out / setting.policy, options["seed"], limit_ns)
        try:
            results.append(_result(replay))
        except KeyboardInterrupt:
            tell(f"interrupted; what there is so far: {out}")
            return 130
    verdict = overall([result.agreement.verdict for result in results])
    answer = {"verdict": verdict, "policies": {result.policy: result.agreement for result in results}}
    write_json(out / "agreement.json", answer)
    if options["as_json"]:
        click.echo(encode(answer))
    elif options["quiet"]:
        _say(f"{verdict}  {out}")
    else:
        _show(results, out, verdict)
    return EXIT_CODES[verdict]


def _result(replay: Replay) -> PolicyResult:
    agreement = run_agreement(replay)
    summaries = (read_summary(replay.out / name) for name in ("measured", "served", "simulated"))
    return PolicyResult(replay.settings.policy, agreement, *summaries)


def _teller(*, silent: bool) -> Callable[[str], None]:
    """Says on stderr how far it is: stdout is for results."""
    return lambda line: None if silent else click.echo(printable(line), err=True)


def _say(text: str) -> None:
    click.echo(printable(text))


def _show(results: list[PolicyResult], out: Path, verdict: Verdict) -> None:
    for result in results:
        _show_requests(out / result.policy, result)
    _say(f"\n{side_by_side(results)}\n\n{parts_table(results)}")
    for result in results:
        _say("\n" + agreement_text(result.policy, result.agreement))
    _say("\n" + overall_text(verdict, out))


def _show_requests(directory: Path, result: PolicyResult) -> None:
    """The measured ledger of one policy with the server's queue delays, if it is short enough to read."""
    measured = Run(directory / "measured")
    rows = list(measured.rows())
    if len(rows) > ROWS_SHOWN:
        return
    served = {row.request_id: row for row in Run(directory / "served").rows()}
    for row in rows:
        other = served.get(row.request_id)
        if other and other.prefill_start_ns is not None and other.received_ns is not None:
            row.prefill_start_ns = (row.arrival_ns or 0) + other.prefill_start_ns - other.received_ns
    _say(f"\n{result.policy}: as measured (ms; arrival in s; queue delay as the server tells)")
    window_ns = round(result.measured["window_s"] * NS_PER_S)
    _say(request_table(rows, measured.info.config.slo, window_ns))


@click.command(
    short_help="Look at runs again.", epilog="Example: tokentick report runs/demo/continuous/served --ticks"
)
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--ticks", is_flag=True, help="Print the state after each tick, with its events if recorded.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json: the summaries.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def report(runs: tuple[Path, ...], ticks: bool, form: str, as_json: bool) -> None:
    """Rebuild the summary of run directories, whole or cut short, and print it."""
    if ticks and (as_json or form == "json"):
        raise InputError("--ticks prints a table: ticks.jsonl has the same as JSON")
    if ticks:
        for path in runs:
            _print_ticks(Run(path))
    elif as_json or form == "json":
        summaries = {str(path): refreshed_summary(Run(path)) for path in runs}
        click.echo(encode(summaries if len(runs) > 1 else summaries[str(runs[0])]))
    else:
        opened = [Run(path) for path in runs]
        for text in [_run_text(run, refreshed_summary(run)) for run in opened]:
            _say(text)


def _print_ticks(run: Run) -> None:
    if not (run.path / "ticks.jsonl").exists():
        raise InputError(f"{run.path}: has no ticks.jsonl: a measured run has no ticks, others may keep none")
    labels = request_labels(run.rows())
    for line in tick_lines(run.ticks(), labels):
        _say(line)


def refreshed_summary(run: Run) -> dict[str, Any]:
    """The summary, built anew; `summary.json` is put right where that is missing or not the same."""
    summary = summarize(run)
    with suppress(InputError):  # a directory that is read only can be looked at
        save_summary(run.path, summary)
    return summary


def show(finished: Finished) -> int:
    """What the front door prints of a run that a command has made; the exit code."""
    summary = read_summary(finished.path)
    if finished.as_json:
        click.echo(encode(summary))
    elif not finished.quiet:
        _say(_run_text(Run(finished.path), summary))
        _say(f"\nfiles: {finished.path}")
    return finished.exit_code


def _run_text(run: Run, summary: dict[str, Any]) -> str:
    rows = None
    if summary["scheduled"] <= ROWS_SHOWN:
        rows = list(run.rows())
        labels = request_labels(rows)
        for row in rows:
            row.id = labels.get(row.id, row.id)
    return run_text(run.info, summary, rows, run.notes)
