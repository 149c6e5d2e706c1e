"""What a user is told when something they gave cannot be used: one line and an exit code."""


class TokentickError(Exception):
    """Ends a command with one line on stderr. The message says what is wrong, and where."""

    exit_code = 2


class InputError(TokentickError):
    """A file, flag or environment that cannot be used (exit code 2)."""


class TargetError(TokentickError):
    """A server that cannot be used: unreachable, refusing, or failing the preflight (exit code 3)."""

    exit_code = 3


class StalledError(TokentickError):
    """The machine could not keep up, so that what was measured proves nothing (exit code 4)."""

    exit_code = 4
