"""The trace formats, and which one a file is in. A new format is a new module and a line in FORMATS."""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedReader
from typing import Protocol

from ledgers.errors import InputError
from ledgers.formats import azure, mooncake, native
from ledgers.formats.fields import BOM, Skipped, TraceRow, first_line, shown

HEAD_BYTES = 1 << 20


class Format(Protocol):
    """What a format's module has."""

    name: str

    def detects(self, head: bytes) -> bool:
        """Whether the first bytes of a file, at least its first line, are in this format."""

    def read(self, file: BufferedReader, source: str) -> Iterator[TraceRow | Skipped]:
        """The rows of a file, one by one, in constant memory. InputError naming `source` and line if bad."""


_MODULES: tuple[Format, ...] = (native, azure, mooncake)
FORMATS: dict[str, Format] = {module.name: module for module in _MODULES}


def choose_format(file: BufferedReader, source: str, name: str | None = None) -> Format:
    """The format named, or the one that knows the first bytes of the file. InputError if there is none.

    The file's buffer should be of HEAD_BYTES, so that a long first line is seen whole.
    """
    head = file.peek(HEAD_BYTES)[:HEAD_BYTES]
    if not head.removeprefix(BOM).strip():
        raise InputError(f"{source}: the file is empty")
    if name is not None:
        if name not in FORMATS:
            raise InputError(f"trace format {shown(name)}: known are {', '.join(FORMATS)}")
        return FORMATS[name]
    for known in FORMATS.values():
        if known.detects(head):
            return known
    line = first_line(head)
    begin = f"its first line is {shown(line)}" if line.isprintable() and line else "it is not a text file"
    raise InputError(
        f"{source}: no known trace format ({', '.join(FORMATS)}): {begin} "
        "(native needs prompt_tokens, output_tokens, and arrival_s or at)"
    )
