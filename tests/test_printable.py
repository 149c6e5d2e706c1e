"""What a terminal would obey is shown, and everything that people write stays."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgers.printable import printable
from ledgers.rundir import Run
from tests.conftest import tokentick


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


def test_the_name_of_a_ledger_need_not_be_unicode(tmp_path: Path) -> None:
    """Its bytes are escaped in what is written of the run, which can be read again."""
    ledger = os.fsdecode(bytes(tmp_path) + b"/\xff.csv")
    Path(ledger).write_text("prompt_tokens,output_tokens,arrival_s\n5,2,0\n")
    result = tokentick("simulate", ledger, "--out", "out", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert Run(tmp_path / "out").info.ledger.name == "\\udcff.csv"
