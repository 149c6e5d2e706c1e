"""Fields of a request that this server cannot honour: refused by name, unless they ask for what it does.

Not listed is what has no effect on an answer that ends by length only and whose words are not drawn:
sampling (`temperature`, `top_p`, `seed`, penalties, `logit_bias`), `ignore_eos`, what a template or special
tokens would need, and bookkeeping (`user`, `metadata`, `store`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from ledgers.vocabulary import WORDS


class Unsupported(msgspec.Struct, frozen=True, kw_only=True):
    """The fields themselves, of any type: null is as good as absent."""

    n: Any = None
    best_of: Any = None
    use_beam_search: Any = None
    logprobs: Any = None
    top_logprobs: Any = None
    prompt_logprobs: Any = None
    echo: Any = None
    suffix: Any = None
    prompt_embeds: Any = None
    truncate_prompt_tokens: Any = None
    tool_choice: Any = None
    function_call: Any = None
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    allowed_token_ids: Any = None
    bad_words: Any = None
    modalities: Any = None
    audio: Any = None
    web_search_options: Any = None
    include_reasoning: Any = None
    return_token_ids: Any = None
    priority: Any = None


class Rule(NamedTuple):
    """`as_is`: values that ask for what happens anyway. `why`: what the message says behind the field."""

    fields: str
    as_is: tuple[Any, ...]
    why: str


_RULES = (
    Rule("n best_of", (1,), "must be 1: this server answers with one choice"),
    Rule("use_beam_search", (False,), "must be false: this server does not search"),
    Rule("logprobs", (False,), "is not supported: the words of this server have no probabilities"),
    Rule("top_logprobs", (0,), "is not supported: the words of this server have no probabilities"),
    Rule("prompt_logprobs", (), "is not supported: the words of this server have no probabilities"),
    Rule("echo", (False,), "must be false: this server does not repeat prompts"),
    Rule("suffix", ("",), "is not supported: this server fills in no middles"),
    Rule("prompt_embeds truncate_prompt_tokens", (), "is not supported: prompts count as they are"),
    Rule("tool_choice function_call", ("none", "auto"), "must be auto or none: this server calls no tools"),
    Rule("response_format", ({"type": "text"},), "must be text: this server writes words only"),
    Rule(
        "structured_outputs guided_json guided_regex guided_choice guided_grammar",
        (),
        "is not supported: this server writes words only",
    ),
    Rule("allowed_token_ids bad_words", ([],), "is not supported: the words of this server are not drawn"),
    Rule("modalities", (["text"],), "must be text: this server writes words only"),
    Rule("audio web_search_options", (), "is not supported: this server writes words only"),
    Rule("include_reasoning", (True,), "must be true: this server leaves no tokens out"),
    Rule("return_token_ids", (False,), "must be false: this server sends text only"),
    Rule("priority", (0,), "must be 0: requests queue by the server's policy"),
)
_TWICE_ROUND = " ".join(WORDS + WORDS)
_BY_FIELD = {field: rule for rule in _RULES for field in rule.fields.split()}


def unsupported_field(request: Unsupported) -> tuple[str, str] | None:
    """The first field that asks for what this server cannot do, and why it cannot."""
    for field, rule in _BY_FIELD.items():
        value = getattr(request, field)
        # By type as well: to completions, 0 logprobs are those of the token itself, and no false.
        if value is not None and not any(type(value) is type(it) and value == it for it in rule.as_is):
            return field, rule.why
    return None


def occurs(stop: str, output_tokens: int) -> bool:
    """Whether a stop string is in the output, which runs through the vocabulary in a circle."""
    if stop not in _TWICE_ROUND:  # nearly always; a stop is shorter than a round
        return False
    return stop in " ".join((WORDS + WORDS)[:output_tokens])


def stopping(stops: Sequence[str], ids: Sequence[int], output_tokens: int) -> tuple[str, str] | None:
    """The first stop that the output would come upon: the field and what it asks for."""
    for stop in stops:
        if occurs(stop, output_tokens):
            return "stop", repr(stop)
    for id in ids:
        if 0 <= id < min(output_tokens, len(WORDS)):
            return "stop_token_ids", str(id)
    return None
