"""The commands of the top floor: `tokentick agree` and `tokentick calibrate`."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from ledgers.calibration import Calibration
from ledgers.calibration_file import calibration_file, load, save
from ledgers.formats.fields import shown
from ledgers.html_file import PAGE_FILE, check_html, html_option, is_stdout, save_page
from ledgers.ledger import values
from ledgers.options import (
    ledger_from,
    ledger_options,
    number,
    scheduler_from,
    scheduler_options,
    window_from,
    window_options,
)
from ledgers.plain import plain_option
from ledgers.required import exit_code, require_option, requirements_from, verdicts
from ledgers.requirements import Judged, Requirement
from ledgers.rows import encode
from ledgers.rundir import Run, default_path, make_empty, write_json
from ledgers.settings import SchedulerSettings
from ledgers.shaping_options import shaping_options
from ledgers.summary import kept_ns
from ledgers.telling import teller
from ledgers.units import NS_PER_S, to_ns
from mock_server.policies import POLICIES
from reports.agree import Replay, overall
from reports.agree import agree as run_agreement
from reports.agreement import Verdict
from reports.agreement_markdown import agreement_markdown
from reports.agreement_text import PolicyResult, agreement_text, overall_text, parts_table, side_by_side
from reports.calibrate import calibrate as run_calibration
from reports.calibration_markdown import calibration_markdown
from reports.calibration_text import answer as calibration_answer
from reports.calibration_text import calibration_text
from reports.forms import SILENT, Form, form_option, print_form
from reports.requests_text import request_table
from reports.required_text import required_text
from reports.show import ROWS_SHOWN, read_summary, say, worst
from reports.tables import wrapped

EXIT_CODES: dict[Verdict, int] = {"agree": 0, "disagree": 1, "inconclusive": 4}
LADDER, QUICK_LADDER = (1, 10, 30, 100, 300, 1_000, 2_000), (1, 30, 300)
RUNG_S, QUICK_RUNG_S = Fraction(2), Fraction(1, 2)
MOST_STREAMS = 100_000
INCONCLUSIVE, INTERRUPTED = 4, 130
CALIBRATIONS: dict[str, Form] = {
    "text": calibration_text,
    "markdown": calibration_markdown,
    "json": encode,
    "quiet": calibration_answer,
}


@click.command(
    short_help="Do all three agree?", epilog="Example: tokentick agree toy --preset head-of-line --policy all"
)
@ledger_options
@shaping_options
@scheduler_options([*POLICIES, "all"])
@window_options
@require_option
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
@html_option("the agreement (agreement.html of --out)")
@click.option("--quiet", is_flag=True, help="Print the verdict only.")
@form_option()
@plain_option()
def agree(**options: Any) -> int:
    """Replay LEDGER against the mock server, simulate it, and compare the two.

    Starts a mock server and a load generator as processes of their own. LEDGER is toy (the default) or a
    trace file. `--policy all` does it once for each policy; for classes, where --classes says which.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the processes in order, as Ctrl-C does
    ledger = ledger_from(options, default="toy")
    window = window_from(options)
    classes = values(ledger.rows, "class_")
    required = requirements_from(options["require"], window.slo, classes, measured=True)
    settings = _settings_of_all(options) if options["policy"] == "all" else [scheduler_from(options)]
    check_html(options["html"], made=options["out"])
    out = make_empty(options["out"] or default_path("agree", ledger.name))
    limit_ns = to_ns(options["stall_limit"])
    tell = teller(silent=options["form"] in SILENT, plain=options["plain"])
    for note in ledger.notes:
        tell("\n".join(wrapped(f"note: {note}")))
    results = []
    span = _span(ledger.rows[-1].arrival_ns or 0)
    for place, setting in enumerate(settings, 1):
        text = f"replaying {len(ledger.rows)} requests {span} under {setting.policy} ..."
        tell.begun(text, place, len(settings))
        replay = Replay(ledger, setting, window, out / setting.policy, options["seed"], limit_ns)
        try:
            results.append(_result(replay))
        except KeyboardInterrupt:
            tell(f"interrupted; what there is so far: {out}")
            return 130
    tell.clear()
    verdict = overall([result.agreement.verdict for result in results])
    answer: dict[str, Any] = {"verdict": verdict}
    answer["policies"] = {result.policy: result.agreement for result in results}
    judged = {}
    if required:
        judged = {result.policy: _judged(out / result.policy, result, required) for result in results}
        answer["requirements"] = judged
    write_json(out / "agreement.json", answer)
    forms: dict[str, Form] = {
        "text": _agreement_text,
        "markdown": agreement_markdown,
        "json": lambda *_: encode(answer),
        "quiet": lambda *_: f"{verdict}  {out}",
    }
    form, html = options["form"], options["html"]
    print_form(forms, form, results, verdict, judged, out, html=html, plain=options["plain"])
    _write_pages(out, html)
    if form == "text" and not is_stdout(html):
        say(f"page:    {html or out / PAGE_FILE}")
    return EXIT_CODES[verdict] or worst(
        exit_code(result.measured, judged.get(result.policy, ())) for result in results
    )


def _write_pages(out: Path, html: Path | None) -> None:
    """In the directory, and where else one is wanted."""
    from reports.agree_files import agreement_page_of

    page = agreement_page_of(out)
    for path in dict.fromkeys(filter(None, (out / PAGE_FILE, html))):
        save_page(path, page)


def _span(last_arrival_ns: int) -> str:
    """How long a replay takes at the least."""
    span_s = last_arrival_ns / NS_PER_S
    if not span_s:
        return "at once"
    return f"in {span_s:.0f} s and more" if span_s >= 10 else f"in {span_s:.2g} s and more"


def _judged(directory: Path, result: PolicyResult, required: Sequence[Requirement]) -> list[Judged]:
    """Of the measured run; if the load generator was the limit, the agreement is inconclusive already."""
    return verdicts(Run(directory / "measured"), result.measured, required)


def _settings_of_all(options: dict[str, Any]) -> list[SchedulerSettings]:
    """Without a file of classes, there is one class, and that is continuous once more."""
    classes = options["classes"]
    apart = [scheduler_from({**options, "policy": "classes"})] if classes else []
    others = [policy for policy in POLICIES if policy != "classes"]
    return [scheduler_from({**options, "policy": policy, "classes": None}) for policy in others] + apart


def _result(replay: Replay) -> PolicyResult:
    agreement = run_agreement(replay)
    summaries = (read_summary(replay.out / name) for name in ("measured", "served", "simulated"))
    return PolicyResult(replay.settings.policy, agreement, *summaries)


def _agreement_text(
    results: Sequence[PolicyResult], verdict: Verdict, judged: Mapping[str, Sequence[Judged]], out: Path
) -> Iterator[str]:
    for result in results:
        yield from request_text(out / result.policy, result)
    yield f"\n{side_by_side(results)}\n\n{parts_table(results)}"
    for result in results:
        yield "\n" + agreement_text(result.policy, result.agreement)
    yield "\n" + overall_text(verdict, out)
    for policy, found in judged.items():
        yield f"\n{policy}, as measured: {required_text(found, unproven=verdict == 'inconclusive')}"


def request_text(directory: Path, result: PolicyResult) -> Iterator[str]:
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
    yield f"\n{result.policy}: as measured (ms; arrival in s; queue delay as the server tells)"
    yield request_table(rows, measured.info.config.slo, kept_ns(result.measured)[2])


def _streams(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int] | None:
    """`1,10,100` in ascending order."""
    if value is None:
        return None
    words = [word.strip() for word in value.split(",")]
    if not all(word.isascii() and word.isdigit() and 0 < len(word) < 10 for word in words):
        raise click.BadParameter(f"{shown(value)} is not a list of numbers, as in 1,10,100", ctx, param)
    found = sorted({int(word) for word in words})
    if not 1 <= found[0] <= found[-1] <= MOST_STREAMS:
        raise click.BadParameter(f"{shown(value)}: each from 1 to {MOST_STREAMS:,}", ctx, param)
    return found


@click.command(
    short_help="How exact is it on this machine?", epilog="Example: tokentick calibrate --streams 10,100,1000"
)
@click.option(
    "--streams",
    callback=_streams,
    metavar="N,N,...",
    help=f"Streams at a time, one load after another.  [default: {','.join(map(str, LADDER))}]",
)
@click.option(
    "--seconds",
    callback=number(most=3600),
    metavar="SECONDS",
    help=f"How long tokens come at each load.  [default: {float(RUNG_S):g}]",
)
@click.option(
    "--quick",
    is_flag=True,
    help=f"The same as --streams {','.join(map(str, QUICK_LADDER))} --seconds {float(QUICK_RUNG_S):g}.",
)
@form_option()
@click.option("--out", type=click.Path(path_type=Path), help="Keep the run directories of all loads here.")
@html_option("the calibration")
@click.option("--quiet", is_flag=True, help="Print the answer only.")
@plain_option()
def calibrate(**options: Any) -> int:
    """Find out how far off the load generator's stamps are on this machine, and up to which load.

    Starts the mock server as the truth, drives it at more and more streams of 50 tokens per second, staggered
    and in lock step, and compares the client's stamp of each token with the server's write. Takes about a
    minute. The result is kept for `tokentick run`, which then says how exact its own figures are.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the processes in order, as Ctrl-C does
    check_html(options["html"], made=options["out"])
    quick = options["quick"]
    tell = teller(silent=options["form"] in SILENT, plain=options["plain"])
    ladder = options["streams"] or (QUICK_LADDER if quick else LADDER)
    seconds = float(options["seconds"] or (QUICK_RUNG_S if quick else RUNG_S))
    with ExitStack() as work:
        out = options["out"] or Path(work.enter_context(tempfile.TemporaryDirectory(prefix="tokentick-")))
        make_empty(out)
        try:
            calibration = run_calibration(ladder, seconds, out, tell)
        except KeyboardInterrupt:
            tell("interrupted: nothing is saved")
            return INTERRUPTED
        tell.clear()
        if options["out"]:
            write_json(out / "calibration.json", calibration)
    print_form(CALIBRATIONS, options["form"], calibration, html=options["html"], plain=options["plain"])
    if not calibration.most_streams:
        tell("not saved: one of the patterns has no load at which the client was what was tried")
    else:
        tell("\n".join(wrapped(save_widest(calibration, ladder[-1]))))
    if options["html"]:
        from reports.calibration_page import calibration_page

        save_page(options["html"], calibration_page(calibration))
    return 0 if calibration.most_streams else INCONCLUSIVE


def save_widest(calibration: Calibration, tried_streams: int) -> str:
    """Save it, unless it was not to go as far as the one that is there; what became of it."""
    there, _ = load(calibration.machine.event_loop)
    if there is None:
        return f"saved: {save(calibration)}"
    other = f"the one of {there.calibrated_at[:10]}, up to {there.most_streams:,} streams"
    if tried_streams < there.most_streams:
        return f"not saved: {other}, is kept (remove {calibration_file()} to have this one)"
    return f"saved: {save(calibration)}, in place of {other}"
