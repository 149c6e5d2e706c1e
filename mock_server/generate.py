"""The two endpoints that generate: from a request to its answer, or to the fault that was asked for."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial

from aiohttp import web

from ledgers.rows import Outcome, RequestRow
from mock_server.control import Control
from mock_server.engine import Engine, Job
from mock_server.faults import Fault
from mock_server.faulty import Faulty, FaultyAnswer, FaultyEncoder, FaultyStream, http_error, told
from mock_server.intake import header, read_beside, request_id, traffic_class, whole_body
from mock_server.openai import Api, ApiError, Generation, parse, queue_full, too_long, whole_response
from mock_server.refusals import Handler
from mock_server.scripts import play
from mock_server.serve_options import ServeOptions
from mock_server.served import ServedLedger
from mock_server.sinks import Answer, Stream
from mock_server.sse import StreamEncoder, words
from mock_server.ticker import Ticker

_STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class Generator:
    """Puts requests into the engine, and what comes of them on the wire."""

    def __init__(
        self,
        engine: Engine,
        ledger: ServedLedger,
        ticker: Ticker,
        control: Control,
        options: ServeOptions,
    ) -> None:
        self.cut_off_count = 0
        self._engine = engine
        self._ledger = ledger
        self._ticker = ticker
        self._control = control
        self._options = options
        self._numbers = 0

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "chat")

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "completions")

    async def _generate(self, request: web.Request, api: Api) -> web.StreamResponse:
        body = await whole_body(request, self._options.request_timeout_s)
        fault = self._fault(request)
        if fault and fault.script:
            return await self._play(request, body, fault)
        generation = await read_beside(body, partial(self._parse, api))
        self._ticker.check()
        self._numbers += 1
        id = f"{'chatcmpl' if api == 'chat' else 'cmpl'}-{self._numbers:08x}"
        headers = {"X-Request-Id": request_id(request) or id}
        if fault and fault.http_status:
            row = self._set_aside(request, fault, generation)
            self._engine.end_aside(row, "http_error", fault.http_status)
            return http_error(fault, headers)
        if generation.stream:
            return await self._stream(request, generation, id, headers, fault)
        return await self._whole(request, generation, id, headers, fault)

    def _parse(self, api: Api, body: bytes) -> Generation:
        return parse(api, body, self._options.default_output_tokens, self._options.style.reasoning_tokens)

    def _fault(self, request: web.Request) -> Fault | None:
        word = header(request, "X-Mock-Fault")
        try:
            return self._control.faults.choose(request_id(request), self._engine.next_number, word)
        except ValueError as error:
            raise ApiError(f"X-Mock-Fault: {error}", code="invalid_fault") from None

    def _set_aside(self, request: web.Request, fault: Fault, generation: Generation | None) -> RequestRow:
        """A request that never comes to the scheduler; lengths are 0 where its body is not one of ours."""
        row = RequestRow(
            id="",
            request_id=request_id(request),
            class_=traffic_class(request),
            prompt_tokens=generation.prompt_tokens if generation else 0,
            output_tokens=generation.output_tokens if generation else 0,
            fault=fault.word,
        )
        received_ns = self._engine.set_aside(row)
        if self._engine.anchor_ns == received_ns:
            self._ledger.anchored(received_ns, time.monotonic_ns())
        return row

    async def _play(self, request: web.Request, body: bytes, fault: Fault) -> web.Response:
        """Whatever the path and the body: a script can be in any dialect."""
        generation = None
        with suppress(ApiError):
            api: Api = "chat" if request.path.endswith("/chat/completions") else "completions"
            generation = await read_beside(body, partial(self._parse, api))
        row = self._set_aside(request, fault, generation)
        script = self._control.scripts[fault.script]
        outcome: Outcome = "cancelled"  # unless it is played to its end
        try:
            if request.transport is not None:
                outcome = await play(request.transport, script)
        finally:
            self._engine.end_aside(row, outcome, script.status)
        return web.Response()  # which the closed connection does not take

    @web.middleware
    async def scripts_anywhere(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Scripts are played at paths, too, that this server does not have."""
        if request.method == "POST" and isinstance(request.match_info.http_exception, web.HTTPNotFound):
            body = await whole_body(request, self._options.request_timeout_s)
            fault = self._fault(request)
            if fault and fault.script:
                return await self._play(request, body, fault)
        return await handler(request)

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
        how = (generation, id, int(time.time()), self._options.style)
        chunked = request.version >= (1, 1)
        if fault:
            stream: Stream = FaultyStream(transport, FaultyEncoder(fault, *how, chunked=chunked), fault)
        else:
            stream = Stream(transport, StreamEncoder(*how, chunked=chunked))
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
            request_id(request),
            generation.prompt_tokens,
            generation.output_tokens,
            sink,
            streamed=generation.stream,
            class_=traffic_class(request),
        )
        if isinstance(sink, Faulty):
            job.fault = sink.fault.word
            sink.leave = partial(self._engine.cancel, job)
        self._engine.submit(job)
        if self._engine.anchor_ns == job.received_ns:
            self._ledger.anchored(job.received_ns, time.monotonic_ns())
        self._ticker.arm()
        if not self._engine.scheduler.fits(job):
            raise too_long(generation, self._engine.scheduler.max_model_len)
        return job

    async def _place(self, sink: Stream | Answer) -> None:
        """Where the queue has a limit, wait for the tick that decides. ApiError if it is full."""
        scheduler = self._engine.scheduler
        if scheduler.max_queue is not None and await sink.fate == "queue_full":
            raise queue_full(scheduler.max_queue, scheduler.hardware.tick_s)

    def _leave(self, job: Job) -> None:
        """The handler ends, by the last token or because the client left: nothing of the job stays behind."""
        sink = job.sink
        if isinstance(sink, Stream):
            self.cut_off_count += sink.cut_off
            sink.left()
        self._engine.cancel(job)
        self._ticker.arm()
