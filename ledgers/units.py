"""Exact time: every time inside is an integer number of nanoseconds, rounded once where it comes in."""

from __future__ import annotations

from fractions import Fraction

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


def exact(value: str | int | float | Fraction) -> Fraction:
    """The number as written: `exact(0.1)` is 1/10, not the nearest binary fraction.

    Raises ValueError when the text is no finite number.
    """
    if isinstance(value, int | Fraction):
        return Fraction(value)
    return Fraction(str(value).strip())


def to_ns(seconds: str | int | float | Fraction) -> int:
    """Seconds to nanoseconds, half to even."""
    return round(exact(seconds) * NS_PER_S)


def ceil_div(numerator: int, denominator: int) -> int:
    """The smallest integer not below numerator / denominator, in integer arithmetic."""
    return -(-numerator // denominator)


def to_ms(ns: int | None) -> float | None:
    """Nanoseconds to milliseconds; None stays None."""
    return None if ns is None else ns / NS_PER_MS
