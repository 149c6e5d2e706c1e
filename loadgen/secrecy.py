"""Keeping secrets out of everything that is written or shown, whatever a server sends back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MASK = "***"
_SECRET_HEADER = re.compile(
    r"auth|key|token|secret|cookie|passw|passphrase|credential|session|jwt|signature|subscription",
    re.IGNORECASE,
)
# Of other names only the last word tells: max_tokens is no secret.
_SECRET_FIELD = re.compile(
    r"(?:^|[^a-z])(?:\w*keys?|\w*token|secrets?|passw\w*|passphrase|credentials?|authorization|jwt|sig|signature)$",
    re.IGNORECASE,
)
_SHORTEST = 4  # masking every "a" of a text would hide the text, not a secret


def is_secret_name(name: str) -> bool:
    """Whether a header of this name is likely to carry a secret."""
    return bool(_SECRET_HEADER.search(name))


def secret_values(headers: Mapping[str, str]) -> list[str]:
    """The values not to be shown, and their last words, as in `Bearer KEY`."""
    values = [value for name, value in headers.items() if is_secret_name(name)]
    return [*values, *(value.rpartition(" ")[2] for value in values)]


def secret_fields(value: Any) -> Iterator[str]:
    """The texts in an object, however deep, whose names say that they are secrets."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if isinstance(inner, str) and _SECRET_FIELD.search(name):
                yield inner
            else:
                yield from secret_fields(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from secret_fields(inner)


def masked_fields(value: Any) -> Any:
    """The object, with whatever its names say is a secret masked."""
    if isinstance(value, Mapping):
        return {
            name: MASK if _SECRET_FIELD.search(name) else masked_fields(inner)
            for name, inner in value.items()
        }
    return [masked_fields(inner) for inner in value] if isinstance(value, list) else value


def masked(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: MASK if is_secret_name(name) else value for name, value in headers.items()}


class Scrubber:
    """Replaces every known secret in a text by a mask."""

    def __init__(self, secrets: Iterable[str | None]) -> None:
        known = {secret for secret in secrets if secret and len(secret) >= _SHORTEST}
        # Longest first, so that a secret inside another does not leave the rest of it behind.
        alternatives = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
        self._pattern = re.compile(alternatives) if alternatives else None

    def __call__(self, text: str) -> str:
        return self._pattern.sub(MASK, text) if self._pattern else text
