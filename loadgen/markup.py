"""The words of an HTML page, which is what servers in front of a model answer errors with. Pure."""

from __future__ import annotations

import re
from html import unescape

_MOST = 20_000  # characters that are looked at: an error is said at the beginning
_PAGE = re.compile(r"\s*(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE | re.DOTALL)
_HIDDEN = re.compile(r"<!--.*?-->|<(head|script|style)\b.*?</\1\s*>", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<[^>]*>")


def page_text(text: str) -> str:
    """What a reader sees of a page, or its title if that is all; any other text as it is."""
    text_of = text[:_MOST]
    if not _PAGE.match(text_of):
        return text
    return _words(_HIDDEN.sub(" ", text_of)) or _words(text_of)


def _words(page: str) -> str:
    return " ".join(unescape(_TAG.sub(" ", page)).split())
