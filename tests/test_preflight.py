"""What the preflight makes of servers of all kinds: what it sends afterwards, what it says, when it stops."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import ssl
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ledgers.errors import InputError, TargetError
from ledgers.rows import RequestRow
from ledgers.vocabulary import count_tokens
from loadgen.dialects import DIALECTS
from loadgen.negotiation import Refusal, named_fields, negotiate
from loadgen.preflight import Found, preflight, proxy_notes, unasked
from loadgen.prompts import RequestEncoder
from loadgen.question import MOST_BYTES, Question
from loadgen.secrecy import Scrubber
from loadgen.server_facts import Preflight
from loadgen.target import find_address, parse_target
from loadgen.transport import Transport
from loadgen.wording import TOKEN_IDS, Wording
from tests.conftest import COMMAND, json_lines, refused, tokentick
from tests.scripted_server import (
    SSE_HEAD,
    Answer,
    Request,
    ScriptedServer,
    answered,
    chunk,
    plain,
    plain_probe,
    raw_server,
    scripted_server,
    token,
)

KEY = "sk-canary-8c1f0a"
ROWS = [RequestRow(id=str(n), prompt_tokens=200, output_tokens=20) for n in range(3)]
FIELDS = frozenset({"stream_options", "max_completion_tokens", "ignore_eos", "min_tokens"})
FULL_LENGTH = {"ignore_eos", "min_tokens"}


async def look_at(
    port: int,
    *,
    rows: Sequence[RequestRow] = ROWS,
    scheme: str = "http",
    host: str = "127.0.0.1",
    api: str = "chat",
    **options: Any,
) -> Found:
    """A preflight over a transport of its own, as a run does it."""
    target = parse_target(f"{scheme}://{host}:{port}")
    asking = Preflight(
        target,
        {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
        options.pop("insecure", False),
        options.pop("connect_timeout_s", 5.0),
        Scrubber([KEY]),
        options.pop("ca_file", None),
        options.pop("key_source", "OPENAI_API_KEY"),
    )
    tls = target.tls(insecure=asking.insecure, ca_file=asking.ca_file)
    transport = Transport(target, await find_address(target, 5), tls=tls)
    dialect = DIALECTS[api]()
    encoder = RequestEncoder(
        dialect=dialect,
        target=target,
        path=target.path(dialect.path),
        headers=asking.headers,
        model=options.pop("model", ""),
        seed=0,
        fields=FIELDS & frozenset(dialect.optional),
        wording=options.pop("wording", Wording()),
        extra_body=options.pop("extra_body", {}),
    )
    options.setdefault("timeout_s", 5)
    try:
        return await preflight(asking, transport, encoder, rows, id_prefix="tt-1", **options)
    finally:
        transport.close()


async def found_at(on_probe: Answer, **options: Any) -> tuple[Found, ScriptedServer]:
    """The preflight's result, and the server that saw it."""
    pages = options.pop("pages", {})
    models = options.pop("models", None)
    async with scripted_server(on_probe) as server:
        server.on_probe = on_probe
        server.pages = pages
        server.models = models or server.models
        return await look_at(server.port, **options), server


async def stopped_by(on_probe: Answer, **options: Any) -> str:
    """The one line with which the preflight ends the run."""
    with pytest.raises(TargetError) as caught:
        await found_at(on_probe, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert KEY not in message
    assert "http://127.0.0.1:" in message
    return message


def refusing(refuse: Callable[[set[str]], bytes | None], answer: Answer = plain_probe) -> Answer:
    """A server that looks at the names in the body first."""

    async def server(request: Request, writer: asyncio.StreamWriter) -> None:
        no = None if request.path.endswith("/tokenize") else refuse(set(json.loads(request.body)))
        if no is not None:
            writer.write(no)
        else:
            await answer(request, writer)

    return server


def always(response: bytes) -> Answer:
    async def server(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(response)

    return server


def generations(server: ScriptedServer) -> list[Request]:
    return [request for request in server.probes if not request.path.endswith("/tokenize")]


def error(status: int, message: str, **more: Any) -> bytes:
    return plain(status, json.dumps({"error": {"message": message, **more}}).encode())


# Which fields a server takes


async def test_a_server_that_takes_everything_gets_everything() -> None:
    """One probe for the fields, one more to calibrate; each has an id of its own and is small."""
    found, server = await found_at(plain_probe)
    assert (found.fields, found.switched_off, found.notes) == (FIELDS, {}, ())
    assert (found.model, found.streams, found.counts_tokens) == ("scripted", True, True)
    first, second = generations(server)
    assert {"ignore_eos", "min_tokens", "stream_options", "max_completion_tokens"} <= set(
        json.loads(first.body)
    )
    ids = [request.headers["x-request-id"] for request in server.probes]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"tt-1-probe-\d+", id) for id in ids)
    assert json.loads(second.body)["max_completion_tokens"] == 1
    assert server.posts == []


def strict(names: set[str]) -> bytes | None:
    """A FastAPI application whose model forbids what it does not know: 422 with a place for each."""
    unknown = sorted(names & FULL_LENGTH)
    detail = [
        {"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted"}
        for name in unknown
    ]
    return plain(422, json.dumps({"detail": detail}).encode()) if unknown else None


def one_at_a_time(names: set[str]) -> bytes | None:
    """OpenAI names the first that it does not know, in words only."""
    unknown = sorted(names & FULL_LENGTH)
    return error(400, f"Unrecognized request argument supplied: {unknown[0]}") if unknown else None


def by_param(names: set[str]) -> bytes | None:
    """Its words speak of another field than the one it minds."""
    minds = names & {"min_tokens"}
    return error(400, "not possible with stream_options", param="min_tokens") if minds else None


def failing(names: set[str]) -> bytes | None:
    """It fails where it should refuse, and its words say which argument it was."""
    unknown = sorted(names & FULL_LENGTH)
    said = (
        f"TypeError: generate() got an unexpected keyword argument '{unknown[0]}'".encode()
        if unknown
        else b""
    )
    return plain(500, said) if unknown else None


def silent(names: set[str]) -> bytes | None:
    """It says that something is wrong and not what."""
    return plain(400, b"Bad Request") if names & {"ignore_eos"} else None


def in_the_stream(names: set[str]) -> bytes | None:
    """It begins a stream before it looks at what it was asked."""
    event = b'data: {"error":{"message":"min_tokens: not supported"}}\n\n'
    return SSE_HEAD + chunk(event) + chunk(b"") if names & {"min_tokens"} else None


def echoing(names: set[str]) -> bytes | None:
    """It throws the whole body back with its refusal."""
    return plain(400, f"cannot take {sorted(names)}".encode()) if names & {"min_tokens"} else None


def old_names(names: set[str]) -> bytes | None:
    return plain(500, b"Internal Server Error") if names & {"max_completion_tokens"} else None


@pytest.mark.parametrize(
    ("refuse", "off", "tries"),
    [
        (strict, {"ignore_eos", "min_tokens"}, 2),
        (one_at_a_time, {"ignore_eos", "min_tokens"}, 3),
        (by_param, {"min_tokens"}, 2),
        (failing, {"ignore_eos", "min_tokens"}, 3),
        (silent, {"ignore_eos"}, 4),
        (echoing, {"min_tokens"}, 6),
        (in_the_stream, {"min_tokens"}, 2),
        (old_names, {"max_completion_tokens"}, 8),
    ],
)
async def test_what_a_server_refuses_is_left_out_and_nothing_else(
    refuse: Callable[[set[str]], bytes | None], off: set[str], tries: int
) -> None:
    """Whatever the shape of its refusal; each field that is left out has the server's reason."""
    found, server = await found_at(refusing(refuse))
    assert found.fields == FIELDS - off
    assert set(found.switched_off) == off
    assert all(re.match("(HTTP (400|422|500)|min_tokens): ", why) for why in found.switched_off.values())
    assert any(note.startswith("not sent: ") for note in found.notes)
    assert len(generations(server)) <= tries + 1
    last = set(json.loads(generations(server)[-1].body))
    assert off.isdisjoint(last)
    assert last & {"max_tokens", "max_completion_tokens"}


@pytest.mark.parametrize("minded", [frozenset(FIELDS), frozenset({"ignore_eos", "max_completion_tokens"})])
def test_a_negotiation_is_at_most_eight_tries(minded: frozenset[str]) -> None:
    """Against a server that never says what it minds."""
    negotiation, tries, agreed = negotiate(FIELDS), 1, None
    fields = next(negotiation)
    while agreed is None:
        try:
            refused = Refusal(400, "no") if fields & minded else None
            fields = negotiation.send(refused)
            tries += 1
        except StopIteration as done:
            agreed = done.value
    assert tries <= 8
    assert agreed.fields == FIELDS - minded
    assert agreed.refusal is None


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (
            b'{"error":{"message":"Unknown parameter","param":"stream_options.include_usage"}}',
            {"stream_options"},
        ),
        (b'{"detail":[{"loc":["body","min_tokens"],"msg":"x","input":{"ignore_eos":1}}]}', {"min_tokens"}),
        (b'{"object":"error","message":"ignore_eos is not supported","param":null}', {"ignore_eos"}),
        (b"[{'type': 'extra_forbidden', 'loc': ('body', 'min_tokens')}]", {"min_tokens"}),
        (b'{"error":{"message":"max_tokens is too large"}}', set()),
        (b"<html>Bad Request</html>", set()),
        (b"", set()),
    ],
)
def test_a_refusal_names_fields_by_place_or_in_words(body: bytes, named: set[str]) -> None:
    """A place is believed before the words around it."""
    assert named_fields(Refusal(400, "", body), FIELDS) == named


async def test_a_limit_that_is_not_heeded_is_asked_for_by_its_older_name() -> None:
    """A server that knows only max_tokens and runs on without it: the probe is cut off, the run is right."""

    async def endless(request: Request, writer: asyncio.StreamWriter) -> None:
        if "max_tokens" in json.loads(request.body) or request.path.endswith("/tokenize"):
            await plain_probe(request, writer)
            return
        writer.write(SSE_HEAD)
        while True:
            writer.write(token(" more"))
            await writer.drain()
            await asyncio.sleep(0.001)

    found, _ = await found_at(endless, timeout_s=20)
    assert found.fields == FIELDS - {"max_completion_tokens"}
    assert set(found.switched_off) == {"max_completion_tokens"}


async def test_a_server_that_heeds_no_limit_is_measured_and_said_to() -> None:
    """More tokens than asked for under either name."""

    async def more(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(answered(count_tokens(str(request.prompt)), 40))

    found, _ = await found_at(more)
    assert found.fields == FIELDS
    assert "the server does not keep to the output length that is asked for" in found.notes


async def test_several_choices_are_no_overrun() -> None:
    """`n` of --extra-body multiplies what comes."""

    async def two(request: Request, writer: asyncio.StreamWriter) -> None:
        asked = json.loads(request.body)["max_completion_tokens"]
        writer.write(answered(count_tokens(str(request.prompt)), 2 * asked))

    found, _ = await found_at(two, extra_body={"n": 2})
    assert (found.fields, found.notes) == (FIELDS, ())


# What stops a run


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (error(401, f"Incorrect API key: {KEY}"), ["HTTP 401: Incorrect API key: ***", "OPENAI_API_KEY"]),
        (error(403, "no"), ["HTTP 403: no", "OPENAI_API_KEY"]),
        (error(404, "The model `scripted` does not exist."), ["does not exist", "--model", "lists scripted"]),
        (plain(404, b'{"detail":"Not Found"}'), ["HTTP 404: Not Found", "--endpoint"]),
        (plain(405, b'{"detail":"Method Not Allowed"}'), ["HTTP 405", "--endpoint"]),
        (error(400, "no chat template"), ["HTTP 400: no chat template", "--api"]),
        (plain(422, b'{"detail":[{"loc":["body","messages",0],"msg":"bad"}]}'), ["HTTP 422", "--api"]),
        (b"HTTP/1.1 308 X\r\nLocation: https://there.example/\r\nContent-Length: 0\r\n\r\n",
         ["HTTP 308", "https://there.example/", "--base-url"]),
        (plain(413, b"too large"), ["HTTP 413: too large"]),
        (plain(501, b"Unsupported method ('POST')"),
         ["HTTP 501: Unsupported method", "language models? see --base-url"]),
        (plain(501, b"<!DOCTYPE HTML>\n<html><head><title>Error</title><style>p{x:1}</style></head>\n<body>"
               b"<h1>Error response</h1><p>Unsupported method (&#x27;POST&#x27;).</p></body></html>"),
         ["HTTP 501: Error response Unsupported method ('POST'). ("]),
        (plain(505, b""), ["HTTP 505", "--base-url"]),
    ],
    ids=lambda value: str(value[9:12]) if isinstance(value, bytes) else "",
)  # fmt: skip
async def test_what_every_request_would_meet_ends_the_run(answer: bytes, words: list[str]) -> None:
    """One line with what the server said and what to do; the key is not in it."""
    message = await stopped_by(always(answer))
    for word in ("POST /v1/chat/completions", *words):
        assert word in message


async def test_without_a_key_the_line_says_where_one_goes() -> None:
    """A 401 when no key was given at all."""
    message = await stopped_by(always(error(401, "no key")), key_source=None)
    assert "set OPENAI_API_KEY, or --api-key-file FILE" in message


async def test_a_wrong_model_is_told_beside_those_there_are() -> None:
    """--model was given; the server's list helps."""
    models = plain(200, b'{"data":[{"id":"a/1"},{"id":"b/2"}]}')
    message = await stopped_by(always(error(404, "model 'x' not found")), model="x", models=models)
    assert "the model was x; /v1/models lists a/1, b/2: see --model" in message


async def test_a_server_that_wants_a_model_and_lists_none() -> None:
    """No --model, no /v1/models, and the request is refused."""
    message = await stopped_by(always(error(400, "model is required")), models=plain(404))
    assert "no --model was given, and /v1/models lists none" in message


async def test_nobody_speaks_http_there() -> None:
    """Something listens, and closes every connection at once: unusable, in one line."""

    async def closing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with raw_server(closing) as port:
        with pytest.raises(TargetError, match=rf"127\.0\.0\.1:{port}: cannot be used: "):
            await look_at(port)


async def test_a_self_signed_certificate_is_named_with_both_ways_out(certificate: Path) -> None:
    """Refused; taken with --insecure, and with --ca-file."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    async with scripted_server(plain_probe, tls) as server:
        with pytest.raises(TargetError) as caught:
            await look_at(server.port, scheme="https")
        for word in ("certificate not accepted: self", "--insecure", "--ca-file FILE"):
            assert word in str(caught.value)
        for options in ({"insecure": True}, {"ca_file": certificate}):
            assert (await look_at(server.port, scheme="https", **options)).streams


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_https_to_a_port_without_tls(says: bytes) -> None:
    """The line says so, whether the server complains or waits for more."""

    async def no_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says)
        await reader.read()

    async with raw_server(no_tls) as port:
        with pytest.raises(TargetError, match=rf"https://127\.0\.0\.1:{port}: no TLS "):
            await look_at(port, scheme="https", connect_timeout_s=0.5)


async def test_a_server_that_refuses_our_tls_has_tls() -> None:
    """An alert, here that the handshake failed, is not taken for a port without TLS."""

    async def refusing_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x15\x03\x03\x00\x02\x02\x28")
        await reader.read()

    async with raw_server(refusing_tls) as port:
        with pytest.raises(TargetError, match=r"cannot be used: TLS: .*HANDSHAKE_FAILURE"):
            await look_at(port, scheme="https")


async def test_an_ipv6_literal() -> None:
    """In brackets, as URLs have it."""
    script = ScriptedServer(plain_probe)
    try:
        async with raw_server(script.serve, host="::1") as port:
            found = await look_at(port, host="[::1]")
    except OSError:
        pytest.skip("no IPv6 on this machine")
    assert found.facts["url"] == f"http://[::1]:{port}"
    assert script.probes[0].headers["host"] == f"[::1]:{port}"


@pytest.mark.parametrize(("content", "why"), [(None, "No such file"), ("no certificate", "PEM")])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_ca_file_that_cannot_be_used(tmp_path: Path, content: str | None, why: str, scheme: str) -> None:
    """The flag, the file and the reason."""
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=f"--ca-file {re.escape(str(path))}: .*{why}"):
        parse_target(f"{scheme}://127.0.0.1").tls(insecure=False, ca_file=path)


# What does not stop a run


@pytest.mark.parametrize(
    ("answer", "note"),
    [
        (error(429, "slow down"), "a probe ended as http_error: HTTP 429: slow down"),
        (error(503, "loading"), "a probe ended as http_error: HTTP 503: loading"),
        (error(529, "overloaded"), "a probe ended as http_error: HTTP 529: overloaded"),
        (plain(500, b"boom"), "a probe ended as http_error: HTTP 500: boom"),
        (SSE_HEAD + chunk(b'data: {"error":"oom"}\n\n') + chunk(b""), "a probe ended as stream_error: oom"),
        (SSE_HEAD + chunk(b"data: [DONE]\n\n") + chunk(b""), "a probe ended as empty"),
        (SSE_HEAD + token("a") + chunk(b""), "a probe ended as truncated"),
    ],
    ids=["429", "503", "529", "500", "in_stream", "empty", "truncated"],
)  # fmt: skip
async def test_what_may_pass_is_noted_and_the_run_goes_on(answer: bytes, note: str) -> None:
    """Nothing is known of the fields then: all are sent."""
    found, _ = await found_at(always(answer))
    assert any(line.startswith(note) for line in found.notes)
    assert (found.fields, found.switched_off) == (FIELDS, {})
    assert (found.streams, found.counts_tokens) == (None, None)


async def test_what_was_refused_stays_left_out_if_the_next_probe_meets_a_limit() -> None:
    """A 422 that names two fields, then 429: the two are known all the same."""
    found, _ = await found_at(refusing(strict, always(error(429, "slow down"))))
    assert found.fields == FIELDS - FULL_LENGTH
    assert "a probe ended as http_error: HTTP 429: slow down" in found.notes


async def test_a_server_that_hangs_is_waited_for_as_long_as_was_said() -> None:
    """Half a second, for the probe and for each question; then the run may show it."""

    async def hang(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async with asyncio.timeout(20):
        found, server = await found_at(hang, timeout_s=0.5, connect_timeout_s=0.5)
    assert "a probe ended as timeout: no token within 0.5 s" in found.notes
    assert len(generations(server)) == 1


async def test_a_server_that_does_not_stream() -> None:
    """One JSON object: the run is measured, and what it cannot tell is said before it."""
    body = {
        "choices": [{"index": 0, "message": {"content": "a b"}, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 42, "completion_tokens": 2},
    }
    found, _ = await found_at(always(plain(200, json.dumps(body).encode())))
    assert found.streams is False
    assert any("does not stream" in note and "E2E only" in note for note in found.notes)


async def test_a_server_without_usage() -> None:
    """Tokens are then counted by events, and prompt lengths by nobody."""

    async def quiet(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.path.endswith("/tokenize"):
            writer.write(plain(404))
            return
        writer.write(answered(None, json.loads(request.body)["max_completion_tokens"]))

    found, _ = await found_at(quiet)
    assert (found.counts_tokens, found.wording_from) == (False, "nobody")
    assert any("no usage: output tokens are counted by events" in note for note in found.notes)
    assert any("prompt lengths are not checked" in note for note in found.notes)


@pytest.mark.parametrize("status", [401, 404, 500])
async def test_a_server_without_a_list_of_models_is_measured(status: int) -> None:
    """What counts is whether it answers requests; only a list that should be there is spoken of."""
    found, _ = await found_at(plain_probe, models=plain(status, b'{"error":"no"}'), model="m")
    assert (found.model, found.fields) == ("m", FIELDS)
    assert len(found.notes) == (status != 404)


async def test_the_first_of_several_models_is_taken_and_said() -> None:
    """So that nobody measures another model than they think."""
    models = plain(200, b'[{"id":"first","context_length":4096,"owned_by":"me"},{"id":"second"}]')
    found, _ = await found_at(plain_probe, models=models)
    assert found.model == "first"
    assert found.notes == ("asked for first, the first of 2 models: --model takes another",)
    assert (found.facts["owned_by"], found.facts["max_model_len"]) == ("me", 4096)


@pytest.mark.parametrize(
    ("page", "content", "version"),
    [
        ("/version", {"version": "0.9.1"}, "0.9.1"),
        ("/props", {"build_info": "b42-abc", "total_slots": 4}, "b42-abc"),
        ("/get_server_info", {"version": "0.5"}, "0.5"),
        ("/info", {"version": "3.2", "model_id": "m"}, "3.2"),
        ("/api/version", {"version": "0.12"}, "0.12"),
    ],
)
async def test_the_version_is_found_where_the_server_says_it(
    page: str, content: dict[str, Any], version: str
) -> None:
    """Beside the name in its headers and the model."""
    body = json.dumps(content).encode()
    named = plain(200, b'{"data":[{"id":"m"}]}').replace(b"X\r\n", b"X\r\nServer: thing/1\r\n", 1)
    found, _ = await found_at(plain_probe, pages={page: plain(200, body)}, models=named)
    assert {name: found.facts.get(name) for name in ("server", "version", "version_from", "model")} == {
        "server": "thing/1",
        "version": version,
        "version_from": page,
        "model": "m",
    }


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_packed_list_of_models_is_unpacked(coding: str) -> None:
    """Nobody asked for it; some gateways pack all the same."""
    body = b'{"data":[{"id":"packed"}]}'
    packed = gzip.compress(body) if coding == "gzip" else zlib.compress(body)
    models = plain(200, packed).replace(b"X\r\n", f"X\r\nContent-Encoding: {coding}\r\n".encode(), 1)
    found, _ = await found_at(plain_probe, models=models)
    assert (found.model, found.notes) == ("packed", ())


@pytest.mark.parametrize(
    ("models", "note"),
    [
        (plain(200).replace(b"X\r\n", b"X\r\nContent-Encoding: gzip\r\n", 1), "malformed compression"),
        (plain(302).replace(b"X\r\n", b"X\r\nLocation: /version\r\n", 1), "GET /v1/models answers HTTP 302"),
        (b"SSH-2.0-thing\r\n", "the answer is not HTTP"),
    ],
    ids=["gzip", "redirect", "ssh"],
)  # fmt: skip
async def test_a_list_of_models_that_cannot_be_read_is_noted(models: bytes, note: str) -> None:
    """The run goes on, for what counts is whether requests are answered; redirects are not followed."""
    found, _ = await found_at(plain_probe, models=models, model="m")
    assert len(found.notes) == 1
    assert note in found.notes[0]


@pytest.mark.parametrize(("sent", "name"), [("Zoë/1".encode(), "Zoë/1"), (b"Zo\xeb/1", "Zo\ufffd/1")])
async def test_a_server_is_named_in_utf_8(sent: bytes, name: str) -> None:
    """Bytes that are no UTF-8 are replaced, so that every file can hold the name."""
    models = plain(200, b'{"data":[{"id":"m"}]}').replace(b"X\r\n", b"X\r\nServer: %s\r\n" % sent, 1)
    found, _ = await found_at(plain_probe, models=models)
    assert found.facts["server"] == name


async def test_questions_carry_the_key_and_survive_connections_that_end() -> None:
    """A server that answers one question per connection, without a word that it closes."""
    heads: list[bytes] = []

    async def one_each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(head := await reader.readuntil(b"\r\n\r\n"))
        if head.startswith(b"GET /v1/models "):
            writer.write(plain(200, b'{"data":[{"id":"m"}]}'))
        elif head.startswith(b"GET /api/version "):
            writer.write(plain(200, b'{"version":"0.12"}'))
        elif b" /v1/chat" in head:
            writer.write(answered(200, 1))
        else:
            writer.write(plain(404))
        writer.close()

    async with raw_server(one_each) as port:
        found = await look_at(port)
    assert (found.model, found.facts["version"]) == ("m", "0.12")
    assert {head.split(b" ")[1] for head in heads} >= {
        b"/v1/models",
        b"/tokenize",
        b"/version",
        b"/api/version",
    }
    for head in heads:
        assert f"\r\nauthorization: bearer {KEY}\r\n" in head.decode().lower()
        assert f"\r\nhost: 127.0.0.1:{port}\r\n" in head.decode().lower()


@pytest.mark.parametrize("packed", [False, True])
def test_of_an_answer_without_end_a_bounded_part_is_kept(packed: bool) -> None:
    """Whether it is long on the wire, or only once it is unpacked."""
    whole = bytes(16 << 20)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" if packed else b"HTTP/1.1 200 OK\r\n\r\n"
    question = Question(lambda: None)
    question.feed(head, 0)
    for start in range(0, len(content := gzip.compress(whole) if packed else whole), 1 << 16):
        if not question.finished:
            question.feed(content[start : start + (1 << 16)], 0)
    if packed:
        question.lost(0, None)
    assert question.finished
    assert not question.reusable
    assert MOST_BYTES <= len(question.body()) <= MOST_BYTES + (1 << 20)


# How a server counts


def counting(count: Callable[[str], int], tokenize: Callable[[str], Any] | None = None) -> Answer:
    """A server with a tokenizer of its own, and /tokenize if it is so kind."""

    async def server(request: Request, writer: asyncio.StreamWriter) -> None:
        body = json.loads(request.body)
        if request.path.endswith("/tokenize"):
            content = None if tokenize is None else json.dumps(tokenize(body["prompt"])).encode()
            writer.write(plain(404) if content is None else plain(200, content))
        else:
            asked = body.get("max_completion_tokens") or body["max_tokens"]
            writer.write(answered(count(request.prompt), asked, "messages" in body))  # type: ignore[arg-type]

    return server


def templated(text: str) -> int:
    """Eleven tokens of template, two for the first word."""
    return 11 + 1 + len(text.split())


async def test_a_template_is_found_by_one_probe_more() -> None:
    """The wording counts as the server does."""
    found, server = await found_at(counting(templated))
    assert len(generations(server)) == 2
    assert (found.wording_from, found.wording.is_exact, found.wording.overhead) == ("usage", True, 13)
    assert found.notes == ()


@pytest.mark.parametrize("shape", ["count", "tokens", "list"])
async def test_a_tokenize_endpoint_saves_the_probe(shape: str) -> None:
    """It counts the text alone, with a BOS token; the template is what the usage of the first probe adds."""

    def tokenize(text: str) -> Any:
        ids = list(range(2 + len(text.split())))
        return {"count": {"count": len(ids)}, "tokens": {"tokens": ids}, "list": ids}[shape]

    found, server = await found_at(counting(templated, tokenize))
    assert len(generations(server)) == 1
    assert (found.wording_from, found.wording.overhead) == ("/tokenize", 13)


async def test_a_tokenizer_of_ours_saves_it_too() -> None:
    """--tokenizer FILE, with the template from the usage of the probe."""

    class Words:
        def count(self, text: str) -> int:
            return len(text.split())

    found, server = await found_at(counting(templated), tokenizer=Words())
    assert len(server.probes) == 1
    assert (found.wording_from, found.wording.overhead) == ("--tokenizer", 13)
    alone = unasked(RequestEncoder(
        dialect=DIALECTS["chat"](), target=parse_target("http://h"), path="/", headers={}, model="", seed=0,
    ), "http://h", Words())  # fmt: skip
    assert (alone.wording.overhead, alone.wording_from, alone.model) == (1, "--tokenizer", "default")


async def test_a_tokenizer_of_another_model_is_called_out() -> None:
    """The server counts fewer tokens than the text alone is said to have."""

    class Letters:
        def count(self, text: str) -> int:
            return len(text)

    found, _ = await found_at(counting(templated), tokenizer=Letters())
    assert any("is it this model's?" in note for note in found.notes)


async def test_a_tokentick_server_needs_no_calibration() -> None:
    """It says who it is, and counted the first probe as we do: all of the vocabulary serves."""
    models = plain(200, b'{"data":[{"id":"m"}]}').replace(b"X\r\n", b"X\r\nServer: tokentick/1\r\n", 1)
    found, server = await found_at(plain_probe, models=models)
    assert len(server.probes) == 1
    assert (found.wording, found.wording_from) == (Wording(), "vocabulary")


async def test_probes_are_no_larger_than_the_largest_request() -> None:
    """A server may have room for little more."""
    rows = [
        RequestRow(id="a", prompt_tokens=5, output_tokens=3),
        RequestRow(id="b", prompt_tokens=2, output_tokens=1),
    ]
    models = plain(200, b'{"data":[{"id":"m"}]}').replace(b"X\r\n", b"X\r\nServer: tokentick/1\r\n", 1)
    _, server = await found_at(plain_probe, rows=rows, models=models)
    (probe,) = server.probes
    assert count_tokens(str(probe.prompt)) <= 5
    assert json.loads(probe.body)["max_completion_tokens"] <= 3


@pytest.mark.parametrize("context", [2, 3, 12, 40])
async def test_probes_are_no_larger_than_the_context(context: int) -> None:
    """A server that takes short requests only is asked shortly, though the ledger has long ones."""
    models = plain(200, json.dumps({"data": [{"id": "small", "max_model_len": context}]}).encode())

    async def small(request: Request, writer: asyncio.StreamWriter) -> None:
        asked = json.loads(request.body)["max_completion_tokens"]
        if not request.path.endswith("/tokenize") and count_tokens(str(request.prompt)) + asked > context:
            writer.write(error(400, "maximum context length", code="context_length_exceeded"))
        else:
            await plain_probe(request, writer)

    found, _ = await found_at(small, models=models)
    assert found.fields == FIELDS
    assert f"3 requests are longer than the model's context of {context} tokens" in found.notes


async def test_a_context_that_no_probe_fits_ends_nothing() -> None:
    """What the server refuses then is in the rows of the run."""
    models = plain(200, b'{"data": [{"id": "none", "max_model_len": 1}]}')
    found, _ = await found_at(always(error(400, "maximum context length")), models=models)
    assert found.fields == FIELDS


async def test_prompts_of_the_ledger_are_not_calibrated_for() -> None:
    """Where every row brings its text there is nothing to make."""
    rows = [RequestRow(id="a", prompt_tokens=5, output_tokens=3, prompt="a b c d e")]
    found, server = await found_at(counting(templated), rows=rows)
    assert len(server.probes) == 1
    assert (found.wording_from, found.notes) == ("prompts of the ledger", ())


async def test_prompts_of_ids_are_counted_with_what_the_server_adds() -> None:
    """A BOS token, found by the first probe, which is made of ids as well."""

    async def with_bos(request: Request, writer: asyncio.StreamWriter) -> None:
        assert isinstance(request.prompt, list)
        writer.write(answered(len(request.prompt) + 1, json.loads(request.body)["max_tokens"], chat=False))

    found, server = await found_at(with_bos, api="completions", wording=TOKEN_IDS)
    assert len(server.probes) == 1
    assert found.wording == TOKEN_IDS.with_overhead(1)


async def test_prompts_shorter_than_the_shortest_are_counted_and_noted() -> None:
    """A template of thirteen tokens cannot be undercut."""
    rows = [*ROWS, RequestRow(id="s", prompt_tokens=5, output_tokens=1)]
    found, _ = await found_at(counting(templated), rows=rows)
    assert found.notes == ("1 prompts are longer than the ledger says: the shortest has 14 tokens",)


async def test_a_server_that_takes_no_limit_of_one_token() -> None:
    """The calibration asks for as many as the first probe did."""

    async def sixteen(request: Request, writer: asyncio.StreamWriter) -> None:
        if not request.path.endswith("/tokenize") and json.loads(request.body)["max_completion_tokens"] < 16:
            writer.write(error(400, "integer below minimum value"))
        else:
            await counting(templated)(request, writer)

    found, _ = await found_at(sixteen)
    assert (found.wording_from, found.wording.overhead) == ("usage", 13)


async def test_the_key_is_in_nothing_that_was_found() -> None:
    """A server that puts it into its name, its version, its models and its refusals."""
    models = plain(200, json.dumps({"data": [{"id": f"m-{KEY}", "owned_by": KEY}]}).encode())
    models = models.replace(b"X\r\n", f"X\r\nServer: {KEY}\r\n".encode(), 1)
    page = plain(200, json.dumps({"version": KEY}).encode())
    refuse = refusing(lambda names: error(400, f"{KEY} ignore_eos") if "ignore_eos" in names else None)
    found, _ = await found_at(refuse, models=models, pages={"/version": page})
    assert found.model == f"m-{KEY}"
    assert KEY not in str((found.facts, found.notes, found.switched_off))
    assert "***" in str(found.facts)


# The command


async def run_against(
    server: ScriptedServer, cwd: Path, *flags: str, command: Sequence[str] = COMMAND
) -> subprocess.CompletedProcess[str]:
    """`tokentick run` with three requests of 40 tokens."""
    plan = cwd / "plan.csv"
    plan.write_text("arrival_s,prompt_tokens,output_tokens\n" + "0,40,16\n" * 3)
    words = ["run", str(plan), "--base-url", f"http://127.0.0.1:{server.port}", "--out", "run", *flags]
    return await asyncio.to_thread(tokentick, *words, cwd=cwd, command=command)


async def test_a_run_sends_what_was_found_and_says_so(tmp_path: Path) -> None:
    """A server that forbids two fields and counts a template: requests are right, and run.json knows why."""
    kind = refusing(strict, counting(templated))
    async with scripted_server(kind) as server:
        server.on_probe = kind
        result = await run_against(server, tmp_path)
    assert result.returncode in (0, 4), result.stderr  # 4: this machine was too busy to be punctual
    rows = json_lines(tmp_path / "run" / "requests.jsonl")
    assert [(row["usage_prompt_tokens"], row["prompt_tokens"]) for row in rows] == [(40, 40)] * 3
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert set(info["config"]["extra"]["switched_off"]) == FULL_LENGTH
    assert (info["config"]["model"], info["target"]["model"]) == ("scripted", "scripted")
    for note in (
        "not sent: ignore_eos, min_tokens (HTTP 422: ",
        "without ignore_eos an output can end before",
    ):
        assert any(line.startswith(note) for line in info["notes"])
        assert f"note: {note}" in " ".join(result.stderr.split())


async def test_a_run_that_would_be_in_vain_leaves_nothing_behind(tmp_path: Path) -> None:
    """One line, exit code 3, no directory, and no measured request."""
    async with scripted_server(plain_probe) as server:
        server.on_probe = always(error(404, "The model `nix` does not exist."))
        result = await run_against(server, tmp_path, "--model", "nix")
    refused(result, 3, "The model `nix` does not exist.", "/v1/models lists scripted")
    assert not (tmp_path / "run").exists()
    assert server.posts == []


async def test_without_a_preflight_nothing_is_asked(tmp_path: Path) -> None:
    """Not even for the models; prompts are of the vocabulary."""
    async with scripted_server(plain_probe) as server:
        server.models = plain(500)
        result = await run_against(server, tmp_path, "--no-preflight")
    assert result.returncode == 0, result.stderr
    assert server.probes == []
    assert [count_tokens(str(request.prompt)) for request in server.posts] == [40] * 3


async def test_a_run_loads_what_it_needs(tmp_path: Path) -> None:
    """No HTTP library and nothing of the mock server: they would nearly double what a start costs."""
    script = (
        "import atexit, sys, tokentick\n"
        "unneeded = {'aiohttp', 'mock_server', 'urllib.request'}\n"
        "atexit.register(lambda: print('loaded:', sorted(unneeded & set(sys.modules)), file=sys.stderr))\n"
        "tokentick.main()"
    )
    async with scripted_server(plain_probe) as server:
        result = await run_against(server, tmp_path, command=[sys.executable, "-c", script])
    assert "3 scheduled = 3 completed" in result.stdout
    assert result.stderr.splitlines()[-1] == "loaded: []"


# Proxies


@pytest.mark.parametrize(
    ("environment", "url", "notes"),
    [
        ({"HTTP_PROXY": "http://u:p@proxy:1"}, "http://far.example", ["HTTP_PROXY is set and not used"]),
        ({"https_proxy": "http://proxy:1"}, "https://far.example", ["HTTPS_PROXY is set and not used"]),
        ({"https_proxy": "http://proxy:1"}, "http://far.example", []),
        ({"all_proxy": "http://proxy:1"}, "http://far.example", ["ALL_PROXY is set and not used"]),
        ({"http_proxy": "http://proxy:1", "no_proxy": "far.example"}, "http://far.example", []),
        ({"http_proxy": "http://proxy:1"}, "http://127.0.0.1:8000", []),
        ({}, "http://far.example", []),
    ],
)
def test_a_proxy_in_the_environment_is_not_used_and_said_to_be(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], url: str, notes: list[str]
) -> None:
    """Only where it would apply, and without what its URL holds."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxy_notes(parse_target(url)) == notes


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key, in one file."""
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += [
        "-subj",
        "/CN=127.0.0.1",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(path),
        "-out",
        f"{path}.crt",
    ]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no openssl command to make a certificate with")
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


@pytest.mark.parametrize("kind", ["broken", "dripping", "endless"])
async def test_an_answer_that_does_not_end_well_holds_nobody_up(kind: str) -> None:
    """A list of models with a broken frame, in drops, or without end: time and memory have bounds."""

    async def misbehave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if request.startswith(b"POST"):
            writer.write(plain(404))
            writer.close()
            return
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        if kind == "broken":
            writer.write(chunk(b'{"data":[') + b"zz\r\n")
            writer.close()
            return
        while True:
            writer.write(chunk(b" " * (1 if kind == "dripping" else 1 << 20)))
            await writer.drain()
            await asyncio.sleep(0.2 if kind == "dripping" else 0)

    async with asyncio.timeout(15), raw_server(misbehave) as port:
        with pytest.raises(TargetError):
            await look_at(port, connect_timeout_s=0.5, timeout_s=0.5)


async def test_a_page_is_no_api() -> None:
    """HTML with status 200, as a login page has it: the path is wrong, for every request."""
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 18\r\n\r\n<html>Log in</html>"
    with pytest.raises(TargetError, match=r"neither an event stream nor JSON: <html>Log in.*--endpoint"):
        await found_at(always(page))


async def test_requests_longer_than_the_context_are_counted() -> None:
    """Where the server says how long a context it has."""
    models = plain(200, b'{"data":[{"id":"m","max_model_len":219}]}')
    found, _ = await found_at(plain_probe, models=models)
    assert "3 requests are longer than the model's context of 219 tokens" in found.notes
