"""Keys: who is let in, what stays open, and that no key is ever seen again."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import openai
import pytest

from tests.conftest import MockServer, refused, serving, tokentick

KEYS = ("sk-first-0123", "sk-second-4567")
WRONG = "sk-wrong-89"
BODY = b'{"prompt": "time and water", "max_tokens": 2}'


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockServer]:
    """A server that asks for a key."""
    path = tmp_path_factory.mktemp("locked")
    (path / "keys").write_text(f"{KEYS[0]}\n\n  {KEYS[1]}\r\n")
    with (
        (path / "stderr").open("w") as stderr,
        serving(
            path / "served", "--tick", "0.01", "--api-key-file", str(path / "keys"), stderr=stderr
        ) as mock,
    ):
        yield mock


def answer(
    server: MockServer, method: str, path: str, headers: dict[str, str], body: bytes | None = None
) -> tuple[int, bytes, http.client.HTTPMessage]:
    where = urlsplit(server.url)
    connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=20)
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    text = response.read()
    connection.close()
    return response.status, text, response.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {KEYS[0]}"},
        {"Authorization": f"bearer  {KEYS[1]} "},
        {"api-key": KEYS[1]},
        {"Authorization": "Basic dTpw", "api-key": KEYS[0]},
    ],
)
def test_each_key_opens_by_either_header(locked: MockServer, headers: dict[str, str]) -> None:
    assert answer(locked, "POST", "/v1/completions", headers, BODY)[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": f"Bearer {WRONG}"},
        {"Authorization": KEYS[0]},
        {"Authorization": f"Bearer {KEYS[0]}x"},
        {"Authorization": f"Bearer {KEYS[0]}, more"},
        {"Authorization": f"Bearer {KEYS[0]} {KEYS[1]}"},
        {"Authorization": "Bearer "},
        {"api-key": ""},
        {"api-key": "schlüssel"},
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/completions"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("POST", "/tokenize"),
        ("POST", "/mock/reset"),
        ("GET", "/mock/ledger"),
        ("GET", "/v1/nothing"),
    ],
)
def test_without_a_key_nothing_is_done(
    locked: MockServer, method: str, path: str, headers: dict[str, str]
) -> None:
    """401 in OpenAI's shape, with the client's request id and without what was sent as a key."""
    headers = {**headers, "X-Request-Id": "mine-8"}
    body = BODY if method == "POST" else None
    status, text, received = answer(locked, method, path, headers, body)
    error = json.loads(text)["error"]
    assert (status, error["code"], error["type"]) == (401, "invalid_api_key", "invalid_request_error")
    assert received["X-Request-Id"] == "mine-8"
    assert WRONG.encode() not in text
    assert KEYS[0].encode() not in text


@pytest.mark.parametrize("path", ["/health", "/version", "/metrics"])
def test_probes_need_no_key(locked: MockServer, path: str) -> None:
    assert answer(locked, "GET", path, {})[0] == 200


def test_the_sdk_raises_its_own_error(locked: MockServer) -> None:
    """AuthenticationError for a wrong key, an answer for a right one."""
    with (
        openai.OpenAI(base_url=f"{locked.url}/v1", api_key=WRONG, max_retries=0, timeout=20) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()
    with openai.OpenAI(base_url=f"{locked.url}/v1", api_key=KEYS[1], max_retries=0, timeout=20) as client:
        assert client.completions.create(model="m", prompt="time", max_tokens=1).usage is not None


def test_no_key_is_written_anywhere(tmp_path: Path) -> None:
    """Not into the run directory, not on a stream, whether it was right or wrong."""
    (tmp_path / "keys").write_text("\n".join(KEYS))
    with (
        (tmp_path / "stderr").open("w") as stderr,
        serving(tmp_path / "served", "--api-key-file", str(tmp_path / "keys"), stderr=stderr) as mock,
    ):
        for key in (*KEYS, WRONG):
            answer(mock, "POST", "/v1/completions", {"Authorization": f"Bearer {key}"}, BODY)
        assert mock.stop() == 0
    (tmp_path / "keys").unlink()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"run.json", "requests.jsonl", "stderr"} <= {path.name for path in files}
    for path in files:
        assert not any(key in path.read_text() for key in (*KEYS, WRONG)), path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["keys", "no key"]),
        ("\n \n", ["keys", "no key"]),
        ("good-1\nbad key\n", ["keys", "line 2"]),
        ("good-1\nschlüssel", ["keys", "line 2"]),
        (None, ["keys", "No such file"]),
    ],
)
def test_a_bad_file_of_keys_ends_the_start(tmp_path: Path, text: str | None, words: list[str]) -> None:
    """One line with the place, never with the key; and no run directory is left behind."""
    if text is not None:
        (tmp_path / "keys").write_text(text)
    arguments = ["serve", "--port", "0", "--api-key-file", "keys", "--out", "served"]
    result = tokentick(*arguments, cwd=tmp_path)
    refused(result, 2, "--api-key-file", *words)
    assert not any(key in result.stderr for key in ("good-1", "bad key", "schl"))
    assert not (tmp_path / "served").exists()
