"""The command of the load generator: `tokentick run`."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from ledgers.errors import InputError
from ledgers.machine import loop_factory
from ledgers.options import ledger_from, ledger_options, number, request_rate, window_from, window_options
from ledgers.rundir import Finished, RunConfig, default_path, settings_config, tool_version
from ledgers.settings import WindowSettings
from ledgers.summary import write_summary
from loadgen.dialects import DIALECTS
from loadgen.measure import Plan, Result, measure
from loadgen.open_loop import to_stderr
from loadgen.secrecy import Scrubber, masked, secret_values
from loadgen.target import Target, parse_target

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = frozenset({"host", "content-length", "transfer-encoding", "connection", "x-request-id"})
_NO_SERVER, _FAILED, _CLIENT_LIMITED, _INTERRUPTED = 3, 1, 4, 130

EXAMPLE = """
\b
Example:
  tokentick run toy --preset busy --base-url http://127.0.0.1:8000
"""


@click.command(short_help="The load generator.", epilog=EXAMPLE)
@ledger_options
@click.option("--base-url", required=True, metavar="URL", help="The server, with or without /v1 at the end.")
@click.option("--endpoint", metavar="PATH", help="Path to post to.  [default: that of --api]")
@click.option(
    "--api", type=click.Choice(list(DIALECTS)), default="chat", show_default=True, help="How to ask."
)
@click.option("--model", help="Model to ask for.  [default: the first of /v1/models]")
@click.option("--header", multiple=True, metavar="NAME=VALUE", help="Add a header to every request.")
@click.option("--extra-body", metavar="JSON", help="Merge this object into every body; null removes a field.")
@click.option("--api-key-file", metavar="FILE", help="Read the API key here, not from OPENAI_API_KEY.")
@click.option("--insecure", is_flag=True, help="Do not verify the certificate of an https server.")
@click.option("--ignore-eos", is_flag=True, help="Ask for the full output length (vLLM, SGLang, llama.cpp).")
@click.option(
    "--request-timeout",
    callback=number(),
    metavar="SECONDS",
    help="Give up on a request this long after it was sent.  [default: never]",
)
@click.option(
    "--connect-timeout",
    callback=number(),
    default="30",
    show_default=True,
    metavar="SECONDS",
    help="For a connection to open, and for an answer in the preflight.",
)
@click.option(
    "--num-warmups", type=click.IntRange(0), default=0, help="Send N requests first, one by one, unrecorded."
)
@click.option("--reset-mock", is_flag=True, help="Have a tokentick server start over before t0.")
@click.option("--no-preflight", is_flag=True, help="Do not look at the server first.")
@window_options
@click.option("--no-cut", is_flag=True, help="Let --tail only classify: what is in flight then may finish.")
@click.option("--record-tokens", is_flag=True, help="Keep the time of every token event in the rows.")
@click.option("--record-text", is_flag=True, help="Keep the generated text in the rows.")
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Note something in run.json.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Run directory to make.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object, nothing else.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def run(**options: Any) -> Finished:
    """Replay LEDGER against a server, each request at its own time, and measure.

    LEDGER is toy or a trace file. Every request is sent when the ledger says, however slow the server is
    (open loop). The rows, histograms and summary are left in a run directory.
    """
    plan = _plan(options)
    result = _run_loop(plan)
    summary = write_summary(plan.out)
    code = _exit_code(result, summary)
    return Finished(plan.out, code, as_json=options["as_json"], quiet=options["quiet"])


def _run_loop(plan: Plan) -> Result:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(measure(plan))


def _exit_code(result: Result, summary: dict[str, Any]) -> int:
    if result.interrupted:
        return _INTERRUPTED
    if summary["client"]["client_limited"]:
        return _CLIENT_LIMITED
    if not result.completed:
        return _NO_SERVER if result.connect_errors == summary["scheduled"] else _FAILED
    return 0


def _plan(options: dict[str, Any]) -> Plan:
    target = parse_target(options["base_url"])
    headers = _headers(options, target)
    ledger = ledger_from(options)
    window = window_from(options)
    dialect = DIALECTS[options["api"]]()
    endpoint = _endpoint(options["endpoint"] or dialect.path)
    return Plan(
        ledger=ledger,
        out=options["out"] or default_path("measured", ledger.name),
        command=["tokentick", *sys.argv[1:]],
        config=_config(options, window, target, endpoint, headers),
        target=target,
        dialect=dialect,
        endpoint=endpoint,
        headers=headers,
        scrub=Scrubber([*secret_values(headers), *target.secrets, target.basic_auth]),
        id_prefix=f"tt-{secrets.token_hex(4)}",
        model=options["model"],
        extra_body=_extra_body(options["extra_body"]),
        fields=frozenset(dialect.optional)
        - (frozenset() if options["ignore_eos"] else {"ignore_eos", "min_tokens"}),
        insecure=options["insecure"],
        preflight=not options["no_preflight"],
        warm_ups=options["num_warmups"],
        reset_mock=options["reset_mock"],
        request_timeout_s=None if options["request_timeout"] is None else float(options["request_timeout"]),
        connect_timeout_s=float(options["connect_timeout"]),
        # The tail of a preset only classifies; a tail that was asked for ends the run.
        cut_after_ns=_as_ns(window.tail_ns) if _cuts(options) else None,
        record_tokens=options["record_tokens"],
        record_text=options["record_text"],
        show=(lambda line: None) if options["quiet"] else to_stderr,
    )


def _config(
    options: dict[str, Any],
    window: WindowSettings,
    target: Target,
    endpoint: str,
    headers: dict[str, str],
) -> RunConfig:
    rate = request_rate(options)
    config = RunConfig(
        cut_at_tail=_cuts(options),
        request_rate=None if rate in (None, "inf") else float(rate),
        speed=float(options["speed"]),
        arrival=options["arrival"],
        seed=options["seed"],
        base_url=target.url,
        endpoint=endpoint,
        api=options["api"],
        stream=True,
        extra={"headers": masked(headers), "ignore_eos": options["ignore_eos"]},
        metadata=dict(_pair(word, "--metadata") for word in options["metadata"]),
    )
    return settings_config(config, None, window)


def _cuts(options: dict[str, Any]) -> bool:
    """Whether what is in flight at the end of the window is cut off."""
    return options["tail"] not in (None, "drain") and not options["no_cut"]


def _as_ns(tail_ns: Any) -> int | None:
    return None if tail_ns == "drain" else tail_ns


def _endpoint(path: str) -> str:
    if not re.fullmatch(r"/[!-~]*", path):
        raise InputError(f"--endpoint {path}: expected a path that begins with /")
    return path


def _headers(options: dict[str, Any], target: Target) -> dict[str, str]:
    headers = {
        "User-Agent": f"tokentick/{tool_version()}",
        "Accept": "text/event-stream",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
    }
    if target.basic_auth is not None:
        headers["Authorization"] = f"Basic {target.basic_auth}"
    key = _api_key(options["api_key_file"])
    if key:
        headers["Authorization"] = f"Bearer {key}"
    for word in options["header"]:
        name, value = _pair(word, "--header")
        if not _HEADER_NAME.fullmatch(name) or name.lower() in _OURS or not _is_field_value(value):
            raise InputError(f"--header {name}: not a header that can be set")
        same = next((known for known in headers if known.lower() == name.lower()), name)
        headers.pop(same, None)
        headers[name] = value
    return headers


def _api_key(file: str | None) -> str | None:
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
    return key or None


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
