"""Writes a file whole or not at all: beside its place, and then put there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ledgers.errors import InputError

_BUFFER = 1 << 20


def temporary_of(path: Path) -> Path:
    """What a file is written as; beside the file that a symbolic link leads to."""
    target = Path(os.path.realpath(path))
    return target.with_name(f".{target.name}.{os.getpid()}")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """The file that takes the path's place when the block ends; of one that fails nothing is left.

    A symbolic link stays one, to the file that is written. InputError if it cannot be written.
    """
    temporary = temporary_of(path)
    try:
        with temporary.open("wb", _BUFFER) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(os.path.realpath(path))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    finally:
        with suppress(OSError):
            temporary.unlink()  # also when interrupted; after the rename there is none
