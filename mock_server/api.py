"""The HTTP API: OpenAI's endpoints and the mock's own. aiohttp does everything here but writing tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from urllib.parse import unquote

from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from ledgers.rows import Outcome, RequestRow, encode
from ledgers.rundir import tool_version
from mock_server.connections import whole_body
from mock_server.control import Control
from mock_server.engine import Engine, Job
from mock_server.exposition import Exposition
from mock_server.faults import Fault
from mock_server.faulty import Faulty, FaultyAnswer, FaultyEncoder, FaultyStream, http_error, told
from mock_server.keys import ApiKeys
from mock_server.metrics import Metrics
from mock_server.openai import Api, ApiError, Generation, parse, queue_full, too_long, whole_response
from mock_server.scripts import play
from mock_server.served import ServedLedger
from mock_server.sinks import Answer, Stream
from mock_server.sse import StreamEncoder, Style, words
from mock_server.ticker import Ticker
from mock_server.tokenize import detokenize, tokenize

_Read = TypeVar("_Read")
MAX_BODY_BYTES = 16 * 2**20
LARGE_BODY_BYTES = 2**16
TOO_LARGE = ApiError(f"The request body is larger than {MAX_BODY_BYTES // 2**20} MiB", status=413)


class Server:
    """The application: one engine behind the endpoints."""

    def __init__(
        self,
        engine: Engine,
        ledger: ServedLedger,
        ticker: Ticker,
        metrics: Metrics,
        *,
        model: str,
        default_output_tokens: int,
        request_timeout_s: float,
        style: Style,
        keys: ApiKeys | None = None,
        control: Control,
    ) -> None:
        self.engine = engine
        self.ledger = ledger
        self.ticker = ticker
        self.exposition = Exposition(engine, metrics, model, lambda: self.cut_off_count)
        self.model = model
        self.default_output_tokens = default_output_tokens
        self.request_timeout_s = request_timeout_s
        self.style = style
        self.keys = keys
        self.control = control
        self.cut_off_count = 0
        self.started_s = int(time.time())
        self._numbers = 0

    def application(self) -> web.Application:
        app = web.Application(
            client_max_size=MAX_BODY_BYTES,
            middlewares=[openai_errors, self.check_key, self.scripts_anywhere],
        )
        app.on_response_prepare.append(_echo_request_id)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/v1/models/{model:.+}", self.one_model)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_post("/detokenize", self.detokenize)
        app.router.add_get("/health", self.health)
        app.router.add_get("/version", self.version)
        app.router.add_get("/metrics", self.exposition.handle)
        app.router.add_get("/mock/ledger", self.served_ledger)
        app.router.add_get("/mock/state", self.state)
        app.router.add_post("/mock/reset", self.reset)
        app.router.add_get("/mock/config", self.config)
        app.router.add_post("/mock/config", self.configure)
        return app

    @web.middleware
    async def check_key(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if self.keys:
            self.keys.check(request.path, request.headers)
        return await handler(request)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "chat")

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "completions")

    async def _generate(self, request: web.Request, api: Api) -> web.StreamResponse:
        body = await self._body(request)
        fault = self._fault(request)
        if fault and fault.script:
            return await self._play(request, body, fault)
        generation = await _read(body, partial(self._parse, api))
        self._numbers += 1
        id = f"{'chatcmpl' if api == 'chat' else 'cmpl'}-{self._numbers:08x}"
        headers = {"X-Request-Id": _request_id(request) or id}
        if fault and fault.http_status:
            row = self._set_aside(request, fault, generation)
            self.engine.end_aside(row, "http_error", fault.http_status)
            return http_error(fault, headers)
        if generation.stream:
            return await self._stream(request, generation, id, headers, fault)
        return await self._whole(request, generation, id, headers, fault)

    def _parse(self, api: Api, body: bytes) -> Generation:
        return parse(api, body, self.default_output_tokens, self.style.reasoning_tokens)

    def _fault(self, request: web.Request) -> Fault | None:
        header = request.headers.get("X-Mock-Fault")
        text = header.encode("utf-8", "replace").decode() if header else None
        try:
            return self.control.faults.choose(_request_id(request), self.engine.next_number, text)
        except ValueError as error:
            raise ApiError(f"X-Mock-Fault: {error}", code="invalid_fault") from None

    def _set_aside(self, request: web.Request, fault: Fault, generation: Generation | None) -> RequestRow:
        """A request that never comes to the scheduler; lengths are 0 where its body is not one of ours."""
        row = RequestRow(
            id="",
            request_id=_request_id(request),
            class_=_traffic_class(request),
            prompt_tokens=generation.prompt_tokens if generation else 0,
            output_tokens=generation.output_tokens if generation else 0,
            fault=fault.word,
        )
        received_ns = self.engine.set_aside(row)
        if self.engine.anchor_ns == received_ns:
            self.ledger.anchored(received_ns, time.monotonic_ns())
        return row

    async def _play(self, request: web.Request, body: bytes, fault: Fault) -> web.Response:
        """Whatever the path and the body: a script can be in any dialect."""
        generation = None
        with suppress(ApiError):
            api: Api = "chat" if request.path.endswith("/chat/completions") else "completions"
            generation = await _read(body, partial(self._parse, api))
        row = self._set_aside(request, fault, generation)
        script = self.control.scripts[fault.script]
        outcome: Outcome = "cancelled"  # unless it is played to its end
        try:
            if request.transport is not None:
                outcome = await play(request.transport, script)
        finally:
            self.engine.end_aside(row, outcome, script.status)
        return web.Response()  # which the closed connection does not take

    @web.middleware
    async def scripts_anywhere(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Scripts are played at paths, too, that this server does not have."""
        if request.method == "POST" and isinstance(request.match_info.http_exception, web.HTTPNotFound):
            body = await self._body(request)
            fault = self._fault(request)
            if fault and fault.script:
                return await self._play(request, body, fault)
        return await handler(request)

    async def _body(self, request: web.Request) -> bytes:
        if (request.content_length or 0) > MAX_BODY_BYTES:
            raise TOO_LARGE
        return await whole_body(request, self.request_timeout_s)

    async def _stream(
        self,
        request: web.Request,
        generation: Generation,
        id: str,
        headers: dict[str, str],
        fault: Fault | None,
    ) -> web.StreamResponse:
        transport = request.transport
        if transport is None:
            raise ConnectionResetError
        chunked = request.version >= (1, 1)
        created = int(time.time())
        if fault:
            encoder = FaultyEncoder(fault, generation, id, created, self.style, chunked=chunked)
            stream: Stream = FaultyStream(transport, encoder, fault)
        else:
            stream = Stream(transport, StreamEncoder(generation, id, created, self.style, chunked=chunked))
        job = self._submit(request, generation, stream)
        response = web.StreamResponse(headers={**headers, **_STREAM_HEADERS})
        try:
            await self._place(stream)
            with suppress(ConnectionResetError):  # the client has left, which is not an error of ours
                await stream.may_begin()
                await response.prepare(request)
                stream.open()
                await stream.ended
                await stream.finish(response)
        finally:
            self._leave(job)
        return response

    async def _whole(
        self,
        request: web.Request,
        generation: Generation,
        id: str,
        headers: dict[str, str],
        fault: Fault | None,
    ) -> web.Response:
        answer = FaultyAnswer(fault) if fault else Answer()
        job = self._submit(request, generation, answer)
        try:
            await self._place(answer)
            answer.begin()
            await answer.ended
        finally:
            self._leave(job)
        turn, end = generation.reasoning_tokens, generation.output_tokens
        body = whole_response(told(generation, fault), id, int(time.time()), words(0, turn), words(turn, end))
        response = web.Response(body=body, content_type="application/json", headers=headers)
        return await answer.finish(request, response)

    def _submit(self, request: web.Request, generation: Generation, sink: Stream | Answer) -> Job:
        job = Job(
            _request_id(request),
            generation.prompt_tokens,
            generation.output_tokens,
            sink,
            streamed=generation.stream,
            class_=_traffic_class(request),
        )
        if isinstance(sink, Faulty):
            job.fault = sink.fault.word
            sink.leave = partial(self.engine.cancel, job)
        self.engine.submit(job)
        if self.engine.anchor_ns == job.received_ns:
            self.ledger.anchored(job.received_ns, time.monotonic_ns())
        self.ticker.arm()
        if not self.engine.scheduler.fits(job):
            raise too_long(generation, self.max_model_len)
        return job

    async def _place(self, sink: Stream | Answer) -> None:
        """Where the queue has a limit, wait for the tick that decides. ApiError if it is full."""
        scheduler = self.engine.scheduler
        if scheduler.max_queue is not None and await sink.fate == "queue_full":
            raise queue_full(scheduler.max_queue, scheduler.hardware.tick_s)

    def _leave(self, job: Job) -> None:
        """The handler ends, by the last token or because the client left: nothing of the job stays behind."""
        sink = job.sink
        if isinstance(sink, Stream) and sink.cut_off:
            self.cut_off_count += 1
        self.engine.cancel(job)
        self.ticker.arm()

    async def models(self, _: web.Request) -> web.Response:
        return _json({"object": "list", "data": [self._model(self.model)]})

    async def one_model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        if name != self.model:
            raise ApiError(
                f"The model '{name}' does not exist", status=404, param="model", code="model_not_found"
            )
        return _json(self._model(name))

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await _read(await self._body(request), lambda body: tokenize(body, self.max_model_len))
        return web.Response(body=body, content_type="application/json")

    async def detokenize(self, request: web.Request) -> web.Response:
        return web.Response(
            body=await _read(await self._body(request), detokenize), content_type="application/json"
        )

    @property
    def max_model_len(self) -> int:
        return self.engine.scheduler.max_model_len

    def _model(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self.started_s,
            "owned_by": "tokentick",
            "max_model_len": self.max_model_len,
        }

    async def health(self, _: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def version(self, _: web.Request) -> web.Response:
        return _json({"version": tool_version()})

    async def state(self, _: web.Request) -> web.Response:
        engine = self.engine
        return _json(
            {
                "in_flight": len(engine.jobs),
                "idle": engine.idle,
                "tick": engine.scheduler.tick,
                "kv_reserved": engine.scheduler.kv.reserved,
                "kv_cached": engine.scheduler.kv.cached,
                "late_max_ns": engine.late_max_ns,
                "cut_off": self.cut_off_count,
            }
        )

    async def served_ledger(self, request: web.Request) -> web.StreamResponse:
        headers = {"X-Tokentick-Dropped": str(self.ledger.dropped_count)}
        response = web.StreamResponse(headers={"Content-Type": "application/jsonl", **headers})
        await response.prepare(request)
        async for piece in self.ledger.lines():
            await response.write(piece)
        return response

    async def reset(self, _: web.Request) -> web.Response:
        if not self.engine.reset():
            count = len(self.engine.jobs) + len(self.engine.aside)
            raise ApiError(f"requests in flight: {count}", status=409, type="conflict", code="in_flight")
        self.ledger.start_over()
        self.control.start_over()
        return _json({"status": "reset"})

    async def config(self, _: web.Request) -> web.Response:
        return _json(self.control.faults.settings)

    async def configure(self, request: web.Request) -> web.Response:
        self.control.change(await request.read(), self.engine.next_number)
        return _json(self.control.faults.settings)


_STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


async def _read(body: bytes, read: Callable[[bytes], _Read]) -> _Read:
    """What a body says; a large one is read beside the ticks, so that they go on."""
    return read(body) if len(body) <= LARGE_BODY_BYTES else await asyncio.to_thread(read, body)


def _request_id(request: web.Request) -> str | None:
    return _header(request, "X-Request-Id")


def _traffic_class(request: web.Request) -> str | None:
    text = _header(request, "X-Request-Class")
    return unquote(text) if text else None


def _header(request: web.Request, name: str) -> str | None:
    """What the client says there; bytes that are no text are replaced, for rows are JSON."""
    text = request.headers.get(name)
    return text.encode("utf-8", "replace").decode() if text else None


async def _echo_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """On refusals too: what went wrong is what one looks for by its id."""
    if client_id := _request_id(request):
        response.headers.setdefault("X-Request-Id", client_id)


def _json(value: Any) -> web.Response:
    return web.Response(body=encode(value), content_type="application/json")


@web.middleware
async def openai_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Every refusal in OpenAI's error shape."""
    try:
        return await handler(request)
    except ApiError as error:
        return _refusal(error)
    except web.HTTPRequestEntityTooLarge:
        return _refusal(TOO_LARGE)
    except RequestPayloadError as error:
        return _refusal(ApiError(f"We could not read the body of your request: {error}"))
    except web.HTTPNotFound:
        message = f"Invalid URL ({request.method} {request.path})"
        return _refusal(ApiError(message, status=404, code="unknown_url"))
    except web.HTTPException as error:
        message = f"{error.reason} ({request.method} {request.path})"
        refusal = _refusal(ApiError(message, status=error.status))
        if "Allow" in error.headers:
            refusal.headers["Allow"] = error.headers["Allow"]
        return refusal


def _refusal(error: ApiError) -> web.Response:
    headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    return web.Response(
        status=error.status, body=error.body, content_type="application/json", headers=headers
    )
