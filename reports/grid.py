"""The grid of a sweep: lists and ranges as users write them, the settings, and the points in their order.

Pure. A setting is what differs from the shared options of a command; a point is one run of one setting at one
rate. Points that replay the same requests stand together, so that their ledger is made once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import click
import msgspec

from ledgers.formats.fields import shown
from ledgers.units import exact

AUTO = "auto"
MOST_VALUES = 1_000  # of one flag
AXES = ("policy", "max_batch", "max_wait", "hardware")
AUTO_SHARES = tuple(Fraction(tenths, 10) for tenths in range(1, 13))
DIGITS = 3  # of a rate that was not given
Setting = dict[str, Any]
"""Options by name, in place of those that the command has."""


class Point(msgspec.Struct, frozen=True):
    """One run: which setting, at which rate (None: as the ledger has it), in which repeat."""

    index: int
    setting: int
    rate: Fraction | None
    repeat: int
    seed: int


def numbers(
    *, whole: bool = False, zero: bool = False, words: Sequence[str] = ()
) -> Callable[[click.Context, click.Parameter, str | None], list[Any] | str | None]:
    """A click callback: numbers and ranges FROM:TO:STEP, ascending, or one of the words in their place."""

    def convert(ctx: click.Context, param: click.Parameter, value: str | None) -> list[Any] | str | None:
        if value is None or value in words:
            return value
        try:
            found = sorted({number for word in value.split(",") for number in _expanded(word)})
        except BadRangeError as error:
            raise click.BadParameter(f"{shown(value)}: {error}", ctx, param) from None
        except ValueError:
            raise _bad(ctx, param, value, "as in 1,2,4 or 4:16:2 (from, to, step)") from None
        if len(found) > MOST_VALUES:
            raise _bad(ctx, param, value, f"of at most {MOST_VALUES:,} numbers")
        if found[0] < 0 or (found[0] == 0 and not zero) or found[-1] > 10**9:
            raise _bad(ctx, param, value, f"of numbers {'from' if zero else 'above'} 0 and at most 10^9")
        if whole and any(number.denominator > 1 for number in found):
            raise _bad(ctx, param, value, "of whole numbers")
        return [int(number) for number in found] if whole else found

    return convert


def names(
    known: Sequence[str] | None = None,
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """A click callback: words with commas between them; of the `known` ones `all` is any."""

    def convert(ctx: click.Context, param: click.Parameter, value: str) -> list[str]:
        words = list(dict.fromkeys(word.strip() for word in value.split(",")))
        if known is None:
            return words
        if words == ["all"]:
            return words
        if "all" in words:
            raise click.BadParameter(
                f"{shown(value)}: all of them is all, with nothing beside it", ctx, param
            )
        for word in words:
            if word not in known:
                raise click.BadParameter(f"{shown(word)} is none of {', '.join(known)}, all", ctx, param)
        return words

    return convert


def _bad(ctx: click.Context, param: click.Parameter, value: str, why: str) -> click.BadParameter:
    return click.BadParameter(f"{shown(value)} is not a list {why}", ctx, param)


class BadRangeError(ValueError):
    """A range that is written as one, and has no numbers or too many."""


def _expanded(word: str) -> Iterator[Fraction]:
    """The number, or the numbers of the range, its end among them. ValueError for anything else."""
    parts = [exact(part) for part in word.split(":")]
    if len(parts) == 1:
        yield parts[0]
        return
    first, last, step = parts  # ValueError unless there are three
    if step <= 0:
        raise BadRangeError(f"the step of {word} is not above 0")
    if last < first:
        raise BadRangeError(f"{word} ends below its beginning")
    if (last - first) / step > MOST_VALUES:
        raise BadRangeError(f"{word} has more than {MOST_VALUES:,} numbers")
    for k in range(int((last - first) / step) + 1):
        yield first + k * step


def settings(axes: Mapping[str, Sequence[Any]]) -> list[Setting]:
    """Every combination, the last axis running fastest."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def label(setting: Setting, axes: Mapping[str, Sequence[Any]]) -> str:
    """What tells a setting from the others of its sweep; empty if there is only one."""
    spelt = {"policy": "{}", "max_batch": "batch {}", "max_wait": "wait {} s", "hardware": "{}"}
    varied = [name for name in axes if len(axes[name]) > 1]
    return ", ".join(spelt[name].format(_plain(setting[name])) for name in varied)


def _plain(value: Any) -> str:
    return f"{float(value):g}" if isinstance(value, Fraction) else str(value)


def points(rates: Sequence[Fraction | None], repeats: int, seed: int, settings: int) -> list[Point]:
    """By rate, then by repeat, then by setting; each repeat has a seed of its own, the same for all."""
    each = product(rates, range(repeats), range(settings))
    return [Point(i, setting, rate, k, seed + k) for i, (rate, k, setting) in enumerate(each)]


def options_at(
    options: Mapping[str, Any], setting: Setting, rate: Fraction | str | None, seed: int
) -> dict[str, Any]:
    """The options of a single run."""
    at = {**options, **setting, "seed": seed}
    return at if rate is None else {**at, "request_rate": rate}


def auto_rates(capacity_rps: float) -> list[Fraction]:
    """From a tenth of what the best setting completes at its limit to a fifth more than that."""
    return sorted({rounded(float(share) * capacity_rps) for share in AUTO_SHARES})


def rounded(rate: float, digits: int = DIGITS) -> Fraction:
    """A rate with as many digits as anybody would give it."""
    return exact(f"{rate:.{digits}g}")
