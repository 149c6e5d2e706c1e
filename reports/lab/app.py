"""The lab's HTTP server: the page, its files, the JSON API, and the events of a live run.

Nothing is ever changed by a GET. What is refused here by aiohttp's own exceptions becomes JSON in
`reports.lab.visitors`, together with what aiohttp refuses before it gets here.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from ledgers.rows import encode
from reports.lab import security
from reports.lab.events import Streams
from reports.lab.experiment import experiment
from reports.lab.live import BusyError, LiveRun, LiveRuns, simulated_s
from reports.lab.refusals import TooManyError, refused, refused_by
from reports.lab.setting import (
    DEFAULT,
    MOST_CHARS,
    Problem,
    Setting,
    SettingError,
    knobs,
    parse,
    parse_strictly,
)
from reports.lab.view import page
from reports.lab.words import LANGUAGES

MOST_BODY_BYTES = 4_096
MOST_WAITING = 8
BODY_LIMIT_S = 10.0
STATIC = (Path(__file__).parent / "static", Path(__file__).parent.parent / "page")
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_FILE_NAME = re.compile(r"[a-z0-9_-]{1,40}\.(js|css|svg)", re.ASCII)
T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class RunRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /api/runs."""

    query: str = ""


class Lab:
    """The application. `port` is the one that it listens on."""

    def __init__(self, port: int, runs: LiveRuns) -> None:
        self._port = port
        self._runs = runs
        self._streams = Streams()
        self._simulating = ThreadPoolExecutor(1, "simulation")
        self._waiting = 0
        self._template = Environment(
            loader=PackageLoader("reports.lab"),
            autoescape=select_autoescape(default=True),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        ).get_template("index.html")

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MOST_BODY_BYTES, middlewares=[self._guarded])
        app.on_response_prepare.append(_harden)
        app.router.add_get("/", self.page)
        app.router.add_get("/static/{name}", self.file)
        app.router.add_get("/api/experiment", self.experiment)
        app.router.add_get("/api/runs", self.last)
        app.router.add_post("/api/runs", self.start)
        app.router.add_get("/api/runs/{id}/events", self.events, allow_head=False)
        app.router.add_delete("/api/runs/{id}", self.stop)
        return app

    async def close(self) -> None:
        await self._runs.close()
        self._simulating.shutdown(cancel_futures=True)

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if refusal := security.refusal(request.method, request.raw_path, request.headers, self._port):
                return refused(*refusal)
            return await handler(request)
        except SettingError as error:
            return refused_by(400, error.problem)
        except web.RequestPayloadError:
            return refused(400, "the body is not what its headers say")
        except BusyError as error:
            return refused_by(409, Problem(None, str(error), "run_going_on"))
        except TooManyError as error:
            return refused(503, str(error))
        except TimeoutError:
            return refused(408, "the body took too long")
        except web.HTTPException:
            raise
        except Exception:
            logging.getLogger(__name__).exception("%s %s", request.method, request.path[:80])
            return refused(500, "the lab failed; its terminal says more")

    async def page(self, request: web.Request) -> web.Response:
        """What cannot be used of the query is replaced by its default, and said on the page."""
        setting, problems = parse(_query(request))
        lang = setting.lang or preferred(request.headers.get("Accept-Language", ""))
        html = await self._in_turn(partial(self._render, setting, problems, lang, _query(request)))
        return web.Response(text=html, content_type="text/html", headers={"Vary": "Accept-Language"})

    def _render(self, setting: Setting, problems: list[Problem], lang: str, query: str) -> str:
        try:
            found = experiment(setting)
        except SettingError as error:
            problems = [*problems, error.problem]
            setting = DEFAULT._replace(lang=setting.lang)
            found = experiment(setting)
        return self._template.render(page=page(found, knobs(setting), lang, problems, query))

    async def file(self, request: web.Request) -> web.Response:
        """Only names that can be a file of ours are looked for."""
        name = request.match_info["name"]
        if not _FILE_NAME.fullmatch(name):
            raise web.HTTPNotFound
        path = next((path for path in (folder / name for folder in STATIC) if path.is_file()), None)
        if path is None:
            raise web.HTTPNotFound
        headers = {"Cache-Control": "no-cache"}
        return web.Response(
            body=path.read_bytes(), content_type=TYPES[path.suffix], charset="utf-8", headers=headers
        )

    async def experiment(self, request: web.Request) -> web.Response:
        return _json(await self._in_turn(partial(experiment, parse_strictly(_query(request)))))

    async def start(self, request: web.Request) -> web.Response:
        if request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType
        async with asyncio.timeout(BODY_LIMIT_S):
            body = await request.read()
        try:
            wanted = msgspec.json.decode(body, type=RunRequest)
        except msgspec.DecodeError as error:
            return refused(400, f"the body is not what was expected: {error}")
        setting = parse_strictly(wanted.query)
        run = self._runs.start(setting, await self._in_turn(partial(simulated_s, setting)))
        return _json({"id": run.id, "query": run.setting.query()}, status=201)

    async def last(self, _: web.Request) -> web.Response:
        """The run that goes on, or the last one: a page that is loaded anew can follow it, or stop it."""
        run = self._runs.last
        return _json({"run": run and run.to_json()})

    async def events(self, request: web.Request) -> web.StreamResponse:
        return await self._streams.send(request, self._run(request))

    async def stop(self, request: web.Request) -> web.Response:
        run = self._run(request)
        await run.stop()
        return _json({"id": run.id})

    def _run(self, request: web.Request) -> LiveRun:
        run = self._runs.find(request.match_info["id"])
        if run is None:
            raise web.HTTPNotFound
        return run

    async def _in_turn(self, work: Callable[[], T]) -> T:
        """One at a time, so that many cannot take the machine from a live run."""
        if self._waiting >= MOST_WAITING:
            raise TooManyError("too many simulations are waited for: try again in a moment")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._simulating, work)
        finally:
            self._waiting -= 1


async def _harden(_: web.Request, response: web.StreamResponse) -> None:
    security.harden(response)


def preferred(accepted: str) -> str:
    """Of the languages there are, the one that an Accept-Language header wants most; English without one."""
    wanted: list[tuple[float, str]] = []
    for part in accepted[:MOST_CHARS].split(","):
        tag, _, weight = part.partition(";q=")
        lang = tag.strip().lower().partition("-")[0]
        if lang in LANGUAGES and re.fullmatch(r"(0|1)(\.[0-9]{0,3})?", weight.strip() or "1"):
            wanted.append((float(weight.strip() or 1), lang))
    return max(wanted, key=lambda each: each[0], default=(1.0, "en"))[1]


def _query(request: web.Request) -> str:
    return request.rel_url.raw_query_string


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=encode(value), content_type="application/json", status=status)
