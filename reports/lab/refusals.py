"""The one shape of every refusal: JSON that says what, by a code that stays the same."""

from __future__ import annotations

from http import HTTPStatus

from aiohttp import web
from aiohttp.web_request import BaseRequest

from ledgers.rows import encode
from reports.lab.setting import Problem

CODES = {
    403: "wrong_origin",
    404: "not_found",
    405: "wrong_method",
    408: "too_slow",
    413: "too_large",
    415: "wrong_type",
    417: "wrong_expectation",
    421: "wrong_host",
    500: "failed",
    503: "busy",
}


class TooManyError(Exception):
    """There is no room for one more of these."""


def refused(status: int, message: str) -> web.Response:
    return refused_by(status, Problem(None, message, CODES.get(status, "bad_request")))


def refused_by(status: int, problem: Problem) -> web.Response:
    return web.Response(
        status=status,
        reason=HTTPStatus(status).phrase,
        body=encode({"error": problem}),
        content_type="application/json",
    )


def by_aiohttp(error: web.HTTPException, request: BaseRequest) -> web.Response:
    """In place of its own answer, which is plain text."""
    response = refused(error.status, f"{error.reason}: {request.method} {request.path[:80]}")
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response
