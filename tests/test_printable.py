"""What a terminal would obey is shown, and everything that people write stays."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgers.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", r"\x1b[31mred"),
        ("bell\x07 back\x08 return\r", r"bell\x07 back\x08 return\x0d"),
        ("\x00\x7f\x85\x9b", r"\x00\x7f\x85\x9b"),
        ("\u202eabc\u202c \u2066x\u2069", r"\u202eabc\u202c \u2066x\u2069"),
        ("zero\u200bwidth\ufeff\xad", r"zero\u200bwidth\ufeff\xad"),
        ("line\u2028paragraph\u2029", r"line\u2028paragraph\u2029"),
        ("lone\ud800", r"lone\ud800"),
        ("private\ue000 \U000f0000 tag\U000e0041", r"private\ue000 \U000f0000 tag\U000e0041"),
    ],
)
def test_what_a_terminal_would_obey_is_shown(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    "text", ["", "é 中 🎉 ☝🏽 한 ع א", "two\nlines\tand a tab", "a\xa0b", r"\x1b", "e\u0301"]
)
def test_what_people_write_stays(text: str) -> None:
    assert printable(text) == text


@given(st.text(st.characters()))
def test_nothing_that_is_obeyed_is_left_and_once_is_enough(text: str) -> None:
    shown = printable(text)
    kinds = {unicodedata.category(char) for char in shown if char not in "\n\t"}
    assert not kinds & {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    assert printable(shown) == shown
