"""Prompts: exact lengths on servers that count differently, and nothing shared but what the ledger shares."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgers.errors import InputError
from ledgers.rows import RequestRow
from ledgers.vocabulary import COMMON_WORDS, WORDS, count_tokens
from loadgen.dialects import DIALECTS
from loadgen.preflight import unasked
from loadgen.prompts import RequestEncoder, word_pieces
from loadgen.target import parse_target
from loadgen.tokenizer import load
from loadgen.wording import TOKEN_IDS, UNCHECKED, Wording, calibrate

Count = Callable[[str], int]
TEMPLATE = 11


def planned(prompt_tokens: int, **fields: Any) -> RequestRow:
    return RequestRow(id="r", prompt_tokens=prompt_tokens, output_tokens=1, **fields)


def encoder(wording: Wording, seed: int = 0, api: str = "completions") -> RequestEncoder:
    dialect, target = DIALECTS[api](), parse_target("http://127.0.0.1:1")
    return RequestEncoder(
        dialect=dialect, target=target, path="/", headers={}, model="m", seed=seed, wording=wording
    )


def prompt_of(row: RequestRow, index: int, wording: Wording, seed: int = 0) -> Any:
    """The prompt as it stands in the body that is sent."""
    body = encoder(wording, seed).encode(row, index).partition(b"\r\n\r\n")[2]
    return json.loads(body)["prompt"]


def toy_tokenizer(costs: dict[str, int], at_the_start: int = 2) -> Count:
    """A server: a word costs what `costs` says or 1, the first `at_the_start`, and there is a template."""

    def count(text: str) -> int:
        words = text.split(" ")
        return TEMPLATE + at_the_start + sum(costs.get(word, 1) for word in words[1:])

    return count


def greedy_pieces(text: str) -> int:
    """A server whose tokens are a blank and up to three letters: `before` is two tokens, `bef` and `ore`."""
    return TEMPLATE + sum(-(-len(word) // 4) for word in re.findall(r" ?[a-z]+", text))


def calibrated(count: Count, most_calls: int = 6, words: tuple[str, ...] = COMMON_WORDS) -> tuple[Any, int]:
    """The wording that a calibration against this count comes to, and how often it counted."""
    calibration = calibrate(words, most_calls)
    text, calls = next(calibration), 0
    while True:
        calls += 1
        try:
            text = calibration.send(count(text))
        except StopIteration as done:
            return done.value, calls


def test_the_common_words_are_words_of_the_vocabulary() -> None:
    """So the mock counts each as one token as well."""
    assert len(set(COMMON_WORDS)) == 48
    assert set(COMMON_WORDS) <= set(WORDS)


@pytest.mark.parametrize("tokens", [1, 2, 7, 1000, 12_345])
def test_a_prompt_for_the_mock_has_exactly_the_tokens(tokens: int) -> None:
    """The default wording: one word of the vocabulary is one token."""
    assert count_tokens(prompt_of(planned(tokens), 3, Wording())) == tokens


@pytest.mark.parametrize("at_the_start", [1, 2])
def test_a_server_of_single_tokens_is_known_after_two_counts(at_the_start: int) -> None:
    """Template, and a first word that costs another number of tokens: lengths are exact all the same."""
    count = toy_tokenizer({}, at_the_start)
    wording, calls = calibrated(count)
    assert calls == 2
    for tokens in (TEMPLATE + at_the_start + 1, 40, 1000):
        assert count(prompt_of(planned(tokens), 5, wording)) == tokens


@pytest.mark.parametrize(
    "costly", [("and",), ("with", "and"), COMMON_WORDS[20:30], COMMON_WORDS[::9]], ids=len
)
def test_words_that_cost_more_are_left_out(costly: tuple[str, ...]) -> None:
    """A few words of two or three tokens: what remains is exact, within six counts."""
    count = toy_tokenizer({word: 2 + (number % 2) for number, word in enumerate(costly)})
    wording, calls = calibrated(count)
    assert calls <= 6
    assert not set(wording.words) & set(costly)
    assert len(wording.words) >= 8
    for tokens in (30, 999):
        assert count(prompt_of(planned(tokens), 1, wording)) == tokens


def test_a_tokenizer_of_pieces_leaves_the_short_words() -> None:
    """Words of up to three letters are one token there, whatever stands first."""
    wording, calls = calibrated(greedy_pieces, most_calls=40)
    assert calls <= 40
    assert {len(word) for word in wording.words} <= {2, 3}
    assert greedy_pieces(prompt_of(planned(200), 1, wording)) == 200


def test_where_no_word_is_one_token_lengths_are_approximate() -> None:
    """A token per letter: nothing is exact, and the mean length of a word serves."""

    def letters(text: str) -> int:
        return TEMPLATE + len(text.replace(" ", ""))

    wording, _ = calibrated(letters)
    assert not wording.is_exact
    assert letters(prompt_of(planned(2000), 1, wording)) == pytest.approx(2000, rel=0.05)


@pytest.mark.parametrize("count", [lambda _: 1, lambda text: -len(text), lambda text: len(text) ** 2])
def test_counts_that_make_no_sense_are_not_believed(count: Count) -> None:
    """A server that says 1 for every prompt, or less for more, calibrates nothing."""
    assert calibrated(count)[0] is None


@given(st.integers(1, 40), st.integers(1, 60), st.integers(0, 70))
def test_every_length_is_met_or_is_the_shortest_there_is(first: int, tokens: int, template: int) -> None:
    """No rounding: exact from the shortest prompt on, and never an empty one."""

    def count(text: str) -> int:
        return template + first + len(text.split()) - 1

    wording, _ = calibrated(count)
    assert count(prompt_of(planned(tokens), 0, wording)) == max(tokens, wording.shortest)


@pytest.mark.parametrize("wording", [Wording(), UNCHECKED, TOKEN_IDS], ids=["all", "common", "ids"])
@pytest.mark.parametrize("seed", [0, 7])
def test_no_two_prompts_are_alike(wording: Wording, seed: int) -> None:
    """Two words tell as many prompts apart as there are pairs; longer ones begin differently, all of them."""
    pairs = min(3000, len(wording.words) ** 2)
    assert len({str(prompt_of(planned(2), index, wording, seed)) for index in range(pairs)}) == pairs
    starts = {str(next(word_pieces(planned(50), index, seed, wording))[:12]) for index in range(3000)}
    assert len(starts) == 3000


@given(st.integers(0, 300), st.integers(1, 50), st.integers(), st.integers(-5, 9))
def test_a_prompt_made_in_pieces_is_the_same_prompt(tokens: int, most: int, seed: int, index: int) -> None:
    """How the making is cut up does not change what is sent."""

    def words(most: int) -> list[str]:
        row = planned(tokens, prefix="p")
        return [word for piece in word_pieces(row, index, seed, Wording(), most) for word in piece]

    assert words(most) == words(301)
    assert len(words(most)) == max(1, tokens)


def test_a_prompt_depends_on_seed_and_index_alone() -> None:
    """Another seed gives other prompts, the same seed the same."""
    again = [prompt_of(planned(20), 4, Wording(), seed) for seed in (1, 1, 2)]
    assert again[0] == again[1] != again[2]


def shared_words(one: str, other: str) -> int:
    """How many words two prompts have in common at their beginning."""
    pairs = zip(one.split(), other.split(), strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one.split()), len(other.split())))


@pytest.mark.parametrize("overhead", [0, 11])
def test_the_same_prefix_is_the_same_beginning(overhead: int) -> None:
    """Equal labels share what the ledger says and no more; a template counts as a part of what is shared."""
    wording = UNCHECKED.with_overhead(overhead)
    rows = [planned(100, prefix=label, prefix_tokens=60) for label in ("a", "a", "b")]
    one, same, other = (prompt_of(row, index, wording) for index, row in enumerate(rows))
    assert shared_words(one, same) == pytest.approx(60 - overhead, abs=2)
    assert shared_words(one, same) >= 60 - overhead
    assert shared_words(one, other) <= 3
    assert {len(text.split()) for text in (one, same, other)} == {100 - overhead}


def test_a_prefix_without_a_length_is_half_of_the_prompt() -> None:
    """Prompts of different lengths share the shorter half."""
    one, other = (prompt_of(planned(n, prefix="a"), n, Wording()) for n in (40, 100))
    assert 20 <= shared_words(one, other) <= 21


@pytest.mark.parametrize("overhead", [0, 7, 20])
def test_equal_blocks_are_equal_texts(overhead: int) -> None:
    """Two blocks in common, then different ones; the last block of each is cut short; the rest is its own."""
    wording = UNCHECKED.with_overhead(overhead)

    def prompt(tokens: int, ids: list[int], index: int) -> str:
        text: str = prompt_of(planned(tokens, hash_ids=ids, block_tokens=16), index, wording)
        return text

    shared = shared_words(prompt(70, [1, 2, 3, 4, 5], 0), prompt(60, [1, 2, 8, 9], 1))
    assert 32 - overhead <= shared <= 34 - overhead
    assert shared_words(prompt(70, [1, 2, 3, 4, 5], 0), prompt(70, [1, 2, 3, 4, 5], 1)) == 70 - overhead
    assert shared_words(prompt(70, [1, 2, 3, 4, 5], 0), prompt(66, [1, 2, 3, 4, 5], 1)) == 66 - overhead
    assert shared_words(prompt(90, [1, 2], 0), prompt(90, [1, 2], 1)) in range(32 - overhead, 35 - overhead)


@pytest.mark.parametrize("size", [1, 2, 16])
def test_different_blocks_are_different_texts(size: int) -> None:
    """As far as their size allows: 48 blocks of one word are 48 words."""
    texts = {
        prompt_of(planned(size, hash_ids=[block], block_tokens=size), 0, UNCHECKED) for block in range(48)
    }
    assert len(texts) == 48


def test_token_ids_are_ordinary_tokens() -> None:
    """As many as asked for, between 1000 and 1999, less what the server adds; shared as text is."""
    ids = prompt_of(planned(500), 0, TOKEN_IDS.with_overhead(1))
    assert len(ids) == 499
    assert 1000 <= min(ids) <= max(ids) < 2000
    one, same = (prompt_of(planned(100, prefix="a"), index, TOKEN_IDS) for index in (0, 1))
    assert one[:50] == same[:50]
    assert one[50:53] != same[50:53]


def test_long_prompts_are_made_quickly_and_in_small_steps() -> None:
    """200 prompts of 20,000 tokens in two seconds of work, 20 steps or more for each."""
    began = time.process_time()
    for index in range(200):
        steps = sum(1 for _ in encoder(Wording()).steps(planned(20_000), index))
        assert 20 <= steps <= 25
    assert time.process_time() - began < 2


def word_level(path: Path, **settings: Any) -> Path:
    """A tokenizer.json of whole words, written by hand; any other word is one unknown token."""
    words = {word: number for number, word in enumerate(["[UNK]", *COMMON_WORDS])}
    content = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"}, **settings,
    }  # fmt: skip
    path.write_text(json.dumps(content))
    return path


def test_a_tokenizer_file_counts_tokens(tmp_path: Path) -> None:
    """Settings of its training that would cut a count short do not."""
    pytest.importorskip("tokenizers")
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    tokenizer = load(word_level(tmp_path / "tokenizer.json", truncation=cut))
    assert tokenizer.count("and are, as") == 4
    assert tokenizer.count("") == 0
    assert tokenizer.count("lone \ud800 half") == 3


@pytest.mark.parametrize(
    ("content", "why"), [(None, "No such file"), (b"\xff\xfe", "not text"), (b"{}", "not a tokenizer.json")]
)
def test_a_tokenizer_that_cannot_be_read_is_one_line(tmp_path: Path, content: bytes | None, why: str) -> None:
    """The flag, the file and the reason."""
    pytest.importorskip("tokenizers")
    path = tmp_path / "t.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=why) as caught:
        load(path)
    assert str(caught.value).startswith(f"--tokenizer {path}: ")
    assert "\n" not in str(caught.value)


def test_a_tokenizer_without_its_package_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package is optional."""
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InputError, match=r"pip install tokenizers"):
        load(tmp_path / "t.json")


def test_lengths_are_exact_by_a_trained_tokenizer(tmp_path: Path) -> None:
    """Byte-level BPE, too small to have every word as a token: with its file, prompts have what was asked."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([f" {word}" for word in WORDS], trainer)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    costs = [len(tokenizer.encode(f" {word}").ids) for word in COMMON_WORDS]
    assert min(costs) < max(costs)
    wording = unasked(encoder(Wording()), "http://h", load(path)).wording
    for tokens in (5, 64, 1000):
        text = prompt_of(planned(tokens), 2, wording)
        assert len(tokenizer.encode(text).ids) == tokens


def test_a_class_travels_as_a_header_and_cannot_be_more_than_one() -> None:
    """Percent-encoded, so that no name breaks the head; without a class there is no such header."""
    row = planned(3, class_="chat é\r\nX-Evil: 1")
    head = encoder(Wording()).encode(row, 0).split(b"\r\n\r\n")[0].decode("ascii").split("\r\n")
    assert "X-Request-Class: chat%20%C3%A9%0D%0AX-Evil%3A%201" in head
    assert not any(line.startswith("X-Evil") for line in head)
    assert b"X-Request-Class" not in encoder(Wording()).encode(planned(3), 0)
