"""Bodies of megabytes: they are read beside the ticks, and what cannot be is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgers import vocabulary
from mock_server import intake
from mock_server.openai import ApiError
from mock_server.sse import words
from tests.conftest import MockServer, json_lines, serving
from tests.test_server import ask, read_all, send, state, wait_until

MIB = 2**20
TICK_MS = 20
HARDWARE = (
    "prefill_tokens_per_tick = 100000000\ndecode_slots = 64\nkv_budget_tokens = 100000000\ntick_s = 0.02\n"
)


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockServer]:
    """A server that any prompt fits, with a stream that goes on all the time."""
    path = tmp_path_factory.mktemp("roomy")
    (path / "roomy.toml").write_text(HARDWARE)
    with serving(path / "served", "--hardware", str(path / "roomy.toml"), "--max-wait", "0") as server:
        stream = send(server, {"prompt": "time", "max_tokens": 100_000, "stream": True})
        reader = threading.Thread(target=read_all, args=(stream,), daemon=True)
        reader.start()
        wait_until(lambda: state(server)["tick"] > 10)
        yield server
        server.process.kill()
        reader.join(20)


def lateness_ms(server: MockServer, first: int, last: int) -> list[float]:
    """How late these ticks ran, the latest last."""
    rows: list[Any] = json_lines(server.out / "ticks.jsonl")
    return sorted(row["late_ns"] / 1e6 for row in rows if first <= row["tick"] <= last)


BODIES = {
    "words": (b'{"max_tokens": 1, "prompt": "' + b"time and " * (12 * MIB // 9) + b'"}', 200),
    "lines": (b'{"max_tokens": 1, "prompt": "' + b"time\\nand\\n" * (12 * MIB // 10) + b'"}', 200),
    "one word": (b'{"max_tokens": 1, "prompt": "' + b"t" * 12 * MIB + b'"}', 200),
    "token ids": (b'{"max_tokens": 1, "prompt": [' + b"12345," * 200_000 + b"1]}", 200),
    "too many token ids": (b'{"max_tokens": 1, "prompt": [' + b"1," * 6 * MIB + b"1]}", 413),
    "lists": (b'{"max_tokens": 1, "prompt": [' + b"[]," * 4 * MIB + b"[]]}", 413),
    "what is ignored": (b'{"max_tokens": 1, "prompt": "time", "x": [' + b"{}," * 4 * MIB + b"1]}", 413),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_big_body_makes_no_tick_late(roomy: MockServer, name: str) -> None:
    """Three of each: every other tick meanwhile, or more, runs within its length after it is due.

    One that waits for a body has all those behind it wait as well; a busy machine delays a few.
    """
    body, status = BODIES[name]
    first = state(roomy)["tick"]
    for _ in range(3):
        assert ask(roomy, "POST", "/v1/completions", body)[0] == status
    last = state(roomy)["tick"]
    wait_until(lambda: state(roomy)["tick"] > last)
    late = lateness_ms(roomy, first, last)
    assert late[len(late) // 2] < TICK_MS, late


@given(
    st.recursive(st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_items_are_counted_as_json_has_them(value: Any) -> None:
    """Neither a comma nor a quote within a string counts, however it is escaped."""

    def commas(value: Any) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return max(0, len(inner) - 1) + sum(map(commas, inner))

    with pytest.MonkeyPatch.context() as patch:
        for ensure_ascii in (False, True):
            body = json.dumps(value, ensure_ascii=ensure_ascii).encode("utf-8", "surrogatepass")
            patch.setattr(intake, "MOST_ITEMS", commas(value) + 1)
            intake.refuse_too_many_items(body)
            patch.setattr(intake, "MOST_ITEMS", commas(value))
            with pytest.raises(ApiError):
                intake.refuse_too_many_items(body)


@given(st.text(st.sampled_from("ab \n\u3000\x1cZ模\ud800")), st.integers(1, 5))
def test_a_text_counts_the_same_however_it_is_cut(text: str, size: int) -> None:
    """Between words, at any blank that there is."""
    known = vocabulary.count_tokens(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary, "_PIECE_CHARS", size)
        assert "".join(vocabulary.pieces(text)) == text
        assert [word for piece in vocabulary.pieces(text) for word in piece.split()] == text.split()
        assert vocabulary.count_tokens(text) == known


@pytest.mark.parametrize(
    ("path", "most"), [("/mock/config", 2**16), ("/tokenize", MIB), ("/detokenize", MIB)]
)
def test_what_is_never_long_has_a_smaller_limit(server: MockServer, path: str, most: int) -> None:
    """413 that says how long it may be; and what is just as long as it may be is read."""
    status, answer, _ = ask(server, "POST", path, b" " * (most + 1))
    assert status == 413
    assert ("64 KiB" if most < MIB else "1 MiB") in answer["error"]["message"]
    assert ask(server, "POST", path, b" " * most)[0] == 400


@given(st.integers(0, 3_000), st.integers(0, 3_000))
def test_the_text_of_an_answer_goes_round_the_vocabulary(first: int, count: int) -> None:
    """Put together from whole rounds: a long one costs no more than its bytes."""
    told = [vocabulary.WORDS[index % len(vocabulary.WORDS)] for index in range(first, first + count)]
    assert words(first, first + count) == ("" if first == 0 or not count else " ") + " ".join(told)
