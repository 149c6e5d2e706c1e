"""What a server takes: which optional fields to leave out when it refuses, and when there is no use.

Pure: a negotiation yields the fields to try and is sent the refusal, or None where there was none.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from loadgen.dialects.dialect import MALFORMED

# When a server does not say which it minds, they are left out in this order: the most useful ones last.
_BY_USE = ("min_tokens", "ignore_eos", "stream_options", "max_completion_tokens")
_NAME = re.compile(r"[A-Za-z_]\w*")
IN_STREAM = 200  # the status of a refusal that came as an event
_MINDS_FIELDS = frozenset({IN_STREAM, 400, 422, 500})
_NOT_SPOKEN = frozenset({501, 505})  # a server that is not one of language models, nor will it become one
_MAY_PASS = frozenset({408, 409, 423, 424, 425, 429})


class Refusal(NamedTuple):
    """A refusal instead of an answer: its status, the message in it, and the body of an error."""

    status: int
    why: str
    body: bytes = b""

    @property
    def minds_fields(self) -> bool:
        """Whether a field of the body can be the reason. Some servers fail where they should refuse."""
        return self.status in _MINDS_FIELDS


class Agreement(NamedTuple):
    """The fields to send, why others are not, and a refusal that no leaving out could mend."""

    fields: frozenset[str]
    switched_off: dict[str, str]
    refusal: Refusal | None = None


Negotiation = Generator[frozenset[str], Refusal | None, Agreement]


def negotiate(wanted: frozenset[str]) -> Negotiation:
    """Find the fields that the server takes: at most eight tries for four fields.

    What a refusal names is left out. If it names none, one after another is left out on suspicion, and if it
    names all, all are; as soon as the server accepts something, suspects are tried again one by one.
    """
    fields = wanted
    off: dict[str, str] = {}
    suspects: set[str] = set()
    left_out: frozenset[str] = frozenset()
    while (refusal := (yield fields)) is not None:
        named = named_fields(refusal, fields)
        left_out = named or frozenset(sorted(fields, key=_use)[:1])
        if not left_out:
            return Agreement(fields, off, refusal)
        if not named or (len(named) > 1 and named == fields):
            suspects |= left_out
        off |= dict.fromkeys(sorted(left_out), refusal.why)
        fields -= left_out
    if len(left_out) == 1:
        suspects -= left_out  # without it the server accepted, so it was to blame
    for name in sorted(suspects, key=_use, reverse=True):
        if (yield fields | {name}) is None:
            fields |= {name}
            del off[name]
    return Agreement(fields, off)


def _use(field: str) -> int:
    """How much is lost without a field, as a rank."""
    return _BY_USE.index(field) if field in _BY_USE else -1


def named_fields(refusal: Refusal, fields: frozenset[str]) -> frozenset[str]:
    """Those of the fields that a refusal names: by `param` or `loc` where it has them, else in its words."""
    content = None
    with suppress(*MALFORMED):
        content = msgspec.json.decode(refusal.body)
    words = " ".join(_places(content)) or f"{refusal.why} {refusal.body.decode('utf-8', 'replace')}"
    return fields & frozenset(_NAME.findall(words))


def _places(content: Any) -> list[str]:
    """What stands as the place of a mistake: OpenAI's `param`, the last of a validation error's `loc`."""
    if isinstance(content, list):
        return [place for item in content for place in _places(item)]
    if not isinstance(content, dict):
        return []
    own = [content["param"]] if isinstance(content.get("param"), str) else []
    loc = content.get("loc")
    if isinstance(loc, list):
        own.append(" ".join(map(str, loc)))
    return own + [place for key in ("error", "detail") for place in _places(content.get(key))]


class Asked(NamedTuple):
    """How the server was asked, for whoever has to mend it."""

    model: str
    model_given: bool
    listed: Sequence[str]
    key_source: str | None
    extra_body: bool
    location: str | None = None


def advice(refusal: Refusal, asked: Asked) -> str | None:
    """What can be done about a refusal that every request would meet; None if it may pass."""
    status = refusal.status
    if status in (401, 403):
        if asked.key_source is None:
            return "no API key was given: set OPENAI_API_KEY, or --api-key-file FILE"
        return f"is the key right that is in {asked.key_source}?"
    if 300 <= status < 400:
        where = f" to {asked.location}" if asked.location else ""
        return f"it redirects{where}: give the new place as --base-url"
    if status in _NOT_SPOKEN:
        return "does this server serve language models? see --base-url, --endpoint"
    if status in (404, 405):
        return _about_model(refusal, asked) or "is the path right? see --base-url, --endpoint, --api"
    if 400 <= status < 500 and status not in _MAY_PASS:
        extra = ", --extra-body" if asked.extra_body else ""
        return _about_model(refusal, asked) or f"even with the fewest fields; see --api, --endpoint{extra}"
    return None


def _about_model(refusal: Refusal, asked: Asked) -> str | None:
    about = "model" in refusal.why.lower() or (asked.model and asked.model in refusal.why)
    if asked.model_given or asked.listed:
        some = ", ".join(asked.listed[:5]) + (", …" if len(asked.listed) > 5 else "")
        return (
            f"the model was {asked.model}; /v1/models lists {some or 'none'}: see --model" if about else None
        )
    missing = "no --model was given, and /v1/models lists none"
    return missing if about or refusal.status not in (404, 405) else None
