"""The front door: one table of commands, each imported only when it is used."""

from __future__ import annotations

import importlib
import sys

import click

from ledgers.errors import TokentickError
from ledgers.rundir import Finished

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


@click.group(cls=FrontDoor, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80})
@click.version_option(package_name="tokentick")
def cli() -> None:
    """Mock LLM server, load generator and simulator over one tick scheduler, and proof that they agree."""


def show(finished: Finished) -> int:
    from reports.cli import show as show_run

    return show_run(finished)


def main() -> None:
    """Run a command. A user's mistake ends in one line on stderr and an exit code that says whose it is."""
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
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output left; nothing more to say
        code = 141
    sys.exit(code)


if __name__ == "__main__":
    main()
