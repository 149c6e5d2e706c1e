"""Tokens and back: the ids of the mock's vocabulary, and vLLM's two endpoints."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgers.vocabulary import WORDS, count_tokens
from mock_server.openai import ApiError
from mock_server.tokenize import detokenize, text_of, token_ids, tokenize
from tests.conftest import MockServer
from tests.test_server import ask

WORDS_AND_OTHERS = st.sampled_from([*WORDS[:20], "Zürich", "qwertyuiop", "\0\0", "模型"])
TEXTS = st.lists(WORDS_AND_OTHERS | st.text()).map(" ".join)


def asked(**body: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(tokenize(json.dumps(body).encode(), 72))
    return answer


@given(TEXTS)
def test_a_text_comes_back_with_single_blanks(text: str) -> None:
    """Known words and any others, whatever bytes they are made of."""
    assert text_of(token_ids(text)) == " ".join(text.split())


@given(TEXTS)
def test_there_are_as_many_ids_as_a_prompt_would_count(text: str) -> None:
    assert len(list(token_ids(text))) == count_tokens(text)


def test_an_answer_has_vllms_fields() -> None:
    """The id of a word is its place in the vocabulary; strings come if asked for."""
    ids = [WORDS.index(word) for word in ("time", "and", "water")]
    assert asked(model="m", prompt="time and water", add_special_tokens=True) == {
        "count": 3,
        "max_model_len": 72,
        "tokens": ids,
        "token_strs": None,
    }
    assert asked(prompt="time unknown", return_token_strs=True)["token_strs"] == ["time", "unkn", "own"]


def test_messages_count_as_a_chat_does() -> None:
    """Message by message: the last word of one and the first of the next stay two."""
    messages = [{"role": "system", "content": "answ"}, {"role": "user", "content": "er well"}]
    assert asked(messages=messages)["count"] == 3


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": []}, {"prompt": 3}, {"prompt": ["time"]}])
def test_what_is_not_one_text_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        asked(**body)
    assert json.loads(caught.value.body)["error"]["param"] == "prompt"


@pytest.mark.parametrize("id", [-1, len(WORDS), len(WORDS) + 255, len(WORDS) + 256**5, 10**30])
def test_an_id_that_no_text_has_is_refused(id: int) -> None:
    with pytest.raises(ApiError) as caught:
        detokenize(json.dumps({"tokens": [0, id]}).encode())
    assert json.loads(caught.value.body)["error"]["param"].startswith("tokens")


def test_both_endpoints_answer(server: MockServer) -> None:
    """There and back over HTTP; the longest request is what the KV budget holds."""
    status, body, _ = ask(server, "POST", "/tokenize", b'{"model": "m", "prompt": "time Zeit"}')
    tokens = json.loads(body)["tokens"]
    assert (status, len(tokens), json.loads(body)["max_model_len"]) == (200, 2, 72)
    status, body, _ = ask(server, "POST", "/detokenize", json.dumps({"tokens": tokens}).encode())
    assert (status, json.loads(body)) == (200, {"prompt": "time Zeit"})
