"""The command of the load generator: `tokentick run`."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import click
import msgspec
from click.core import ParameterSource

from ledgers.errors import InputError
from ledgers.html_file import check_html, html_option
from ledgers.ledger import Ledger, values
from ledgers.load import cut_to_duration
from ledgers.machine import loop_factory
from ledgers.options import (
    burstiness,
    ledger_from,
    ledger_options,
    request_rate,
    window_from,
    window_options,
)
from ledgers.plain import plain_option
from ledgers.required import require_option, requirements_from
from ledgers.rows import CLIENT_LIMIT
from ledgers.rundir import Finished, RunConfig, default_path, settings_config, tool_version
from ledgers.sessions import turns_before
from ledgers.settings import WindowSettings
from ledgers.shaping_options import shaping_options
from ledgers.summary import write_summary
from ledgers.units import to_ns
from loadgen.dialects import DIALECTS
from loadgen.dialects.dialect import Dialect
from loadgen.live.viewer import live_view
from loadgen.measure import Result, measure
from loadgen.options import asking_options, pacing_options, scraping_options
from loadgen.patience import Patience, Retries
from loadgen.plan import Plan
from loadgen.replay import Rules, to_stderr
from loadgen.scrape import Scrape, parse_scrape
from loadgen.secrecy import (
    MASK,
    Scrubber,
    is_secret_name,
    masked,
    masked_fields,
    secret_fields,
    secret_values,
)
from loadgen.sending import work
from loadgen.target import Target, parse_target
from loadgen.tokenizer import load as load_tokenizer
from loadgen.wording import TOKEN_IDS, Wording
from loadgen.workers import Crew, workers_for

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = frozenset({"host", "content-length", "transfer-encoding", "connection", "x-request-id"})
_FULL_LENGTH = frozenset({"ignore_eos", "min_tokens"})
_SECONDS = ("first_token_timeout", "stall_timeout", "request_timeout", "cancel_after")
_NO_SERVER, _FAILED, _CLIENT_LIMITED, _INTERRUPTED = 3, 1, 4, 130

EXAMPLE = """
\b
Example:
  tokentick run toy --preset busy --base-url http://127.0.0.1:8000
"""


@click.command(short_help="The load generator.", epilog=EXAMPLE)
@ledger_options
@shaping_options
@asking_options
@pacing_options
@scraping_options
@window_options
@click.option("--no-cut", is_flag=True, help="Let --tail only classify: what is in flight then may finish.")
@click.option("--record-tokens", is_flag=True, help="Keep the time of every token event in the rows.")
@click.option("--record-text", is_flag=True, help="Keep the generated text in the rows.")
@require_option
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Note something in run.json.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Run directory to make.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object, nothing else.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@plain_option()
@html_option("the run")
def run(**options: Any) -> Finished:
    """Replay LEDGER against a server, each request at its own time, and measure.

    LEDGER is toy or a trace file. Every request is sent when the ledger says, however slow the server is
    (open loop), or with --max-concurrency and no rate, when another has ended (closed loop). The rows,
    histograms and summary are left in a run directory.
    """
    check_html(options["html"], made=options["out"])
    plan = _plan(options)
    classes = values(plan.ledger.rows, "class_")
    required = requirements_from(options["require"], plan.config.slo, classes, measured=True)
    result = _run_loop(plan)
    summary = write_summary(plan.out)
    code = _exit_code(result, summary)
    return Finished(
        plan.out,
        code,
        as_json=options["as_json"],
        quiet=options["quiet"],
        said=result.notes,
        required=required,
        plain=options["plain"],
        html=options["html"],
    )


def _run_loop(plan: Plan) -> Result:
    crew = Crew(plan.workers, partial(work, plan)) if plan.workers > 1 else None
    try:
        with live_view(plan), asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(measure(plan, crew))
    except KeyboardInterrupt:  # from t0 on the run takes care of it
        to_stderr("interrupted before the first request: nothing was measured")
        raise
    finally:
        if crew is not None:
            crew.close()


def _exit_code(result: Result, summary: dict[str, Any]) -> int:
    if result.interrupted:
        return _INTERRUPTED
    limited = summary["client"]["client_limited"]
    lacking = any(CLIENT_LIMIT in reason for reason in summary["client"]["reasons"])
    if not result.completed and not lacking:  # however busy we were with refusals
        asked = summary["scheduled"] + (summary["trim"]["left_out"] if summary["trim"] else 0)
        return _NO_SERVER if result.unanswered == asked else _FAILED
    return _CLIENT_LIMITED if limited else 0


def _plan(options: dict[str, Any]) -> Plan:
    target = parse_target(options["base_url"])
    dialect = DIALECTS[options["api"]]()
    key, source = _api_key(options["api_key_file"])
    if target.basic_auth is not None and options["api_key_file"] is None:
        key = source = None  # the URL says how to log in
    headers = _headers(options, target, dialect.headers(key or ""))
    ledger, before = _ledger(options)
    _check_ids(ledger, options["client_retries"])
    window = window_from(options)
    rules = _rules(options, window)
    target.tls(insecure=options["insecure"], ca_file=options["ca_file"])  # a bad file is said at once
    endpoint = _endpoint(options["endpoint"] or dialect.path)
    scrape = _scrape(options, target, headers)
    extra_body = _extra_body(options["extra_body"])
    metadata = dict(_pair(word, "--metadata") for word in options["metadata"])
    named = secret_fields([_query(endpoint), _query(scrape.path if scrape else ""), extra_body, metadata])
    logins = [target, scrape.target] if scrape else [target]
    secrets_of_urls = [secret for login in logins for secret in (*login.secrets, login.basic_auth)]
    scrub = Scrubber([*secret_values(headers), *secrets_of_urls, *named])
    return Plan(
        ledger=ledger,
        before=before,
        out=options["out"] or default_path("measured", ledger.name),
        command=["tokentick", *_shown(sys.argv[1:], extra_body)],
        config=_config(options, window, target, scrub(endpoint), headers, scrub, metadata),
        target=target,
        dialect=dialect,
        endpoint=endpoint,
        headers=headers,
        scrub=scrub,
        id_prefix=f"tt-{secrets.token_hex(4)}",
        prompt_seed=_prompt_seed(options["seed"]),
        model=options["model"],
        extra_body=extra_body,
        fields=_fields(options, dialect),
        wording=_wording(options, dialect),
        insecure=options["insecure"],
        ca_file=options["ca_file"],
        key_source=source or _other_key_source(headers, target),
        preflight=not options["no_preflight"],
        warm_ups=options["num_warmups"],
        reset_mock=options["reset_mock"],
        connect_timeout_s=float(options["connect_timeout"]),
        rules=rules,
        scrape=scrape,
        workers=_workers(options, ledger, rules),
        tokenizer=None if options["tokenizer"] is None else load_tokenizer(options["tokenizer"]),
        record_tokens=options["record_tokens"],
        record_text=options["record_text"],
        show=(lambda line: None) if options["quiet"] else to_stderr,
        live=not options["quiet"] and not options["plain"],
    )


def _config(
    options: dict[str, Any],
    window: WindowSettings,
    target: Target,
    endpoint: str,
    headers: dict[str, str],
    scrub: Scrubber,
    metadata: dict[str, str],
) -> RunConfig:
    rate = None if _is_closed(options) else request_rate(options)
    config = RunConfig(
        cut_at_tail=_cuts(options),
        request_rate=None if rate in (None, "inf") else float(rate),
        speed=float(options["speed"]),
        arrival=options["arrival"],
        burstiness=burstiness(options),
        stages=options["stages"].words if options["stages"] else None,
        seed=options["seed"],
        base_url=target.url,
        endpoint=endpoint,
        api=options["api"],
        stream=True,
        extra={
            "headers": masked(headers),
            "ignore_eos": options["ignore_eos"],
            "closed_loop": _is_closed(options),
            **{name: options[name] for name in ("max_concurrency", "connections", "client_retries")},
            **{f"{name}_s": _seconds(options[name]) for name in (*_SECONDS, "duration", "connect_timeout")},
            "cancel_rate": None if options["cancel_rate"] is None else float(options["cancel_rate"]),
        },
        metadata={name: scrub(value) for name, value in metadata.items()},
    )
    return settings_config(config, None, window)


def _scrape(options: dict[str, Any], target: Target, headers: dict[str, str]) -> Scrape | None:
    interval = options["scrape_interval"]
    if options["scrape"] is None and interval is not None:
        raise InputError("--scrape-interval: means nothing without --scrape")
    if options["scrape"] is None:
        return None
    return parse_scrape(options["scrape"], float(interval or 1), target, headers)


def _rules(options: dict[str, Any], window: WindowSettings) -> Rules:
    seconds = {name: _seconds(options[name]) for name in _SECONDS}
    cancel_after_s, cancel_rate = seconds["cancel_after"], options["cancel_rate"]
    if cancel_rate and cancel_after_s is None:
        raise InputError("--cancel-rate: needs --cancel-after, how long these clients wait")
    patience = Patience(
        first_token_s=seconds["first_token_timeout"],
        stall_s=seconds["stall_timeout"],
        request_s=seconds["request_timeout"],
        cancel_rate=0.0 if cancel_after_s is None else 1.0 if cancel_rate is None else float(cancel_rate),
        cancel_after_s=cancel_after_s or 0.0,
        seed=options["seed"],
    )
    return Rules(
        most_in_flight=options["max_concurrency"],
        closed=_is_closed(options),
        send_for_ns=None if options["duration"] is None else to_ns(options["duration"]),
        # The tail of a preset only classifies; a tail that was asked for ends the run.
        cut_after_ns=_as_ns(window.tail_ns) if _cuts(options) else None,
        connections=options["connections"],
        patience=patience,
        retries=Retries(most=options["client_retries"], seed=options["seed"]),
    )


def _seconds(value: Any) -> float | None:
    return None if value in (None, "never") else float(value)


def _is_closed(options: dict[str, Any]) -> bool:
    """A cap without anything that says when requests arrive."""
    named = any(options[name] for name in ("arrival", "preset", "stages"))
    paced = named or options["request_rate"] not in (None, "inf")
    return options["max_concurrency"] is not None and not paced and options["speed"] == 1


def _cuts(options: dict[str, Any]) -> bool:
    """Whether what is in flight at the end of the window is cut off."""
    return options["tail"] not in (None, "drain") and not options["no_cut"]


def _as_ns(tail_ns: Any) -> int | None:
    return None if tail_ns == "drain" else tail_ns


def _endpoint(path: str) -> str:
    if not re.fullmatch(r"/[!-~]*", path):
        raise InputError(f"--endpoint {path}: expected a path that begins with /")
    return path


def _shown(words: list[str], extra_body: dict[str, Any]) -> list[str]:
    """The words of the command as they may be written down: headers and bodies have secrets in them."""
    shown: list[str] = []
    for word in words:
        flag, given, value = word.partition("=") if word.startswith("--") else ("", "", word)
        option = flag if given else shown[-1] if shown else ""
        if option == "--header":
            name = re.split("[=:]", value, maxsplit=1)[0]
            value = f"{name}={MASK}" if is_secret_name(name) else value
        elif option == "--extra-body":
            value = msgspec.json.encode(masked_fields(extra_body)).decode()
        shown.append(f"{flag}={value}" if given else value if not flag else word)
    return shown


def _query(endpoint: str) -> list[dict[str, str]]:
    """The parameters of an endpoint, as they are written and as they are meant."""
    written = dict(part.partition("=")[::2] for part in endpoint.partition("?")[2].split("&"))
    return [written, {name: unquote_plus(value) for name, value in written.items()}]


def _ledger(options: dict[str, Any]) -> tuple[Ledger, Sequence[int] | None]:
    """What is replayed, and which turn each of its rows waits for, if any does."""
    ledger = ledger_from(options)
    if _is_closed(options):
        most = options["max_concurrency"]
        ledger.notes[-1:] = [f"closed loop: {most} at a time; arrival times are not used"]
    if options["duration"] is not None and not _is_closed(options):
        ledger = cut_to_duration(ledger, options["duration"])
    before = turns_before(ledger.rows)
    if before is None and any(label is not None for label in values(ledger.rows, "session")):
        ledger.notes.append("sessions are labels here: a turn does not wait for the one before it")
    return ledger, before


def _workers(options: dict[str, Any], ledger: Ledger, rules: Rules) -> int:
    """Who waits for a place must get the first that comes free, whoever gives it back: one process knows."""
    count: int | None = options["workers"]
    if rules.most_in_flight is None:
        return count or workers_for(ledger.rows)
    if count is not None and count > 1:
        raise InputError(f"--workers {count}: under --max-concurrency one process sends all")
    return 1


def _check_ids(ledger: Ledger, retries: int) -> None:
    """Further attempts get ids of their own, which none of the ledger's may be."""
    ids = {row.id for row in ledger.rows} if retries else set()
    for row in ledger.rows if retries else ():
        taken = next((k for k in range(1, retries + 1) if f"{row.id}~{k}" in ids), None)
        if taken:
            raise InputError(
                f"--client-retries: the ledger has an id {row.id}~{taken}, as a retry would have"
            )


def _fields(options: dict[str, Any], dialect: Dialect) -> frozenset[str]:
    """The optional fields that are tried; without a preflight those that nearly all servers take."""
    forced, tried = options["ignore_eos"], not options["no_preflight"]
    full = forced or (forced is None and tried)
    return frozenset(dialect.optional) - (frozenset() if full else _FULL_LENGTH)


def _prompt_seed(seed: int) -> int:
    """The seed that was given. Else a new one: a prefix cache must not know the prompts of the last run."""
    given = click.get_current_context().get_parameter_source("seed") is not ParameterSource.DEFAULT
    return seed if given else secrets.randbits(32)


def _wording(options: dict[str, Any], dialect: Dialect) -> Wording:
    if options["prompt_ids"] and not dialect.takes_ids:
        raise InputError(f"--prompt-ids: --api {options['api']} has no place for token ids")
    return TOKEN_IDS if options["prompt_ids"] else Wording()


def _headers(options: dict[str, Any], target: Target, key_headers: dict[str, str]) -> dict[str, str]:
    headers = {
        "User-Agent": f"tokentick/{tool_version()}",
        "Accept": "text/event-stream",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
    }
    if target.basic_auth is not None:
        headers["Authorization"] = f"Basic {target.basic_auth}"
    headers |= key_headers
    for word in options["header"]:
        name, value = _pair(word, "--header")
        if not _HEADER_NAME.fullmatch(name) or name.lower() in _OURS or not _is_field_value(value):
            raise InputError(f"--header {name}: not a header that can be set")
        same = next((known for known in headers if known.lower() == name.lower()), name)
        headers.pop(same, None)
        headers[name] = value
    return headers


def _api_key(file: str | None) -> tuple[str | None, str | None]:
    """The key, and where it was found."""
    if file is None:
        source, key = "OPENAI_API_KEY", os.environ.get("OPENAI_API_KEY", "").strip()
    else:
        source = f"--api-key-file {file}"
        try:
            key = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{source}: {getattr(error, 'strerror', None) or 'not text'}") from None
    if not _is_field_value(key):
        raise InputError(f"{source}: the key has characters that no header can carry")
    return (key, source) if key else (None, None)


def _other_key_source(headers: dict[str, str], target: Target) -> str | None:
    if target.basic_auth is not None:
        return "the URL"
    return "--header" if secret_values(headers) else None


def _is_field_value(value: str) -> bool:
    return all(" " <= char <= "~" or "\xa0" <= char <= "\xff" for char in value)


def _pair(word: str, flag: str) -> tuple[str, str]:
    """`NAME=VALUE`, or `Name: value` as in HTTP."""
    match = re.fullmatch(r"([^=:\s]+)(?:=|:\s*)(.*)", word, re.DOTALL)
    if not match:
        raise InputError(f"{flag} {word.partition('=')[0][:40]}: expected NAME=VALUE")
    return match[1], match[2]


def _extra_body(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise InputError(f"--extra-body: not a JSON object: {error}") from None
