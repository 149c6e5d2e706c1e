"""Times as trace files write them, to exact nanoseconds: numbers in a stated unit, and ISO 8601.

A unit comes from the format or from the user, never from how large a number is.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

from ledgers.formats.fields import decimal, seconds_ns, shown
from ledgers.units import NS_PER_MS, NS_PER_S

UNITS = {"ns": 1, "us": 1000, "ms": NS_PER_MS, "s": NS_PER_S}
# datetime.fromisoformat cuts off the seventh digit, so the fraction is read beside it.
_TIMESTAMP = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,](\d{1,18}))?(Z|[+-]\d\d:?\d\d)?", flags=re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)


def timestamp_ns(value: Any, field: str) -> int | Fraction:
    """Exact nanoseconds since 1970; a time without a zone is taken as UTC. ValueError if it is no time."""
    match = _TIMESTAMP.fullmatch(value.strip()) if isinstance(value, str) else None
    try:
        if match is None:
            raise ValueError
        moment = datetime.fromisoformat(match[1] + (match[3] or "Z"))
    except ValueError:
        raise ValueError(f"{field} is {shown(value)}, not a time YYYY-MM-DD hh:mm:ss.fffffff") from None
    digits = match[2] or "0"
    fraction = Fraction(int(digits) * NS_PER_S, 10 ** len(digits))
    whole_ns = (moment - _EPOCH) // _SECOND * NS_PER_S
    return whole_ns + (fraction.numerator if fraction.denominator == 1 else fraction)


def scaled_ns(value: Any, field: str, unit: str) -> int | Fraction:
    """Exact nanoseconds of a number of units. ValueError as for any `decimal`."""
    if unit == "s":
        return seconds_ns(value, field)
    ns = decimal(value, field) * UNITS[unit]
    return ns.numerator if ns.denominator == 1 else ns
