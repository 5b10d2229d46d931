"""From a request to the handler that answers it, and from what a handler raises to a reply."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stubserver.asgi import CONTROL_PREFIX, find_header
from stubserver.errors import RequestError
from stubserver.serving.dialect import Endpoint, Handler
from stubserver.serving.http_stats import HttpStats
from stubserver.serving.origins import VARY
from stubserver.serving.sending import error_reply
from stubserver.serving.state import STATE_KEY, ServerState
from stubserver.serving.wire import Wire

_ANSWERED = "stubserver.answered"
"""Where the scope of a request says that its endpoint answers it, and counts it."""


class Answer(NamedTuple):
    """An endpoint, and the app that answers there."""

    endpoint: Endpoint
    app: ASGIApp


def make_answers(endpoints: Iterable[Endpoint], state: ServerState, wire: Wire) -> list[Answer]:
    """An app for each endpoint."""
    return [Answer(endpoint, _answering(endpoint, state, wire)) for endpoint in endpoints]


def _answering(endpoint: Endpoint, state: ServerState, wire: Wire) -> ASGIApp:
    """An endpoint as an app; generating requests are in flight until their last byte has gone out."""
    generates, path = int(endpoint.generates), endpoint.path
    observe = state.http.observe if state.http.counts(path) and not path.startswith(CONTROL_PREFIX) else None
    handler: Handler | None = None

    async def answering(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal handler
        started, status, size = perf_counter(), 500, 0
        scope[STATE_KEY] = state
        state.in_flight += generates
        try:
            try:
                if handler is None:
                    handler = endpoint.load().handler
                response = await handler(Request(scope, receive, send))
            except Exception as error:
                response = _reply_to(error, wire)
            status, size = response.status_code, len(getattr(response, "body", b""))
            scope[_ANSWERED] = True
            if find_header(scope, b"origin") is None:
                response.raw_headers.append(VARY)
            await response(scope, receive, send)
        finally:
            state.in_flight -= generates
            if observe is not None:
                length = find_header(scope, b"content-length")
                observe(path, scope["method"], status, length, size, perf_counter() - started)

    return answering


def _reply_to(error: Exception, wire: Wire) -> Response:
    """What the client gets for what its handler raised; anything unforeseen is raised on, to Starlette's middleware."""
    if isinstance(error, RequestError):
        return error_reply(error, wire)
    if isinstance(error, HTTPException):
        return http_error_reply(error, wire)
    raise error


def http_error_reply(error: HTTPException, wire: Wire) -> Response:
    """Where there is nothing to answer: no such path, another method."""
    body = wire.http_error(error.status_code, error.detail)
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


class DispatchMiddleware:
    """Hands a request to its endpoint by the exact path.

    Everything else (other paths, other methods, a mounted app) is for Starlette's router, which has the same endpoints:
    it takes as long to find one as the bare server takes for half a request.
    """

    def __init__(self, app: ASGIApp, answers: Sequence[Answer], stats: HttpStats) -> None:
        self._app = app
        self._stats = stats
        self._apps = _by_path_and_method(answers)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer the request, or pass it on."""
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        answer = self._apps.get((scope["path"], scope["method"]))
        return self._route(scope, receive, send) if answer is None else answer(scope, receive, send)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        """By the router; what has no endpoint is counted here, and belongs to none."""
        started, status, size = perf_counter(), 0, 0
        is_from_elsewhere = find_header(scope, b"origin") is None

        async def sending(message: Message) -> None:
            nonlocal status, size
            status = message.get("status", status)
            size += len(message.get("body", b""))
            if message["type"] == "http.response.start" and _ANSWERED not in scope and is_from_elsewhere:
                message = {**message, "headers": [*message.get("headers", ()), VARY]}
            await send(message)

        await self._app(scope, receive, sending)
        if _ANSWERED not in scope and self._stats.counts(scope["path"]):
            handler = scope["path"] if self._is_redirected(scope, status) else "none"
            took = perf_counter() - started
            self._stats.observe(handler, scope["method"], status, find_header(scope, b"content-length"), size, took)

    def _is_redirected(self, scope: Scope, status: int) -> bool:
        return status == 307 and (scope["path"].rstrip("/"), scope["method"]) in self._apps


def _by_path_and_method(answers: Iterable[Answer]) -> Mapping[tuple[str, str], ASGIApp]:
    """(path, method) → app, of endpoints with one path."""
    return {
        (endpoint.path, method): app
        for endpoint, app in answers
        if "{" not in endpoint.path
        for method in endpoint.methods or ()
    }


def make_routes(answers: Iterable[Answer]) -> list[BaseRoute]:
    """A Starlette route an endpoint, as FastAPI has them: of a path's methods, a 405 names those of the first one."""
    routes: list[BaseRoute] = []
    for endpoint, app in answers:
        route = Route(endpoint.path, _never, methods=["GET"])
        route.methods = endpoint.methods  # type: ignore[assignment]
        route.app = app
        routes.append(route)
    return routes


async def _never(request: Request) -> Response:
    """In place of a handler, which a Starlette route would wrap."""
    raise NotImplementedError
