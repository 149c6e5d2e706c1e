"""The HTTP API: OpenAI's endpoints and the mock's own. aiohttp does everything here but writing tokens."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from aiohttp import web

from ledgers.rows import encode
from ledgers.rundir import tool_version
from mock_server.connections import ConnectionCounts
from mock_server.control import MAX_CONFIG_BYTES, Control
from mock_server.engine import Engine
from mock_server.exposition import Exposition
from mock_server.generate import Generator
from mock_server.intake import MAX_BODY_BYTES, read_beside, request_id, whole_body
from mock_server.metrics import Metrics
from mock_server.openai import ApiError
from mock_server.refusals import Handler, openai_errors
from mock_server.serve_options import ServeOptions
from mock_server.served import ServedLedger
from mock_server.tokenize import detokenize, tokenize

MOST_TO_TOKENIZE_BYTES = 2**20  # the answer is several times as long


class Server:
    """The application: one engine behind the endpoints."""

    def __init__(
        self,
        engine: Engine,
        ledger: ServedLedger,
        generator: Generator,
        metrics: Metrics,
        control: Control,
        options: ServeOptions,
    ) -> None:
        self.engine = engine
        self.ledger = ledger
        self.generator = generator
        self.connections = ConnectionCounts()
        self.exposition = Exposition(
            engine, metrics, options.model, lambda: generator.cut_off_count, self.connections
        )
        self.control = control
        self.options = options
        self.started_s = int(time.time())

    def application(self) -> web.Application:
        app = web.Application(
            client_max_size=MAX_BODY_BYTES,
            middlewares=[openai_errors, self.check_key, self.generator.scripts_anywhere],
        )
        app.on_response_prepare.append(_echo_request_id)
        app.router.add_post("/v1/chat/completions", self.generator.chat)
        app.router.add_post("/v1/completions", self.generator.completions)
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
    async def check_key(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self.options.keys:
            self.options.keys.check(request.path, request.headers)
        return await handler(request)

    async def models(self, _: web.Request) -> web.Response:
        return _json({"object": "list", "data": [self._model(self.options.model)]})

    async def one_model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        if name != self.options.model:
            raise ApiError(
                f"The model '{name}' does not exist", status=404, param="model", code="model_not_found"
            )
        return _json(self._model(name))

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await whole_body(request, self.options.request_timeout_s, MOST_TO_TOKENIZE_BYTES)
        answer = await read_beside(body, lambda body: tokenize(body, self.max_model_len))
        return web.Response(body=answer, content_type="application/json")

    async def detokenize(self, request: web.Request) -> web.Response:
        body = await whole_body(request, self.options.request_timeout_s, MOST_TO_TOKENIZE_BYTES)
        return web.Response(body=await read_beside(body, detokenize), content_type="application/json")

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
                "cut_off": self.generator.cut_off_count,
                "connections": self.connections,
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
        body = await whole_body(request, self.options.request_timeout_s, MAX_CONFIG_BYTES)
        self.control.change(body, self.engine.next_number)
        return _json(self.control.faults.settings)


async def _echo_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """On refusals too: what went wrong is what one looks for by its id."""
    with suppress(ApiError):  # that id is no text
        if client_id := request_id(request):
            response.headers.setdefault("X-Request-Id", client_id)


def _json(value: Any) -> web.Response:
    return web.Response(body=encode(value), content_type="application/json")
