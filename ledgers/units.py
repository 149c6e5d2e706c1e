"""Exact time: every time inside is an integer number of nanoseconds, rounded once where it comes in."""

from __future__ import annotations

import re
from fractions import Fraction

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
MOST_DIGITS = 64
# A fraction holds all its digits: the exponent of 1e999999999 would fill the memory.
_HUGE_EXPONENT = re.compile(r"[eE][+-]?[\d_]{4}")


def exact(value: str | int | float | Fraction) -> Fraction:
    """The number as written: `exact(0.1)` is 1/10, not the nearest binary fraction.

    Raises ValueError when the text is no finite number, or one that no setting needs.
    """
    if isinstance(value, int | Fraction):
        return Fraction(value)
    text = str(value).strip()
    if len(text) > MOST_DIGITS or _HUGE_EXPONENT.search(text):
        raise ValueError(f"not a number of a usable size: {text[:MOST_DIGITS]}")
    try:
        return Fraction(text)
    except ZeroDivisionError:
        raise ValueError(f"not a finite number: {text}") from None


def to_ns(seconds: str | int | float | Fraction) -> int:
    """Seconds to nanoseconds, half to even."""
    return round(exact(seconds) * NS_PER_S)


def ceil_div(numerator: int, denominator: int) -> int:
    """The smallest integer not below numerator / denominator, in integer arithmetic."""
    return -(-numerator // denominator)


def seconds(ns: int) -> str:
    """With all of its nanoseconds."""
    return f"{ns // NS_PER_S}.{ns % NS_PER_S:09d}"


def span(s: float) -> str:
    """A length of time as people say it."""
    if s < 99.5:
        return f"{s:.0f} s"
    minutes, seconds = divmod(round(s), 60)
    return f"{minutes} min {seconds:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def about_left(s: float) -> str:
    """`about 12 s left`; empty where it would be 0 s."""
    return f"about {span(s)} left" if round(s) else ""
