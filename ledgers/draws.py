"""Draws of the exponential, normal and gamma distributions, the same on every machine and in every Python.

Pure. Of `random.Random`, Python promises only that `random()` keeps its sequence; and a C library's logarithm
may differ in its last bit, with it a nanosecond, and after a rejection all that follows. Only +, -, *, / and
the square root are used here, which IEEE 754 rounds alike everywhere.
"""

from __future__ import annotations

from math import frexp, ldexp, sqrt
from random import Random

_LN_2 = 0.6931471805599453
_LOG_TERMS = tuple(1 / odd for odd in range(23, 0, -2))
_EXP_TERMS = tuple(range(16, 0, -1))


def exponential(random: Random) -> float:
    """With mean 1, by inversion."""
    return -log(1 - random.random())


def gamma(random: Random, shape: float) -> float:
    """With mean `shape` and scale 1, by the method of Marsaglia and Tsang (2000)."""
    if shape < 1:  # U^(1/shape) takes a gamma draw of shape + 1 to one of shape
        return gamma(random, shape + 1) * exp(log(1 - random.random()) / shape)
    d = shape - 1 / 3
    c = 1 / sqrt(9 * d)
    while True:
        x = normal(random)
        root = 1 + c * x
        v = root * root * root
        if v > 0 and log(1 - random.random()) < x * x / 2 + d - d * v + d * log(v):
            return d * v


def normal(random: Random) -> float:
    """With mean 0 and deviation 1, by the polar method."""
    while True:
        x, y = 2 * random.random() - 1, 2 * random.random() - 1
        square = x * x + y * y
        if 0 < square < 1:
            return x * sqrt(-2 * log(square) / square)


def log(x: float) -> float:
    """The natural one: ln x = e ln 2 + ln m, and ln m = 2 artanh((m - 1) / (m + 1)) for an m near 1."""
    m, e = frexp(x)
    if m < 0.7071067811865476:
        m, e = 2 * m, e - 1
    z = (m - 1) / (m + 1)
    square, total = z * z, 0.0
    for term in _LOG_TERMS:
        total = total * square + term
    return e * _LN_2 + 2 * z * total


def exp(x: float) -> float:
    """For x up to 700: e^x = 2^n e^r, with an r near 0, whose Taylor series soon ends."""
    n = round(x / _LN_2)
    r, total = x - n * _LN_2, 1.0
    for k in _EXP_TERMS:
        total = 1 + total * r / k
    return ldexp(total, n)
