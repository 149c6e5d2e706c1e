"""The dialects by the name that `--api` takes. A new one is one file and one line here."""

from __future__ import annotations

from loadgen.dialects.dialect import Dialect
from loadgen.dialects.openai import Chat, Completions

DIALECTS: dict[str, type[Dialect]] = {
    "chat": Chat,
    "completions": Completions,
}
