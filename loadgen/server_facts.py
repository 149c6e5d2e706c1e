"""Plain questions to a server beside the measured requests: is it there, what is it, what does it serve."""

from __future__ import annotations

import asyncio
import ssl
import time
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ledgers.errors import TargetError
from loadgen.dialects.dialect import MALFORMED, error_body_text
from loadgen.question import Question, put, request_bytes
from loadgen.target import Address, Target, find_address
from loadgen.transport import Transport

IDLE_WITHIN_S = 30.0
MOST_SAID = 240  # characters of what a server or a library says
_ANSWER_S = 10.0
_VERSION_S = 2.0
_RETRY_S = 0.1
# Where servers say their version, and under which name: vLLM, llama.cpp, SGLang, TGI, Ollama.
_VERSIONS = (
    ("/version", "version"),
    ("/props", "build_info"),
    ("/get_server_info", "version"),
    ("/info", "version"),
    ("/api/version", "version"),
)
_CONTEXT_LENGTHS = ("max_model_len", "context_length", "context_window", "max_context_length")
_MODELS_PATH = "/v1/models"


class Preflight(NamedTuple):
    """Whom to ask and how. `scrub` takes secrets out of what the server says.

    `key_source` is where the API key came from, None where there is none.
    """

    target: Target
    headers: Mapping[str, str]
    insecure: bool
    timeout_s: float
    scrub: Callable[[str], str]
    ca_file: Path | None = None
    key_source: str | None = None

    def short(self, text: str) -> str:
        """On one line; scrubbed before it is cut, which could leave half a secret behind."""
        return " ".join(self.scrub(text).split())[:MOST_SAID]


class NoAnswerError(TargetError):
    """Something listens, but gives no HTTP answer, or none in time."""


class Answer(NamedTuple):
    status: int
    server: str | None
    body: bytes

    def json(self) -> Any:
        """The content of a good answer; None if it is no JSON."""
        try:
            return msgspec.json.decode(self.body) if self.status == 200 else None
        except MALFORMED:
            return None


class Models(NamedTuple):
    """What /v1/models says; `answered` is False if nothing came at all, and `fault` says what is wrong."""

    answered: bool = True
    server: str | None = None
    listed: tuple[dict[str, Any], ...] = ()
    fault: str | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(str(model["id"]) for model in self.listed)

    def owner(self, model: str) -> str | None:
        owner = self._entry(model).get("owned_by")
        return owner if isinstance(owner, str) else None

    def facts(self, model: str) -> dict[str, Any]:
        """What is known of a model: its owner, and how long its context is."""
        lengths = (self._entry(model).get(name) for name in _CONTEXT_LENGTHS)
        length = next((length for length in lengths if isinstance(length, int)), None)
        facts = {"owned_by": self.owner(model), "max_model_len": length}
        return {name: value for name, value in facts.items() if value is not None}

    def _entry(self, model: str) -> dict[str, Any]:
        return next((entry for entry in self.listed if str(entry["id"]) == model), {})


class Questions:
    """Asks a server, over connections of its own."""

    def __init__(self, preflight: Preflight, transport: Transport) -> None:
        self._preflight = preflight
        self._transport = transport

    async def models(self) -> Models:
        """TargetError if nothing can be reached. A server without that path, or that is failing, is fine."""
        try:
            answer = await self.ask("GET", _MODELS_PATH)
        except NoAnswerError as error:
            return Models(answered=False, fault=str(error))
        if answer.status == 404:
            return Models(server=answer.server)
        if answer.status != 200:
            return Models(server=answer.server, fault=f"GET {_MODELS_PATH} answers {self.reason(answer)}")
        return Models(server=answer.server, listed=_listed(answer.json()))

    async def version(self) -> dict[str, str]:
        """The server's version and where it says it, if it does."""
        for path, name in _VERSIONS:
            try:
                content = (await self.ask("GET", path, within_s=_VERSION_S)).json()
            except TargetError:
                return {}
            found = content.get(name) if isinstance(content, dict) else None
            if isinstance(found, str) and found:
                return {"version": self._preflight.short(found), "version_from": path}
        return {}

    async def count_tokens(self, text: str, model: str, request_id: str) -> int | None:
        """How many tokens the server's /tokenize makes of a text; None if it has none.

        vLLM and SGLang call the text `prompt`, llama.cpp `content`, TGI `inputs`.
        """
        body = {"model": model, "prompt": text, "content": text, "inputs": text}
        try:
            answer = await self.ask("POST", "/tokenize", msgspec.json.encode(body), request_id)
        except TargetError:
            return None
        tokens = answer.json()
        if isinstance(tokens, dict):
            tokens = tokens.get("count", tokens.get("tokens"))
        if isinstance(tokens, list):
            return len(tokens)
        return tokens if type(tokens) is int else None

    async def ask(
        self,
        method: str,
        endpoint: str,
        body: bytes | None = None,
        request_id: str | None = None,
        within_s: float = _ANSWER_S,
    ) -> Answer:
        """One question. NoAnswerError if who is there does not answer, TargetError if nobody is reached."""
        target, headers, _, timeout_s, *_ = self._preflight
        extra = {} if request_id is None else {"X-Request-Id": request_id}
        request = request_bytes(
            method, target.path(endpoint), {"Host": target.host_header, **headers, **extra}, body
        )
        quiet_s = min(timeout_s, within_s)
        try:
            question = await put(self._transport, request, quiet_s=quiet_s, most_s=timeout_s + quiet_s)
            if question.fault is not None:
                raise self._told(question, question.fault)
            return Answer(question.status, server_name(question.headers), question.body())
        except TimeoutError:
            raise NoAnswerError(f"{target.url}: no answer to {method} {endpoint} in time") from None
        except zlib.error as error:
            raise NoAnswerError(f"{target.url}: cannot be used: malformed compression: {error}") from None

    def reason(self, answer: Answer) -> str:
        text = self._preflight.short(error_body_text(answer.body))
        return f"HTTP {answer.status}{': ' if text else ''}{text}"

    def _told(self, question: Question, fault: str) -> TargetError:
        """In one line what went wrong, and what can be done about it."""
        url, scheme = self._preflight.target.url, self._preflight.target.scheme
        if question.reached:
            return NoAnswerError(f"{url}: cannot be used: {self._preflight.short(fault)}")
        if question.too_slow and scheme == "https":  # TCP was tried before, so it is the handshake
            fault = f"no TLS handshake within {self._preflight.timeout_s:g} s (is it http:// ?)"
        elif fault.startswith("TLS: ") and "ALERT" not in fault:  # an alert is a word of TLS
            fault = "no TLS on this port (is it http:// ?)"
        elif not question.too_slow and not fault.startswith("certificate not accepted"):
            fault = f"cannot be used: {self._preflight.short(fault)}"
        return TargetError(f"{url}: {fault}")


@asynccontextmanager
async def questions(
    preflight: Preflight, address: Address, tls: ssl.SSLContext | None
) -> AsyncIterator[Questions]:
    transport = Transport(preflight.target, address, tls=tls, connect_timeout_s=preflight.timeout_s)
    try:
        yield Questions(preflight, transport)
    finally:
        transport.close()


async def reset_mock(preflight: Preflight) -> None:
    """Wait until the mock server is idle, and have it start over. TargetError if it does not in 30 s."""
    path = "/mock/reset"
    until = time.monotonic() + IDLE_WITHIN_S
    address = await find_address(preflight.target, preflight.timeout_s)
    tls = preflight.target.tls(insecure=preflight.insecure, ca_file=preflight.ca_file)
    async with questions(preflight, address, tls) as server:
        while (answer := await server.ask("POST", path)).status >= 300:
            if answer.status != 409 or time.monotonic() > until:
                why = server.reason(answer)
                raise TargetError(f"{preflight.target.url}: POST {path} answers {why}")
            await asyncio.sleep(_RETRY_S)


def server_name(headers: Mapping[str, str]) -> str | None:
    """What the server calls itself: most write UTF-8 where HTTP has Latin-1."""
    name = headers.get("server")
    return None if name is None else name.encode("latin-1").decode("utf-8", "replace")


def _listed(content: Any) -> tuple[dict[str, Any], ...]:
    """The models of a list, which some servers send as it is and others inside an object."""
    data = content.get("data") if isinstance(content, dict) else content
    if not isinstance(data, list):
        return ()
    return tuple(model for model in data if isinstance(model, dict) and model.get("id"))
