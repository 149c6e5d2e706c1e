"""The trace formats, and which one a file is in. A new format is a new module and a line in FORMATS."""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedReader
from typing import Protocol

from ledgers.errors import InputError
from ledgers.formats import azure, bailian, burstgpt, mooncake, native, otel, rundir, sharegpt, vidur, weka
from ledgers.formats.fields import BOM, Files, Skipped, TraceRow, shown
from ledgers.formats.head import Head
from ledgers.formats.mapped import Columns, Mapped

HEAD_BYTES = 1 << 20


class Format(Protocol):
    """What a format's module has."""

    name: str

    def detects(self, head: Head) -> bool:
        """Whether the first bytes of a file are in this format, and so in no other."""

    def read(self, file: BufferedReader, source: str) -> Iterator[TraceRow | Skipped]:
        """The rows of a file, one by one, in constant memory. InputError naming `source` and line if bad."""


_MODULES: tuple[Format, ...] = (
    *(native, azure, burstgpt, vidur, mooncake, bailian),
    *(sharegpt, weka, otel, rundir),
)
FORMATS: dict[str, Format] = {module.name: module for module in _MODULES}


def choose_format(
    file: BufferedReader, source: str, name: str | None = None, columns: Columns | None = None
) -> Format | Mapped:
    """The format named, or the one that knows the first bytes of the file; with `columns`, that mapping.

    The file's buffer should be of HEAD_BYTES, so that a long first line is seen whole. InputError if there
    is no such format.
    """
    data = file.peek(HEAD_BYTES)[:HEAD_BYTES]
    if not data.removeprefix(BOM).strip():
        raise InputError(f"{source}: the file is empty")
    if columns is not None:
        if name is not None:
            raise InputError(f"--columns: means nothing beside --trace-format {name}")
        return Mapped(columns)
    if name is not None:
        if name not in FORMATS:
            raise InputError(f"trace format {shown(name)}: known are {', '.join(FORMATS)}")
        return FORMATS[name]
    head = Head(data)
    for known in FORMATS.values():
        if known.detects(head):
            return known
    advice = "; say what is what: --columns time=NAME,prompt=NAME,output=NAME,unit=s|ms|us|ns|iso"
    where = source.paths[0] if isinstance(source, Files) else source
    raise InputError(f"{where}: no known trace format: {head.seen()}{advice if head.has_columns else ''}")
