"""Times as trace files write them, to exact nanoseconds: numbers in a stated unit, and ISO 8601.

A unit comes from the format or from the user, never from how large a number is.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import lru_cache
from typing import Any

from ledgers.formats.fields import seconds_ns, shown, units_ns
from ledgers.units import NS_PER_MS, NS_PER_S

UNITS = {"ns": 1, "us": 1000, "ms": NS_PER_MS, "s": NS_PER_S}
# datetime.fromisoformat cuts off the seventh digit, so the fraction is read beside it.
_TIMESTAMP = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,](\d{1,18}))?(Z|[+-]\d\d:?\d\d)?", flags=re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_DIGITS = 9  # of a fraction that is whole nanoseconds


def timestamp_ns(value: Any, field: str) -> int | Fraction:
    """Exact nanoseconds since 1970; a time without a zone is taken as UTC. ValueError if it is no time."""
    match = _TIMESTAMP.fullmatch(value.strip()) if isinstance(value, str) else None
    try:
        if match is None:
            raise ValueError
        second_ns = _second_ns(match[1], match[3] or "Z")
    except (ValueError, OverflowError):  # a zone may lead out of the years 1 to 9999
        raise ValueError(f"{field} is {shown(value)}, not a time YYYY-MM-DD hh:mm:ss.fffffff") from None
    digits = match[2] or "0"
    if len(digits) <= _DIGITS:
        return second_ns + int(digits.ljust(_DIGITS, "0"))
    fraction = Fraction(int(digits) * NS_PER_S, 10 ** len(digits))
    return second_ns + (fraction.numerator if fraction.denominator == 1 else fraction)


@lru_cache(16)  # many rows are of one second
def _second_ns(moment: str, zone: str) -> int:
    return (datetime.fromisoformat(moment + zone).astimezone(UTC) - _EPOCH) // _SECOND * NS_PER_S


def scaled_ns(value: Any, field: str, unit: str) -> int | Fraction:
    """Exact nanoseconds of a number of units. ValueError as for any `decimal`."""
    return seconds_ns(value, field) if unit == "s" else units_ns(value, field, UNITS[unit])
