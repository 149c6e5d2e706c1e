"""Text from elsewhere as a terminal can be given it: nothing in it moves the cursor or turns the line round.

Pure. Servers, ledgers and file names bring text with control characters and bidirectional marks, which a
terminal obeys.
"""

from __future__ import annotations

import unicodedata

# Controls, format characters (bidirectional marks among them), surrogates, private use, line and paragraph
# separators. Letters, signs, marks and blanks of any script stay, and so do characters not yet assigned.
_OBEYED = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_LAYOUT = "\n\t"


def printable(text: str) -> str:
    r"""The text with such characters shown as `\x1b` or `\u202e`; newlines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(_escape(char) if _is_obeyed(char) else char for char in text)


def one_line(text: str) -> str:
    r"""The same, and newlines shown as `\n`: a file can have one in its name."""
    return printable(text).replace("\n", "\\n")


def _is_obeyed(char: str) -> bool:
    return char not in _LAYOUT and unicodedata.category(char) in _OBEYED


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
