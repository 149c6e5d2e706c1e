"""API keys: who may ask. A key is compared in constant time, and is shown, logged and written nowhere."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from pathlib import Path

from ledgers.errors import InputError
from mock_server.openai import ApiError

OPEN_PATHS = frozenset({"/health", "/metrics", "/version"})  # probes and scrapers carry no key


class ApiKeys:
    """The keys that are let in."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = tuple(key.encode() for key in keys)

    def check(self, path: str, headers: Mapping[str, str]) -> None:
        """ApiError (401) unless the path is open to all or the headers have one of the keys."""
        if path in OPEN_PATHS:
            return
        given = _given(headers)
        if not given:
            raise _refused("You didn't provide an API key: send Authorization: Bearer KEY, or api-key: KEY")
        # All keys are compared, so that the time taken does not tell which of them it was.
        found = sum(hmac.compare_digest(given, key) for key in self._keys)
        if not found:
            raise _refused("Incorrect API key provided")


def read_keys(path: Path) -> ApiKeys:
    """One key per line; blank lines do not count. InputError names the line, never what is on it."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--api-key-file {path}: {getattr(error, 'strerror', None) or 'not text'}") from None
    keys = {number: line.strip() for number, line in enumerate(lines, 1) if line.strip()}
    for number, key in keys.items():
        if not all("!" <= char <= "~" for char in key):
            raise InputError(f"--api-key-file {path}, line {number}: a key is ASCII, without blanks inside")
    if not keys:
        raise InputError(f"--api-key-file {path}: no key in it")
    return ApiKeys(keys.values())


def _given(headers: Mapping[str, str]) -> bytes:
    """The key in the request, as OpenAI's clients send it or as Azure's do; empty if there is none."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    key = token if scheme.lower() == "bearer" else headers.get("api-key", "")
    return key.strip().encode("utf-8", "surrogateescape")


def _refused(message: str) -> ApiError:
    return ApiError(message, status=401, code="invalid_api_key")
