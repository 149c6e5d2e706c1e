"""Every refusal in OpenAI's error shape, whoever refuses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.web_protocol import RequestPayloadError
from aiohttp.web_request import BaseRequest

from mock_server.intake import too_large
from mock_server.openai import ApiError

_SPOKEN = (HttpVersion10, HttpVersion11)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_Received = TypeVar("_Received", bound=BaseRequest)


def expectations_known(
    handle: Callable[[_Received], Awaitable[web.StreamResponse]],
) -> Callable[[_Received], Awaitable[web.StreamResponse]]:
    """What is not known is refused before aiohttp sees it, which has a shape of its own for that."""

    async def handled(request: _Received) -> web.StreamResponse:
        expected = request.headers.get("Expect", "")
        if expected.lower() in ("", "100-continue"):
            return await handle(request)
        return _refusal(ApiError("Expect: 100-continue is the only expectation that is met", status=417))

    return handled


@web.middleware
async def openai_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        if request.version not in _SPOKEN:
            raise ApiError("this server speaks HTTP/1.1", status=505)
        return await handler(request)
    except ApiError as error:
        return _refusal(error)
    except web.HTTPRequestEntityTooLarge:
        return _refusal(too_large())
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
