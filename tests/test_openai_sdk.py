"""OpenAI's own client reads the mock: its types, its streams, its errors."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletion

from tests.conftest import MockServer

PROMPT = "time and water"  # three words of the vocabulary, so three tokens
MESSAGES = [{"role": "user", "content": PROMPT}]


@pytest.fixture
def client(server: MockServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=20) as client:
        yield client


def test_a_chat_answer_has_the_tokens_asked_for(client: openai.OpenAI) -> None:
    """Usage counts the prompt's words and max_tokens; the end is by length."""
    answer = client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=5)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        3,
        5,
        8,
    )
    assert answer.object == "chat.completion"
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.role == "assistant"
    assert len((answer.choices[0].message.content or "").split()) == 5


def test_a_chat_stream_is_one_token_a_chunk_then_finish_then_usage(client: openai.OpenAI) -> None:
    """The role comes with the first token; the usage chunk has no choices and is the last."""
    stream = client.chat.completions.create(
        model="m",
        messages=MESSAGES,
        max_completion_tokens=4,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert len(chunks) == 4 + 1
    assert len({chunk.id for chunk in chunks}) == 1
    deltas = [chunk.choices[0].delta for chunk in chunks[:4]]
    assert [delta.role for delta in deltas] == ["assistant", None, None, None]
    assert all(delta.content and len(delta.content.split()) == 1 for delta in deltas)
    assert chunks[3].choices[0].finish_reason == "length"
    assert chunks[4].choices == []
    assert chunks[4].usage is not None
    assert chunks[4].usage.completion_tokens == 4
    assert all(chunk.usage is None for chunk in chunks[:4])


def test_a_stream_and_a_whole_answer_say_the_same(client: openai.OpenAI) -> None:
    """The text does not depend on how it is sent."""
    whole = client.completions.create(model="m", prompt=PROMPT, max_tokens=6)
    stream = client.completions.create(model="m", prompt=PROMPT, max_tokens=6, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text


def test_a_prompt_of_token_ids_is_counted_as_such(client: openai.OpenAI) -> None:
    """Five ids are five tokens, whatever their values."""
    answer = client.completions.create(model="m", prompt=[1, 2, 3, 70000, 5], max_tokens=1)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 5


def test_message_parts_and_all_roles_count(client: openai.OpenAI) -> None:
    """A prompt is the text of all messages, in parts or whole."""
    parts = [{"type": "text", "text": "time"}, {"type": "text", "text": "and water"}]
    messages = [{"role": "system", "content": "answer well"}, {"role": "user", "content": parts}]
    answer = client.chat.completions.create(model="m", messages=messages, max_tokens=1)  # type: ignore[arg-type]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 5


def test_unknown_words_count_by_bytes(client: openai.OpenAI) -> None:
    """A word outside the vocabulary is a token for each four bytes of UTF-8, rounded up."""
    answer = client.completions.create(model="m", prompt="time Zürichsee", max_tokens=1)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 1 + 3  # 11 bytes


def test_models_are_listed(client: openai.OpenAI) -> None:
    """The list has the one model, which can be asked for by name; another is not found."""
    assert [model.id for model in client.models.list()] == ["tokentick-mock"]
    assert client.models.retrieve("tokentick-mock").owned_by == "tokentick"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_request_over_the_budget_is_a_bad_request(client: openai.OpenAI) -> None:
    """Prompt and output over the KV budget can never be served: OpenAI's code for it, at once."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=70, stream=True)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.type == "invalid_request_error"
    assert "73 tokens" in str(caught.value)


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -3}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"max_tokens": 4, "min_tokens": 5}, "min_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"ignore_eos": "yes"}, "ignore_eos"),
        ({"n": 2}, "n"),
        ({"n": 0}, "n"),
        ({"n": "one"}, "n"),
        ({"stop": "able"}, "stop"),
        ({"stop": ["never", "e ab"]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop_token_ids": [7, 3]}, "stop_token_ids"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 2}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "structured_outputs"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"include_reasoning": False}, "include_reasoning"),
    ],
)
def test_bad_fields_are_named(client: openai.OpenAI, change: dict[str, object], param: str) -> None:
    """The error says which field is wrong, or cannot be honoured, in the SDK's own exception."""
    body = {"model": "m", "messages": MESSAGES, "max_tokens": 4, **change}
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/chat/completions", body=body, cast_to=object)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"logprobs": 0}, "logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"echo": True}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "end"}, "suffix"),
        ({"prompt": ["time", "water"]}, "prompt"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ],
)
def test_bad_fields_of_completions_are_named(
    client: openai.OpenAI, change: dict[str, object], param: str
) -> None:
    """0 log probabilities are those of the token itself, so they are asked for."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/completions", body={"model": "m", "prompt": PROMPT, **change}, cast_to=object)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "change",
    [
        {"n": 1, "logprobs": False, "top_logprobs": 0, "response_format": {"type": "text"}},
        {"n": None, "stop": None, "min_tokens": None, "ignore_eos": None, "tools": None, "logit_bias": None},
        {"stop": ["\n", "###", "User:", "act add"], "stop_token_ids": [4, 70_000]},
        {"min_tokens": 4, "ignore_eos": True},
        {"tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": True},
        {
            "temperature": 0,
            "top_p": 0.5,
            "top_k": 5,
            "seed": 3,
            "frequency_penalty": 1,
            "logit_bias": {"1": -100},
        },
        {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "modalities": ["text"]},
        {"repetition_penalty": 1.0, "skip_special_tokens": False, "stream_options": {"include_usage": False}},
    ],
)
def test_what_changes_nothing_is_taken(client: openai.OpenAI, change: dict[str, object]) -> None:
    """The answer is, byte for byte but for its name and time, what it is without these fields."""
    asked = {"model": "m", "messages": MESSAGES, "max_tokens": 4}
    with_it, without = (
        client.post("/chat/completions", body=body, cast_to=ChatCompletion).model_dump()
        for body in ({**asked, **change}, asked)
    )
    for answer in (with_it, without):
        del answer["id"], answer["created"]
    assert with_it == without


def test_a_minimum_lengthens_an_output_without_a_limit(client: openai.OpenAI) -> None:
    """The default of 16 is where the server would end; a minimum below it changes nothing."""
    for least, length in ((20, 20), (5, 16)):
        answer = client.completions.create(model="m", prompt=PROMPT, extra_body={"min_tokens": least})
        assert answer.usage is not None
        assert answer.usage.completion_tokens == length


@pytest.mark.parametrize("path", ["/responses", "/messages", "/embeddings"])
def test_other_endpoints_are_not_found(client: openai.OpenAI, path: str) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.post(path, body={"model": "m", "input": PROMPT}, cast_to=object)
    assert caught.value.code == "unknown_url"


def test_a_request_id_is_echoed(client: openai.OpenAI) -> None:
    """A client's own id comes back in the headers, of refusals too."""
    raw = client.completions.with_raw_response.create(
        model="m", prompt=PROMPT, max_tokens=1, extra_headers={"X-Request-Id": "mine-7"}
    )
    assert raw.headers["x-request-id"] == "mine-7"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="m", prompt="", extra_headers={"X-Request-Id": "mine-8"})
    assert caught.value.request_id == "mine-8"


@pytest.mark.parametrize("name", ["\0", 'a"b', "</data>\n\n", "模型"])
def test_a_model_may_be_named_as_one_likes(client: openai.OpenAI, name: str) -> None:
    """The name comes back in every chunk, and breaks nothing."""
    stream = client.completions.create(model=name, prompt=PROMPT, max_tokens=2, stream=True)
    chunks = list(stream)
    assert {chunk.model for chunk in chunks} == {name}
    assert [len(chunk.choices[0].text.split()) for chunk in chunks] == [1, 1]
