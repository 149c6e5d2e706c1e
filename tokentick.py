"""The front door: one table of commands, each imported only when it is used."""

from __future__ import annotations

import os

INTERRUPTED = 130

try:  # Ctrl-C may come while these are loaded, and main is not there yet to say how that ends
    import importlib
    import io
    import signal
    import sys
    from contextlib import suppress
    from typing import NoReturn

    import click

    from ledgers.errors import TokentickError
    from ledgers.printable import one_line
    from ledgers.rundir import Finished
except KeyboardInterrupt:
    os._exit(INTERRUPTED)

PIPE_CLOSED = 141  # as a shell says it of a program whose reader left
COMMANDS = {
    "serve": "mock_server.cli:serve",
    "simulate": "mock_server.cli:simulate",
    "run": "loadgen.cli:run",
    "agree": "reports.cli:agree",
    "calibrate": "reports.cli:calibrate",
    "report": "reports.show:report",
    "compare": "reports.compare_cli:compare_command",
    "sweep": "reports.sweep_cli:sweep",
    "lab": "reports.lab.cli:lab",
    "trace": "ledgers.trace_cli:trace",
}


class FrontDoor(click.Group):
    """Loads a command's module when the command is named, so that each starts with what it needs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = COMMANDS.get(cmd_name)
        if target is None:
            return None
        module, _, name = target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Of a name that is nearly a command's, that one is said."""
        from difflib import get_close_matches

        if args[0] not in COMMANDS and (near := get_close_matches(args[0], COMMANDS, 1)):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)


@click.group(
    cls=FrontDoor,
    epilog="Example: tokentick agree toy --policy all",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@click.version_option(package_name="tokentick")
def cli() -> None:
    """Mock LLM server, load generator and simulator over one tick scheduler, and proof that they agree."""


def show(finished: Finished) -> int:
    from reports.show import show as show_run

    return show_run(finished)


def main() -> None:
    """Run a command, and end with its exit code. A second Ctrl-C changes nothing about how."""
    code = INTERRUPTED
    with suppress(KeyboardInterrupt):
        _open_standard_streams()
        code = _run()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _leave(code)


def _open_standard_streams() -> None:
    """Have /dev/null where a standard stream was closed: nobody looks for it there, and it does no harm.

    The next file opened would take its number, and be taken for it; the event loop ends the process then.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which is this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))
    _buffer_stdout()


def _buffer_stdout() -> None:
    """Unbuffered (`python -u`), a file that takes only half of what is written counts as written whole."""
    raw = getattr(sys.stdout, "buffer", None)
    if isinstance(raw, io.RawIOBase):
        whole = io.BufferedWriter(raw)
        sys.stdout = io.TextIOWrapper(whole, sys.stdout.encoding, sys.stdout.errors, line_buffering=True)


def _complain(text: str) -> None:
    """One line on stderr, whatever a server or a file name put into it."""
    click.echo(one_line(text), err=True)


def _run() -> int:
    """A user's mistake ends in one line on stderr and an exit code that says whose it is."""
    try:
        result = cli.main(prog_name="tokentick", standalone_mode=False)
        code = show(result) if isinstance(result, Finished) else result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        code = 2
    except click.ClickException as error:
        command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "tokentick"
        _complain(f"{command}: {' '.join(error.format_message().split())}")
        code = 2
    except TokentickError as error:
        _complain(f"tokentick: {error}")
        code = error.exit_code
    except MemoryError:
        _complain("tokentick: out of memory")
        code = 2
    except (click.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except (BrokenPipeError, SystemExit):  # click makes an exit with 1 of it, which is a bad verdict here
        code = PIPE_CLOSED
    except OSError as error:  # files are the commands' to handle: what is left is our own output
        code = _give_up_output(error)
    return code


def _give_up_output(error: OSError) -> int:
    """What is still buffered goes nowhere, so that it fails only once."""
    _complain(f"tokentick: cannot write the output: {error.strerror}")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 2


def _leave(code: int) -> NoReturn:
    """End with `code`, also if the last of the output cannot be written any more."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter will flush again
        code = PIPE_CLOSED
    except OSError as error:
        code = max(code, _give_up_output(error))
    sys.exit(code)


if __name__ == "__main__":
    main()
