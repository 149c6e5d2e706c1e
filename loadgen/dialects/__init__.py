"""The dialects by the name that `--api` takes. A new one is one file and one line here."""

from __future__ import annotations

from loadgen.dialects.dialect import Dialect
from loadgen.dialects.messages import Messages
from loadgen.dialects.openai import Chat, Completions
from loadgen.dialects.responses import Responses

DIALECTS: dict[str, type[Dialect]] = {
    "chat": Chat,
    "completions": Completions,
    "responses": Responses,
    "messages": Messages,
}
