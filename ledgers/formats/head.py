"""The first bytes of a file, as formats look at them to know their own."""

from __future__ import annotations

from functools import cached_property

from ledgers.formats.documents import first_keys
from ledgers.formats.fields import BOM, columns, first_line


class Head:
    """At least the first line of a file; all of its first record, if that is not longer than a megabyte."""

    def __init__(self, data: bytes) -> None:
        self.data = data.removeprefix(BOM)

    @cached_property
    def line(self) -> str:
        """The first line that is not blank."""
        return first_line(self.data)

    @cached_property
    def keys(self) -> frozenset[str]:
        """The keys of the first JSON object; none of a file that is no JSON."""
        return frozenset(first_keys(self.data))

    @cached_property
    def columns(self) -> frozenset[str]:
        """The column names of a CSV file; none of a JSON file."""
        return frozenset() if self.is_json else frozenset(columns(self.line))

    @property
    def is_json(self) -> bool:
        return self.line.startswith(("{", "["))

    @property
    def is_parquet(self) -> bool:
        return self.data.startswith(b"PAR1")

    @property
    def has_columns(self) -> bool:
        """Whether it may be a file in which columns could be named."""
        return self.is_parquet or (bool(self.line) and self.line.isprintable())

    def seen(self) -> str:
        """What a user is told of a file that no format knows."""
        if self.is_parquet:
            return "it is a Parquet file"
        if self.data.startswith(b"\x1f\x8b"):
            return "it is compressed (gunzip it first)"
        if not self.has_columns:
            return "it is not a text file"
        if names := first_keys(self.data):
            return f"its first keys are {_listed(names)}"
        if "," in self.line and (names := columns(self.line)):
            return f"its columns are {_listed(names)}"
        return f"its first line is {self.line[:60]!r}"


def _listed(names: list[str]) -> str:
    text = ", ".join(name if name.isprintable() else repr(name) for name in names[:8])
    more = len(names) > 8 or len(text) > 80
    return text[:80] + "…" * more
