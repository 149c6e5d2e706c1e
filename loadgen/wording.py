"""How a length in tokens becomes words that this server counts as that many, and how to find that out.

Pure: a calibration yields texts, is sent back how many tokens each has, and returns a wording.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import msgspec

from ledgers.vocabulary import COMMON_WORDS, WORDS

FIRST_WORD = "the"
ENOUGH_WORDS = 16  # that are known to be one token each: the search for more ends
FEWEST_WORDS = 8

Calibration = Generator[str, int, "Wording | None"]


class Wording(msgspec.Struct, frozen=True, kw_only=True):
    """What prompts are made of.

    A prompt is `first`, where there is one, and then words drawn from `words`. `overhead` is what a server
    counts for the first word and for all that it puts around a prompt, and `tokens_per_word` for each other
    word. A word at the beginning can cost another number of tokens than the same word after a blank, which is
    why the first is always the same.
    """

    words: tuple[str, ...] | tuple[int, ...] = WORDS
    first: str | None = None
    overhead: int = 0
    tokens_per_word: float = 1.0

    @property
    def is_ids(self) -> bool:
        return isinstance(self.words[0], int)

    @property
    def is_exact(self) -> bool:
        return self.tokens_per_word == 1

    @property
    def shortest(self) -> int:
        """The tokens of the shortest prompt: one word, and what is always there."""
        return self.overhead + round(self.tokens_per_word)

    def words_before(self, token: int) -> int:
        """How many words lie before this token of a prompt. The overhead stands for its first tokens."""
        return max(0, round((token - self.overhead) / self.tokens_per_word))

    def word_count(self, prompt_tokens: int) -> int:
        """How many words are drawn for a prompt: at least one, for no server takes an empty prompt."""
        return max(1, self.words_before(prompt_tokens))

    def with_overhead(self, overhead: int) -> Wording:
        return msgspec.structs.replace(self, overhead=overhead)


# Ids of ordinary tokens: tokenizers have bytes and special tokens below 1000, or at the very end of a
# vocabulary, none of which is smaller than 2000.
TOKEN_IDS = Wording(words=tuple(range(1000, 2000)))
UNCHECKED = Wording(words=COMMON_WORDS)


def sentence(words: Sequence[str]) -> str:
    return " ".join((FIRST_WORD, *words))


def calibrate(words: tuple[str, ...], most_calls: int) -> Calibration:
    """Find out what words cost, in at most `most_calls` (two or more); None if the counts make no sense.

    The words once and then twice say what they cost together, and what is there besides. If they cost more
    than one token each, those that cost one are looked for.
    """
    once = yield sentence(words)
    twice = yield sentence(words * 2)
    cost = twice - once
    overhead = once - cost
    if cost <= 0 or overhead < 0:
        return None
    if cost == len(words):
        return Wording(words=words, first=FIRST_WORD, overhead=overhead)
    single = yield from _single_tokens(words, cost, overhead, most_calls - 2)
    if len(single) >= FEWEST_WORDS:
        return Wording(words=single, first=FIRST_WORD, overhead=overhead)
    ratio = cost / len(words)
    return Wording(words=words, first=FIRST_WORD, overhead=overhead, tokens_per_word=ratio)


def _single_tokens(
    words: tuple[str, ...], cost: int, overhead: int, calls: int
) -> Generator[str, int, tuple[str, ...]]:
    """Words that cost one token, by halves: counting one half says what the other costs.

    The half in which the fewest tokens are too many is cut up first.
    """
    single: list[str] = []
    mixed = [(words, cost)]
    while mixed and calls and len(single) < ENOUGH_WORDS:
        group, cost = mixed.pop(mixed.index(min(mixed, key=lambda known: known[1] / len(known[0]))))
        middle = len(group) // 2
        half_cost = (yield sentence(group[:middle])) - overhead
        calls -= 1
        for part, part_cost in ((group[:middle], half_cost), (group[middle:], cost - half_cost)):
            if part_cost == len(part):
                single += part
            elif part_cost > len(part) > 1:
                mixed.append((part, part_cost))
    return tuple(single)
