"""The front door: one table of commands, each imported only when it is used."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

import click

from ledgers.errors import TokentickError
from ledgers.rundir import Finished

INTERRUPTED = 130
PIPE_CLOSED = 141  # as a shell says it of a program whose reader left
COMMANDS = {
    "serve": "mock_server.cli:serve",
    "simulate": "mock_server.cli:simulate",
    "run": "loadgen.cli:run",
    "agree": "reports.cli:agree",
    "report": "reports.cli:report",
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


@click.group(
    cls=FrontDoor,
    epilog="Example: tokentick agree toy --policy all",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@click.version_option(package_name="tokentick")
def cli() -> None:
    """Mock LLM server, load generator and simulator over one tick scheduler, and proof that they agree."""


def show(finished: Finished) -> int:
    from reports.cli import show as show_run

    return show_run(finished)


def main() -> None:
    """Run a command, and end with its exit code. A second Ctrl-C changes nothing about how."""
    code = INTERRUPTED
    with suppress(KeyboardInterrupt):
        code = _run()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _leave(code)


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
        click.echo(f"{command}: {' '.join(error.format_message().split())}", err=True)
        code = 2
    except TokentickError as error:
        click.echo(f"tokentick: {error}", err=True)
        code = error.exit_code
    except MemoryError:
        click.echo("tokentick: out of memory", err=True)
        code = 2
    except (click.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except BrokenPipeError:
        code = PIPE_CLOSED
    except OSError as error:  # files are the commands' to handle: what is left is our own output
        click.echo(f"tokentick: cannot write the output: {error.strerror}", err=True)
        code = 2
    return code


def _leave(code: int) -> NoReturn:
    """End with `code`, also if the last of the output cannot be written any more."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter will flush again
        if isinstance(error, BrokenPipeError):
            code = PIPE_CLOSED
        else:
            click.echo(f"tokentick: cannot write the output: {error.strerror}", err=True)
            code = code or 2
    sys.exit(code)


if __name__ == "__main__":
    main()
