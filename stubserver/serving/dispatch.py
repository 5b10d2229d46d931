"""From a request to the handler that answers it, and from what a handler raises to a reply."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from itertools import groupby

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from stubserver.errors import RequestError
from stubserver.serving.dialect import Endpoint, Handler
from stubserver.serving.sending import error_reply
from stubserver.serving.state import STATE_KEY, ServerState
from stubserver.serving.wire import Wire

Answers = Mapping[tuple[str, str], ASGIApp]
"""(path, method) → the app that answers."""


def make_answers(endpoints: Iterable[Endpoint], state: ServerState, wire: Wire) -> Answers:
    """An app for each endpoint."""
    return {(endpoint.path, endpoint.method): _answering(endpoint, state, wire) for endpoint in endpoints}


def _answering(endpoint: Endpoint, state: ServerState, wire: Wire) -> ASGIApp:
    """An endpoint as an app; generating requests are in flight until their last byte has gone out."""
    counted = int(endpoint.generates)
    handler: Handler | None = None

    async def answering(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal handler
        scope[STATE_KEY] = state
        state.in_flight += counted
        try:
            try:
                if handler is None:
                    handler = endpoint.load().handler
                response = await handler(Request(scope, receive, send))
            except Exception as error:
                response = _reply_to(error, wire)
            await response(scope, receive, send)
        finally:
            state.in_flight -= counted

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

    def __init__(self, app: ASGIApp, answers: Answers) -> None:
        self._app = app
        self._answers = answers

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer the request, or pass it on."""
        answer = self._answers.get((scope["path"], scope["method"])) if scope["type"] == "http" else None
        return (answer or self._app)(scope, receive, send)


def make_routes(answers: Answers) -> list[BaseRoute]:
    """One Starlette route a path. HEAD, which Starlette adds to GET, is taken out again: vLLM refuses it."""
    routes: list[BaseRoute] = []
    for path, group in groupby(answers, key=lambda answered: answered[0]):
        by_method = {method: answers[path, method] for _, method in group}
        route = Route(path, _never, methods=list(by_method))
        route.methods = set(by_method)
        route.app = _by_method(by_method)
        routes.append(route)
    return routes


async def _never(request: Request) -> Response:
    """In place of a handler, which a Starlette route would wrap."""
    raise NotImplementedError


def _by_method(apps: Mapping[str, ASGIApp]) -> ASGIApp:
    async def answering(scope: Scope, receive: Receive, send: Send) -> None:
        await apps[scope["method"]](scope, receive, send)

    return answering
