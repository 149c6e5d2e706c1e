"""A trace cut, thinned, multiplied and resized before its arrivals are set: what is done, and in which order.

Pure. A draw depends on the seed and on a request's number in its file, or on its session's name: so another
share keeps some of the same requests, and the same command gives the same ledger on any machine.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from random import Random

from ledgers.columns import Column
from ledgers.errors import InputError
from ledgers.formats.fields import MOST_LABEL_CHARS, MOST_TOKENS, shown
from ledgers.taken import Taken
from ledgers.units import NS_PER_S, ceil_div

MOST_TIMES = 1_000
_DRAW_BITS = 53  # which a draw has, so that it is a whole number of parts
_CLASSES_SHOWN = 10


@dataclass(frozen=True)
class Shaping:
    """What is done to the rows of a trace, in order of the fields. InputError if it cannot be meant.

    `from_s` and `until_s` are seconds since the trace's first request; the second is no longer in. `keep` is
    the share of the requests, and of the sessions, that stays. `times` counts the original and its copies,
    which share what prompts begin with only if they `share_prefixes`. Scaled lengths are at least 1.
    """

    from_s: Fraction = Fraction(0)
    until_s: Fraction | None = None
    classes: tuple[str, ...] = ()
    skip: int = 0
    num_prompts: int | None = None
    keep: Fraction = Fraction(1)
    times: int = 1
    share_prefixes: bool = False
    scale_prompt: Fraction = Fraction(1)
    scale_output: Fraction = Fraction(1)
    max_prompt: int | None = None
    max_output: int | None = None

    def __post_init__(self) -> None:
        if self.until_s is not None and self.until_s <= self.from_s:
            raise InputError(f"--until {float(self.until_s):g}: is not after --from {float(self.from_s):g}")
        if not 0 < self.keep <= 1:
            raise InputError(f"--keep {float(self.keep):g}: is not a share above 0 and at most 1")
        if not 1 <= self.times <= MOST_TIMES:
            raise InputError(f"--times {self.times}: is not from 1 to {MOST_TIMES:,}")
        if self.share_prefixes and self.times == 1:
            raise InputError("--share-prefixes: is about copies, so it needs --times")

    @property
    def most(self) -> int | None:
        """How many rows, the first in order of time, can matter. None: all."""
        if self.num_prompts is None or self.classes or self._cuts_time:
            return None
        return self.skip + self.num_prompts

    @property
    def _cuts_time(self) -> bool:
        return bool(self.from_s) or self.until_s is not None

    @property
    def changes(self) -> bool:
        """Whether it does more than take the first requests."""
        return replace(self, num_prompts=None) != Shaping()

    def apply(self, taken: Taken, count: int, seed: int) -> list[str]:
        """Shape rows in order of time, numbered up to `count` in their file, and say what was done."""
        notes = self._cut_time(taken) if self._cuts_time else []
        notes += self._pick(taken) if self.classes else []
        notes += self._count_off(taken)
        notes += self._thin(taken, seed) if self.keep < 1 else []
        notes += self._multiply(taken, count, seed) if self.times > 1 else []
        return notes + self._resize(taken)

    def _cut_time(self, taken: Taken) -> list[str]:
        times = taken.times
        if times is None or taken.time_field != "time_ns":
            raise InputError("--from and --until: the ledger has no times in seconds")
        begin = bisect_left(times, times[0] + self.from_s * NS_PER_S)
        if self.until_s is None:
            return _select(taken, range(begin, len(taken)), f"from {float(self.from_s):g} s on")
        end = bisect_left(times, times[0] + self.until_s * NS_PER_S)
        words = f"from {float(self.from_s):g} s until {float(self.until_s):g} s"
        return _select(taken, range(begin, end), words)

    def _pick(self, taken: Taken) -> list[str]:
        classes = taken["class_"]
        there = set(classes) - {None}
        for wanted in self.classes:
            if wanted not in there:
                known = ", ".join(sorted(there)[:_CLASSES_SHOWN]) or "no classes"
                raise InputError(f"--class {shown(wanted)}: the requests have {known}")
        wanted_too = frozenset(self.classes)
        chosen = [index for index, name in enumerate(classes) if name in wanted_too]
        return _select(taken, chosen, f"class {' and '.join(dict.fromkeys(self.classes))}")

    def _count_off(self, taken: Taken) -> list[str]:
        notes, most = [], self.num_prompts
        if self.skip:
            end = None if most is None else self.skip + most
            if self.skip >= len(taken):
                raise InputError(f"--skip {self.skip}: there {_are(len(taken))} {_requests(len(taken))}")
            notes.append(f"the first {self.skip} of {len(taken)} requests skipped")
            taken.take(range(len(taken))[self.skip : end])
        elif most is not None and most < len(taken):
            taken.take(range(most))
        if most is not None and most > len(taken):
            cut = self.skip or self.classes or self._cuts_time
            there = f"{len(taken)} {_are(len(taken))} left" if cut else f"the ledger has {len(taken)}"
            notes.append(f"{_requests(most)} asked for, {there}")
        return notes

    def _thin(self, taken: Taken, seed: int) -> list[str]:
        share = float(self.keep)
        draws = _draws(f"{seed}:keep", max(taken["number"]))

        @cache
        def stays(session: str) -> bool:
            return Random(f"{seed}:keep:{session}").random() < share

        rows = enumerate(zip(taken["number"], taken["session"], strict=True))
        kept = [
            index
            for index, (number, session) in rows
            if (draws[number - 1] < share if session is None else stays(session))
        ]
        whole = "" if taken["session"].empty else ", sessions whole"
        return _select(taken, kept, f"a share of {share:g} kept by seed {seed}{whole}")

    def _multiply(self, taken: Taken, count: int, seed: int) -> list[str]:
        before, copies = len(taken), self.times
        shifts = _shifts(taken, copies, seed)
        relabel = _other_blocks([ids for ids in taken["hash_ids"] if ids], copies)
        taken.take([index for index in range(before) for _ in range(copies)])
        taken.replace("number", (number + i % copies * count for i, number in enumerate(taken["number"])))
        for name in ("id", "session") if self.share_prefixes else ("id", "session", "prefix"):
            taken.replace(name, _copied_labels(taken[name], copies, name))
        if not self.share_prefixes:
            blocks = enumerate(taken["hash_ids"])
            taken.replace("hash_ids", (ids and relabel(ids, index % copies) for index, ids in blocks))
        _shift(taken, shifts)
        notes = [f"{_requests(before)} times {copies} by seed {seed}: {len(taken)}"]
        if texts := len(taken) - taken["prompt"].count(None):
            notes.append(f"prompts with a text, which is the same in all copies: {texts // copies}")
        return notes

    def _resize(self, taken: Taken) -> list[str]:
        notes = []
        if self.scale_prompt != 1 or self.max_prompt is not None:
            notes += _resize_prompts(taken, self.scale_prompt, self.max_prompt)
        if self.scale_output != 1 or self.max_output is not None:
            lengths, said = _resized(taken["output_tokens"], self.scale_output, self.max_output, "output")
            taken.replace("output_tokens", lengths)
            notes += said
        return notes


def _select(taken: Taken, indices: Sequence[int], words: str) -> list[str]:
    """Keep the rows at `indices`; `words` say which these are. InputError if there are none."""
    before = len(taken)
    if not indices:
        raise InputError(f"{words}: none of {before} requests is left")
    if len(indices) < before:
        taken.take(indices)
    return [f"{words}: {len(taken)} of {before} requests"]


def _draws(name: str, count: int) -> array[float]:
    """One for each number of a request, uniform from 0 to 1."""
    random = Random(name)
    return array("d", (random.random() for _ in range(count)))


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _requests(count: int) -> str:
    return f"{count} request{'s' * (count != 1)}"


def _shifts(taken: Taken, copies: int, seed: int) -> Column:
    """How much later than its original each copy comes, row by row, the original itself (0) first.

    By up to the time until the next request, so that copies are spread as the trace is, and a burst stays
    one. All turns of a session are shifted alike.
    """
    most = max(taken["number"])
    return Column(_each_shift(taken, [_draws(f"{seed}:copy:{copy}", most) for copy in range(1, copies)]))


def _each_shift(taken: Taken, draws: Sequence[Sequence[float]]) -> Iterable[int | Fraction]:
    times, numbers = taken.times, taken["number"]
    last = len(taken) - 1
    first_turns: dict[str, int] = {}
    for index, session in enumerate(taken["session"]):
        first = index if session is None else first_turns.setdefault(session, index)
        before = max(0, min(first, last - 1))  # nothing follows the last: it takes the gap before
        gap = times[before + 1] - times[before] if times and last else 0
        yield 0
        for draw in draws:
            yield _part(gap, draw[numbers[first] - 1])


def _part(gap: int | Fraction, draw: float) -> int | Fraction:
    if isinstance(gap, int):  # exact as well, and ten times as fast
        return gap * int(draw * 2**_DRAW_BITS) >> _DRAW_BITS
    return gap * Fraction(draw)


def _shift(taken: Taken, shifts: Iterable[int | Fraction]) -> None:
    """Make rows later, and put them in order of time again."""
    if taken.time_field is None:
        return
    times = Column(time + shift for time, shift in zip(taken[taken.time_field], shifts, strict=True))
    taken.replace(taken.time_field, times)
    taken.take(sorted(range(len(times)), key=times.__getitem__))


def _copied_labels(labels: Column, copies: int, field: str) -> Iterable[str | None]:
    """`a` of the original is `a+2` in the second copy; with more plus signs where a label has such an end."""
    mark = "+"
    while any(label is not None and mark in label for label in labels):
        mark += "+"
    for index, label in enumerate(labels):
        copied = label if label is None or index % copies == 0 else f"{label}{mark}{index % copies + 1}"
        if copied is not None and len(copied) > MOST_LABEL_CHARS:
            raise InputError(f"--times: {field} {shown(label)} is too long for its copies to be told apart")
        yield copied


def _other_blocks(rows: Sequence[list[int]], copies: int) -> Callable[[list[int], int], list[int]]:
    """What makes the labels of blocks those of a copy, in 64 bits, and of no other copy."""
    least = min((min(ids) for ids in rows), default=0)
    most = max((max(ids) for ids in rows), default=0)
    span = most - least + 1
    if most + (copies - 1) * span < 2**63:
        return lambda ids, copy: [id + copy * span for id in ids] if copy else ids
    known: dict[int, int] = {}  # labels all over the 64 bits: numbered anew, in the original too
    return lambda ids, copy: [known.setdefault(id, len(known)) * copies + copy for id in ids]


def _resized(lengths: Column, scale: Fraction, most: int | None, word: str) -> tuple[Column, list[str]]:
    """Lengths scaled, rounded half to even, and cut; with what is to say."""
    cut = 0

    @cache
    def scaled(tokens: int) -> int:
        return max(1, round(tokens * scale))

    def resized(tokens: int) -> int:
        nonlocal cut
        length = scaled(tokens)
        if most is None or length <= most:
            return length
        cut += 1
        return most

    resized_lengths = Column(map(resized, lengths))
    if (longest := max(resized_lengths)) > MOST_TOKENS:
        raise InputError(f"--scale-{word} {float(scale):g}: makes {longest:,} tokens, over {MOST_TOKENS:,}")
    notes = [f"{word}s scaled by {float(scale):g}"] if scale != 1 else []
    return resized_lengths, notes + ([f"{word}s cut to {most} tokens: {cut}"] if cut else [])


def _resize_prompts(taken: Taken, scale: Fraction, most: int | None) -> list[str]:
    """Also what prompts share: a prefix is scaled with its prompt, blocks behind the new end are cut off.

    A text no longer has the length that is wanted, so that it is left out.
    """
    before = taken["prompt_tokens"]
    lengths, notes = _resized(before, scale, most, "prompt")
    prefixes = zip(taken["prefix_tokens"], lengths, strict=True)
    blocks = zip(taken["hash_ids"], taken["block_tokens"], lengths, strict=True)
    taken.replace("prefix_tokens", (n and min(max(1, round(n * scale)), length) for n, length in prefixes))
    taken.replace("hash_ids", (ids and ids[: ceil_div(length, size)] for ids, size, length in blocks))
    same = [old == new for old, new in zip(before, lengths, strict=True)]
    texts = taken["prompt"]
    for field in ("prompt", "counted_otherwise"):
        values = zip(taken[field], same, strict=True)
        empty = None if field == "prompt" else False
        taken.replace(field, (value if unchanged else empty for value, unchanged in values))
    taken.replace("prompt_tokens", lengths)
    if dropped := taken["prompt"].count(None) - texts.count(None):
        notes.append(f"texts of prompts left out, whose length is another now: {dropped}")
    return notes
