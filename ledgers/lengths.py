"""Lengths of prompts and outputs drawn from distributions, and the mix of classes that have them.

Pure. Only `random.random` and draws of the project's own are used, so a seed gives the same on any machine.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from random import Random
from typing import NamedTuple

from ledgers import draws
from ledgers.errors import InputError
from ledgers.formats.fields import MOST_TOKENS, label, shown
from ledgers.units import exact

Pair = tuple[int, int]
DrawOne = Callable[[Random], int]
DrawPair = Callable[[Random, Random], Pair]
Read = Callable[[str], tuple[Sequence[int], Sequence[int]]]
"""The lengths of a trace's prompts and outputs."""
MOST_SIGMA = 5
EMPIRICAL = "empirical:"
RULE = "N, uniform:LEAST-MOST, lognormal:MEDIAN:SIGMA or empirical:TRACE"
_UNIFORM = re.compile(r"uniform:([0-9]{1,40})-([0-9]{1,40})")
_LOGNORMAL = re.compile(r"lognormal:([0-9]{1,40}):([0-9.]{1,20})")
_FIXED = re.compile(r"[0-9]{1,40}")


class Class(NamedTuple):
    """Requests of one kind: its share of all, relative to the others', and what draws prompt and output."""

    name: str | None
    share: Fraction
    draw: DrawPair


def fixed(tokens: int) -> DrawOne:
    return lambda random: tokens


def uniform(least: int, most: int) -> DrawOne:
    """A whole number, both ends included."""
    span = most - least + 1
    return lambda random: least + int(random.random() * span)


def lognormal(median: int, sigma: float) -> DrawOne:
    """Its logarithm is normal with deviation `sigma`; the mean is median * e^(sigma²/2). At least 1."""

    def draw(random: Random) -> int:
        length = median * draws.exp(sigma * draws.normal(random))
        return max(1, round(min(length, MOST_TOKENS)))

    return draw


def any_of(lengths: Sequence[int]) -> DrawOne:
    """One of these, all as likely."""
    return lambda random: lengths[int(random.random() * len(lengths))]


def pairs_of(prompts: Sequence[int], outputs: Sequence[int]) -> DrawPair:
    """The prompt and the output of one request."""

    def draw(random: Random, _: Random) -> Pair:
        index = int(random.random() * len(prompts))
        return prompts[index], outputs[index]

    return draw


def parse_pair(prompt: str, output: str | None, read: Read, where: str, output_where: str) -> DrawPair:
    """What draws a prompt and an output: of the same trace, both of one request.

    `where` and `output_where` are the options that are wrong if the words are.
    """
    if prompt.startswith(EMPIRICAL) and output in (None, prompt):
        return pairs_of(*read(prompt.removeprefix(EMPIRICAL)))
    if output is None:
        raise InputError(f"{output_where}: is needed, for only {EMPIRICAL}TRACE brings outputs along")
    draw_prompt, draw_output = _parse(prompt, 0, read, where), _parse(output, 1, read, output_where)
    return lambda prompts, outputs: (draw_prompt(prompts), draw_output(outputs))


def _parse(text: str, which: int, read: Read, where: str) -> DrawOne:
    """`which`: 0 for prompts, 1 for outputs."""
    draw: DrawOne | None = None
    bounds: list[int] = []
    if text.startswith(EMPIRICAL):
        return any_of(read(text.removeprefix(EMPIRICAL))[which])
    if _FIXED.fullmatch(text):
        bounds = [int(text)]
        draw = fixed(*bounds)
    elif found := _UNIFORM.fullmatch(text):
        bounds = [int(found[1]), int(found[2])]
        draw = uniform(*bounds)
    elif found := _LOGNORMAL.fullmatch(text):
        bounds = [int(found[1])]
        draw = lognormal(bounds[0], _sigma(found[2], where))
    if draw is None:
        raise InputError(f"{where}: {shown(text)} is not {RULE}")
    if not 1 <= bounds[0] <= bounds[-1] <= MOST_TOKENS:
        raise InputError(f"{where}: {shown(text)}: lengths are from 1 to {MOST_TOKENS:,}, in order")
    return draw


def _sigma(text: str, where: str) -> float:
    try:
        sigma = float(exact(text))
    except ValueError:
        sigma = -1
    if not 0 <= sigma <= MOST_SIGMA:
        raise InputError(f"{where}: SIGMA is {shown(text)}, not a number from 0 to {MOST_SIGMA}")
    return sigma


def parse_class(text: str, read: Read) -> Class:
    """`short=0.8,uniform:50-200,40`: a name, a share, lengths of prompts and of outputs."""
    name, _, rest = text.partition("=")
    share, *lengths = rest.split(",", maxsplit=2)
    try:
        name = label(name, "name")
    except ValueError:
        lengths = []
    if not lengths:
        raise InputError(f"--mix: {shown(text)} is not NAME=SHARE,PROMPT,OUTPUT")
    try:
        weight = exact(share)
    except ValueError:
        weight = Fraction(0)
    if not 0 < weight <= MOST_TOKENS:
        raise InputError(f"--mix {name}: the share is {shown(share)}, not a number above 0")
    prompt, output = lengths[0].strip(), lengths[1].strip() if lengths[1:] else None
    return Class(
        name, weight, parse_pair(prompt, output, read, f"--mix {name}: prompt", f"--mix {name}: output")
    )


@dataclass(frozen=True)
class Mix:
    """Classes of requests, each as often as its share of all shares says."""

    classes: Sequence[Class]

    def draw(self, count: int, seed: int) -> Iterator[tuple[str | None, int, int]]:
        """Class, prompt and output of each request. Classes, prompts and outputs have draws of their own.

        So outputs from another distribution leave the prompts as they were.
        """
        sums = list(accumulate(each.share for each in self.classes))
        bounds = [float(until / sums[-1]) for until in sums[:-1]]
        which, prompts, outputs = (Random(f"{seed}:{name}") for name in ("classes", "prompts", "outputs"))
        for _ in range(count):
            chosen = self.classes[bisect_right(bounds, which.random())]
            yield (chosen.name, *chosen.draw(prompts, outputs))
