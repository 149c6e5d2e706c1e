"""A model's tokenizer, read from its file: for lengths that the server does not say."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from ledgers.errors import InputError


class TokenCounter(Protocol):
    def count(self, text: str) -> int:
        """How many tokens a text has, without what a server puts around it."""


class _FileTokenizer:
    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def count(self, text: str) -> int:
        whole = text.encode("utf-8", "replace").decode()  # a half of a pair of surrogates is no character
        return len(self._tokenizer.encode(whole, add_special_tokens=False).ids)


def load(path: Path) -> TokenCounter:
    """A `tokenizer.json` as models are published with. InputError if it cannot be used."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        why = "needs the package tokenizers: pip install tokenizers"
        raise InputError(f"--tokenizer {path}: {why}") from None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--tokenizer {path}: {getattr(error, 'strerror', None) or 'not text'}") from None
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing more special
        why = " ".join(str(error).split())[:200]
        raise InputError(f"--tokenizer {path}: not a tokenizer.json: {why}") from None
    tokenizer.no_truncation()  # files keep the settings of their training, which would cut counts short
    tokenizer.no_padding()
    return _FileTokenizer(tokenizer)
