"""The two endpoints that generate: from a request to its answer, or to the fault that was asked for."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from aiohttp import web

from ledgers.rows import Outcome, RequestRow
from mock_server.control import Control
from mock_server.engine import Engine, Job
from mock_server.faults import Fault
from mock_server.faulty import Faulty, FaultyAnswer, FaultyEncoder, FaultyStream, http_error, told
from mock_server.intake import header, read_beside, request_id, traffic_class, whole_body
from mock_server.openai import Api, ApiError, Generation, parse, queue_full, too_long, whole_response
from mock_server.refusals import Handler
from mock_server.results import retry_after_s
from mock_server.scripts import play
from mock_server.serve_options import ServeOptions
from mock_server.sinks import Answer, Stream
from mock_server.sse import StreamEncoder, words
from mock_server.ticker import Ticker

_STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class Asked(NamedTuple):
    """A request as it was read, the fault that its answer is to have, and the answer's own name."""

    request: web.Request
    generation: Generation
    fault: Fault | None
    id: str

    @property
    def headers(self) -> dict[str, str]:
        return {"X-Request-Id": request_id(self.request) or self.id}


class Generator:
    """Puts requests into the engine, and what comes of them on the wire."""

    def __init__(self, engine: Engine, ticker: Ticker, control: Control, options: ServeOptions) -> None:
        self.cut_off_count = 0
        self.open_count = 0  # requests whose answers are not yet out, to the last byte
        self._engine = engine
        self._ticker = ticker
        self._control = control
        self._options = options
        self._numbers = 0

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "chat")

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, "completions")

    async def _generate(self, request: web.Request, api: Api) -> web.StreamResponse:
        self.open_count += 1
        try:
            return await self._answer(request, api)
        finally:
            self.open_count -= 1

    async def _answer(self, request: web.Request, api: Api) -> web.StreamResponse:
        body = await whole_body(request, self._options.request_timeout_s)
        read = await self._read(api, body)
        self._ticker.check()
        fault = self._fault(request)  # from here to its receipt nothing waits: its number is the next one
        if fault and fault.script:
            return await self._play(request, read, fault)
        if isinstance(read, ApiError):
            raise read
        self._numbers += 1
        id = f"{'chatcmpl' if api == 'chat' else 'cmpl'}-{self._numbers:08x}"
        asked = Asked(request, read, fault, id)
        if fault and fault.http_status:
            row = self._set_aside(request, fault, read)
            self._engine.end_aside(row, "http_error", fault.http_status)
            return http_error(fault, asked.headers)
        return await (self._stream(asked) if read.stream else self._whole(asked))

    async def _read(self, api: Api, body: bytes) -> Generation | ApiError:
        """What a body asks for, or why it is refused, which a script does not care about."""
        try:
            return await read_beside(body, partial(self._parse, api))
        except ApiError as error:
            return error

    def _parse(self, api: Api, body: bytes) -> Generation:
        options = self._options
        return parse(api, body, options.default_output_tokens, options.style.reasoning_tokens, options.model)

    def _fault(self, request: web.Request) -> Fault | None:
        word = header(request, "X-Mock-Fault")
        try:
            return self._control.faults.choose(request_id(request), self._engine.next_number, word)
        except ValueError as error:
            raise ApiError(f"X-Mock-Fault: {error}", code="invalid_fault") from None

    def _set_aside(self, request: web.Request, fault: Fault, read: Generation | ApiError) -> RequestRow:
        """A request that never comes to the scheduler; lengths are 0 where its body is not one of ours."""
        row = RequestRow(
            id="",
            request_id=request_id(request),
            class_=traffic_class(request),
            prompt_tokens=read.prompt_tokens if isinstance(read, Generation) else 0,
            output_tokens=read.output_tokens if isinstance(read, Generation) else 0,
            retry_after_s=fault.told_retry_after,
            fault=fault.word,
        )
        self._engine.set_aside(row)
        return row

    async def _play(self, request: web.Request, read: Generation | ApiError, fault: Fault) -> web.Response:
        row = self._set_aside(request, fault, read)
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
        unknown = isinstance(request.match_info.http_exception, web.HTTPNotFound)
        if unknown and request.method == "POST" and self._control.scripts:
            body = await whole_body(request, self._options.request_timeout_s)
            api: Api = "chat" if request.path.endswith("/chat/completions") else "completions"
            read = await self._read(api, body)
            fault = self._fault(request)
            if fault and fault.script:
                return await self._play(request, read, fault)
        return await handler(request)

    async def _stream(self, asked: Asked) -> web.StreamResponse:
        request, generation, fault, id = asked
        transport = request.transport
        if transport is None:
            raise ConnectionResetError
        how = (generation, id, int(time.time()), self._options.style)
        chunked = request.version >= (1, 1)
        if fault:
            stream: Stream = FaultyStream(transport, FaultyEncoder(fault, *how, chunked=chunked), fault)
        else:
            stream = Stream(transport, StreamEncoder(*how, chunked=chunked))
        job = self._submit(asked, stream)
        response = web.StreamResponse(headers={**asked.headers, **_STREAM_HEADERS})
        try:
            await self._place(stream)
            with suppress(ConnectionResetError):  # the client has left, which is not an error of ours
                await stream.may_begin()
                await response.prepare(request)
                stream.open()
                await stream.ended
                await stream.finish(request, response, self._options.request_timeout_s)
        finally:
            self._leave(job)
        return response

    async def _whole(self, asked: Asked) -> web.StreamResponse:
        request, generation, fault, id = asked
        answer = FaultyAnswer(fault) if fault else Answer()
        job = self._submit(asked, answer)
        try:
            await self._place(answer)
            await answer.ended
        finally:
            self._leave(job)
        turn, end = generation.reasoning_tokens, generation.output_tokens
        body = whole_response(told(generation, fault), id, int(time.time()), words(0, turn), words(turn, end))
        response = web.Response(body=body, content_type="application/json", headers=asked.headers)
        with suppress(ConnectionResetError):
            response = await answer.finish(request, response, self._options.request_timeout_s)
        self.cut_off_count += answer.cut_off
        return response

    def _submit(self, asked: Asked, sink: Stream | Answer) -> Job:
        generation = asked.generation
        job = Job(
            request_id(asked.request),
            generation.prompt_tokens,
            generation.output_tokens,
            sink,
            streamed=generation.stream,
            class_=traffic_class(asked.request),
        )
        if isinstance(sink, Faulty):
            sink.mark = partial(setattr, job, "fault", sink.fault.word)
            sink.leave = partial(self._engine.cancel, job, in_tick=True)
        self._engine.submit(job)
        self._ticker.arm()
        if not self._engine.scheduler.fits(job):
            raise too_long(generation, self._engine.scheduler.max_model_len)
        return job

    async def _place(self, sink: Stream | Answer) -> None:
        """Where the queue has a limit, wait for the tick that decides. ApiError if it is full."""
        scheduler = self._engine.scheduler
        if scheduler.max_queue is not None and await sink.fate == "queue_full":
            raise queue_full(scheduler.max_queue, retry_after_s(scheduler.tick_ns))

    def _leave(self, job: Job) -> None:
        """The handler ends, by the last token or because the client left: nothing of the job stays behind."""
        sink = job.sink
        assert isinstance(sink, Stream | Answer)
        sink.left()
        if sink.cut_off:
            self.cut_off_count += 1
            job.error = "the reader was too far behind"
        self._engine.cancel(job)
        self._ticker.arm()
