"""The flags that commands share, and what they mean together: which ledger, which scheduler, which window.

A command takes its options as one mapping (`**options`) and hands it to `ledger_from`, `scheduler_from` and
`window_from`. The toy ledger brings the settings of a preset; a flag that is given wins over them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

import click

from ledgers.arrivals import PROCESSES, Rate
from ledgers.errors import InputError
from ledgers.formats import FORMATS
from ledgers.formats.fields import shown
from ledgers.formats.mapped import Columns, parse_columns
from ledgers.ledger import Ledger
from ledgers.load import TOY, load_ledger, make_ledger
from ledgers.profile import Profile, parse_stages
from ledgers.settings import (
    DEFAULT_PRESET,
    HARDWARE,
    PRESETS,
    Preset,
    SchedulerSettings,
    WindowSettings,
    load_hardware,
    parse_slo,
)
from ledgers.shaping import Shaping
from ledgers.traffic import load_traffic
from ledgers.trim import Warmup
from ledgers.units import exact, to_ns

Options = Mapping[str, Any]
Command = TypeVar("Command", bound=Callable[..., Any])
SLO_NAMES = ("ttft", "tpot", "e2e", "e2el")
MOST = 10**9
"""The largest number that an option takes: a thousand million req/s, or 31 years."""


def number(
    *, word: str | None = None, zero: bool = False, most: int = MOST
) -> Callable[[click.Context, click.Parameter, str | None], Fraction | str | None]:
    """A click callback: a number kept exactly as written, or the one word that may stand in its place."""
    bounds = f"from 0 to {most:,}" if zero else f"above 0 and at most {most:,}"
    expected = f"a number {bounds}" + (f", or {word}" if word else "")

    def convert(ctx: click.Context, param: click.Parameter, value: str | None) -> Fraction | str | None:
        if value is None or value == word:
            return value
        try:
            given = exact(value)
        except ValueError:
            given = Fraction(-1)
        if not 0 <= given <= most or (given == 0 and not zero):
            raise click.BadParameter(f"{shown(value)} is not {expected}", ctx, param)
        return given

    return convert


def _stages(ctx: click.Context, param: click.Parameter, value: str | None) -> Profile | None:
    return None if value is None else parse_stages(value)


def _columns(ctx: click.Context, param: click.Parameter, value: str | None) -> Columns | None:
    return None if value is None else parse_columns(value)


class Words(click.Option):
    """An option that takes the words behind its first one too: `--goodput ttft:200 tpot:50`."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        option = parser._long_opt[self.opts[0]]
        option.process = _with_following_bounds(option.process)


def _with_following_bounds(process: Callable[[str, Any], None]) -> Callable[[str, Any], None]:
    def process_all(value: str, state: Any) -> None:
        while state.rargs and state.rargs[0].partition(":")[0] in SLO_NAMES:
            value += " " + state.rargs.pop(0)
        process(value, state)

    return process_all


columns_option = click.option(
    "--columns",
    metavar="time=NAME,prompt=NAME,output=NAME,unit=UNIT",
    callback=_columns,
    help="Read the file, any CSV, JSONL or Parquet, by these columns; also id=, session=, turn=, class=. "
    "The unit of time is ns, us, ms, s or iso (docs/traces.md).",
)

_ARRIVAL_OPTIONS = (
    click.option(
        "--request-rate",
        "--rate",
        metavar="RPS|inf",
        callback=number(word="inf"),
        help="Stretch the arrivals to this many requests per second; inf sends all at once.",
    ),
    click.option(
        "--stages",
        metavar="RPS[-RPS]:SECONDS,...",
        callback=_stages,
        help="Draw the arrivals at rates that change, in place of --request-rate and of the trace's times: "
        "5:30,5-50:60,50:30 is 5 req/s for 30 s, a ramp to 50 in 60 s, and 50 for 30 s; a rate of 0 is a "
        "pause. What does not fit is left out. Poisson, if --arrival names no other process.",
    ),
    click.option(
        "--num-prompts",
        type=click.IntRange(min=1),
        help="Take the first N requests in order of time, or make N.  [default: all, or as --stages have it]",
    ),
    click.option(
        "--arrival",
        type=click.Choice(list(PROCESSES)),
        help="Draw the arrivals from this process at --request-rate or in --stages, in place of the trace's "
        "times. rescaled stretches N gaps to N / rate seconds, as vllm bench does; it is no Poisson process.",
    ),
    click.option(
        "--burstiness",
        metavar="FACTOR",
        type=float,
        default=1.0,
        help="Shape of gamma and rescaled arrivals: 1 is Poisson, below 1 burstier, above 1 more even.",
    ),
    click.option(
        "--seed",
        type=int,
        default=0,
        show_default=True,
        help="Seed of all that is drawn. Without it the prompts of run differ each time.",
    ),
)

_LEDGER_OPTIONS = (
    click.argument("ledger", required=False),
    click.option(
        "--trace-format",
        type=click.Choice(list(FORMATS)),
        help="Read LEDGER in this format (else: detected).",
    ),
    columns_option,
    click.option(
        "--speed",
        metavar="FACTOR",
        callback=number(),
        default="1",
        help="Replay the trace's own times this many times as fast.",
    ),
    *_ARRIVAL_OPTIONS,
    click.option(
        "--sessions",
        type=click.Choice(["wait", "replay"]),
        help="Whether a turn waits for the answer before it and thinks, or comes at the trace's own time.  "
        "[default: wait, where there are think times]",
    ),
    click.option(
        "--random-input-len",
        type=click.IntRange(min=1),
        help="Make requests with prompts of this many tokens.",
    ),
    click.option(
        "--random-output-len",
        type=click.IntRange(min=1),
        help="Make requests with outputs of this many tokens.",
    ),
    click.option(
        "--random-range-ratio",
        metavar="RATIO",
        callback=number(zero=True, most=1),
        help="Draw each length from [len * (1 - RATIO), len * (1 + RATIO)].",
    ),
    click.option(
        "--preset",
        type=click.Choice(list(PRESETS)),
        help=f"Setting of the toy ledger: rate, batching, SLO and window.  [toy: {DEFAULT_PRESET}]",
    ),
)

_TRIM_OPTIONS = (
    click.option(
        "--warmup",
        metavar="SECONDS|auto",
        callback=number(word="auto", zero=True),
        help="Leave requests that arrive before this out of the figures; auto finds where TTFT settles.",
    ),
    click.option(
        "--cooldown",
        metavar="SECONDS",
        callback=number(zero=True),
        help="Leave requests that arrive within this before the last arrival out of the figures.",
    ),
)

_WINDOW_OPTIONS = (
    click.option(
        "--goodput",
        "--slo",
        cls=Words,
        multiple=True,
        metavar="NAME:MS ...",
        help="Bounds that a request must meet, as in: ttft:200 tpot:50 e2e:1500 (ms).",
    ),
    click.option(
        "--tail",
        metavar="SECONDS|drain",
        callback=number(word="drain", zero=True),
        help="End the window this long after the last arrival; drain waits for all.  [toy: 1.4, else drain]",
    ),
    *_TRIM_OPTIONS,
)


def all_of(options: Sequence[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def ledger_options(command: Command) -> Command:
    """Adds LEDGER and the flags that say how it is made or read, and when its requests arrive."""
    return all_of(_LEDGER_OPTIONS)(command)


def arrival_options(command: Command) -> Command:
    """Adds how many requests there are, and when they arrive."""
    return all_of(_ARRIVAL_OPTIONS)(command)


def trim_options(command: Command) -> Command:
    """Adds the flags that leave out what arrives at the beginning and at the end."""
    return all_of(_TRIM_OPTIONS)(command)


def window_options(command: Command) -> Command:
    """Adds the flags of the SLO and of the observation window."""
    return all_of(_WINDOW_OPTIONS)(command)


def scheduler_options(policies: Sequence[str]) -> Callable[[Command], Command]:
    """Adds the flags of the tick scheduler and its hardware. `policies` are the names to choose from."""
    return all_of(
        (
            click.option(
                "--policy",
                type=click.Choice(list(policies)),
                default="continuous",
                show_default=True,
                help="When a prefill batch may start.",
            ),
            click.option(
                "--max-batch",
                type=click.IntRange(min=1),
                help="Most requests in a prefill batch.  [default: 4]",
            ),
            click.option(
                "--max-wait",
                metavar="SECONDS",
                callback=number(zero=True),
                help="Wait at most this long for a batch to fill.  [default: 0.2]",
            ),
            click.option(
                "--prefill-chunk",
                type=click.IntRange(min=1),
                default=8,
                show_default=True,
                help="Prompt tokens per request and tick under the chunked policy.",
            ),
            click.option(
                "--classes",
                type=click.Path(path_type=Path),
                metavar="FILE",
                help="Queues, slots and priorities under the classes policy, as TOML (docs/class-queues.md).",
            ),
            click.option(
                "--max-queue",
                type=click.IntRange(min=1),
                metavar="N",
                help="Reject a request (HTTP 429) while N wait for admission.  [default: no limit]",
            ),
            click.option(
                "--max-model-len",
                type=click.IntRange(min=1),
                metavar="N",
                help="Reject a request (HTTP 400) of over N tokens, prompt and output.  [default: KV budget]",
            ),
            click.option(
                "--hardware",
                metavar="NAME|FILE",
                default="toy",
                show_default=True,
                help=f"Modelled machine: {', '.join(HARDWARE)}, or a TOML file.",
            ),
            click.option(
                "--tick",
                metavar="SECONDS",
                callback=number(),
                help="Length of a tick, in place of the hardware's.",
            ),
        )
    )


def ledger_from(options: Options, default: str | None = None) -> Ledger:
    """The planned ledger that the flags describe; `default` is the source if they name none."""
    if _is_random(options):
        return _random_ledger(options)
    source = options["ledger"] or (TOY if options["preset"] else default)
    if source is None:
        raise InputError(
            "no LEDGER: give toy, a file, or --num-prompts with --random-input-len and --random-output-len"
        )
    if options["random_range_ratio"] is not None:
        raise InputError("--random-range-ratio: needs --random-input-len and --random-output-len")
    ledger = load_ledger(
        source,
        trace_format=options["trace_format"],
        columns=options["columns"],
        request_rate=request_rate(options),
        speed=options["speed"],
        num_prompts=options["num_prompts"],
        arrival=options["arrival"],
        burstiness=options["burstiness"],
        seed=options["seed"],
        stages=options["stages"],
        sessions=options.get("sessions"),
        strict=options.get("strict", False),
        shaping=shaping_from(options),
    )
    if source == TOY and not options["preset"] and options["request_rate"] is None and not options["stages"]:
        ledger.notes.insert(0, f"neither --preset nor --request-rate given: preset {DEFAULT_PRESET}")
    return ledger


def shaping_from(options: Options) -> Shaping:
    """What the flags do to the rows of a trace; a command may take none of them but --num-prompts."""
    if "from_s" not in options:
        return Shaping(num_prompts=options["num_prompts"])
    chosen = {field.name: options[field.name] for field in fields(Shaping) if field.name != "classes"}
    return Shaping(**chosen, classes=options["only_classes"])


def request_rate(options: Options) -> Rate | None:
    """The request rate in effect: as given, or as the preset has it; made requests come all at once.

    None where stages, or a trace's own times, say when requests arrive.
    """
    given: Rate | None = options["request_rate"]
    preset = _preset(options)
    if given is not None or options["stages"]:
        return given
    if preset:
        return exact(preset.request_rate)
    return "inf" if _is_random(options) else None


def burstiness(options: Options) -> float | None:
    """That of drawn arrivals, 1 for Poisson; None where they are even, or a trace's own."""
    usual = "poisson" if options["stages"] or _is_random(options) else None
    process = options["arrival"] or usual
    return None if process in (None, "constant") else float(options["burstiness"])


def scheduler_from(options: Options) -> SchedulerSettings:
    """The scheduler that the flags describe. InputError if the hardware cannot be read."""
    usual = _preset(options) or PRESETS[DEFAULT_PRESET]  # presets differ in their rates; batching is one
    wait_s, tick_s = options["max_wait"], options["tick"]
    if options["classes"] and options["policy"] != "classes":
        raise InputError(f"--classes: means nothing under --policy {options['policy']}")
    return SchedulerSettings(
        policy=options["policy"],
        max_batch=options["max_batch"] or usual.max_batch,
        max_wait_ns=to_ns(usual.max_wait_s if wait_s is None else wait_s),
        prefill_chunk=options["prefill_chunk"],
        hardware=load_hardware(options["hardware"], None if tick_s is None else float(tick_s)),
        max_queue=options["max_queue"],
        max_model_len=options["max_model_len"],
        **({"traffic": load_traffic(options["classes"])} if options["classes"] else {}),
    )


def window_from(options: Options) -> WindowSettings:
    """The SLO and the window that the flags describe, or that the toy's preset has."""
    preset = _preset(options)
    tail = options["tail"]
    if tail is None:
        tail = preset.tail_s if preset else "drain"
    words = [word for given in options["goodput"] for word in given.split()]
    return WindowSettings(
        slo=parse_slo(words) if words or not preset else preset.slo,
        tail_ns="drain" if tail == "drain" else to_ns(tail),
        warmup_s=warmup_from(options),
        cooldown_s=cooldown_from(options),
    )


def warmup_from(options: Options) -> Warmup:
    given = options["warmup"]
    return "auto" if given == "auto" else None if given is None else float(given)


def cooldown_from(options: Options) -> float | None:
    return None if options["cooldown"] is None else float(options["cooldown"])


def _preset(options: Options) -> Preset | None:
    """What the toy ledger brings along; None for any other ledger, and for a command that takes none."""
    is_toy = not _is_random(options) and options.get("ledger", "") in (None, TOY)
    name = options.get("preset")
    if name and not is_toy:
        raise InputError(f"--preset {name}: belongs to the toy ledger, not to another")
    return PRESETS[name or DEFAULT_PRESET] if is_toy else None


def _is_random(options: Options) -> bool:
    return bool(options.get("random_input_len") or options.get("random_output_len"))


def _random_ledger(options: Options) -> Ledger:
    for name in ("num_prompts", "random_input_len", "random_output_len"):
        if options[name] is None and not (name == "num_prompts" and options["stages"]):
            raise InputError(f"{_flag(name)}: is needed to make a ledger of random lengths")
    for name, usual in (
        ("ledger", None),
        ("trace_format", None),
        ("columns", None),
        ("speed", 1),
        ("sessions", None),
    ):
        if options.get(name) != usual:
            raise InputError(
                f"{_flag(name)}: means nothing beside --random-input-len and --random-output-len"
            )
    if shaping_from(options).changes:
        raise InputError("random lengths: only a trace or toy can be shaped")
    return make_ledger(
        options["num_prompts"],
        options["random_input_len"],
        options["random_output_len"],
        range_ratio=options["random_range_ratio"] or Fraction(0),
        request_rate=request_rate(options),
        arrival=options["arrival"],
        burstiness=options["burstiness"],
        seed=options["seed"],
        stages=options["stages"],
    )


def _flag(name: str) -> str:
    return "LEDGER" if name == "ledger" else "--" + name.replace("_", "-")
