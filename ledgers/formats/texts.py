"""Conversations as one text: what a prompt is where a trace has messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

_TEXT_KEYS = ("content", "parts", "text")
_MOST_NESTED = 8


def dialogue(texts: Iterable[str]) -> str:
    """Texts one below the other: a length by the mock's count is then the sum of theirs."""
    return "\n".join(texts)


def message_texts(messages: Any) -> list[str]:
    """The texts of chat messages: of contents that are texts, or lists of parts which have them."""
    return list(_texts(messages, _MOST_NESTED))


def _texts(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and depth:
        for item in value:
            yield from _texts(item, depth - 1)
    elif isinstance(value, dict) and depth:
        for key in _TEXT_KEYS:
            yield from _texts(value.get(key), depth - 1)
