"""Faults instead of a reply: small ASGI apps that answer in the server's place."""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from stubserver.asgi import close_connection, until_gone
from stubserver.faults import keys
from stubserver.serving.wire import Wire

ReplyInPlace = ASGIApp

_HALF_HEADERS = b"HTTP/1.1 200 OK\r\ncontent-type: applica"


def reply_in_place(fault: keys.FaultKeys, wire: Wire) -> ReplyInPlace | None:
    """What answers in the server's place; None for a fault that changes the server's own reply."""
    match fault:
        case keys.StatusKeys():
            return _status_reply(fault, wire)
        case keys.ReadinessKeys():
            return _error(503, "The server isn't ready yet: a fault that was set on stubserver", wire)
        case keys.DeadEngineKeys():
            return dead_engine(wire)
        case keys.HangKeys(after_events=None):
            return _hang
        case keys.CloseKeys(at="mid_headers"):
            return _close_mid_headers
        case keys.CloseKeys(after_events=None, mid_event=None):
            return _close
    return None


def dead_engine(wire: Wire) -> ReplyInPlace:
    """What a server answers once its engine is dead."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        status, body = wire.dead_reply(scope["path"])
        reply = Response(status_code=status) if body is None else JSONResponse(body, status)
        await reply(scope, receive, send)

    return answer


def _status_reply(fault: keys.StatusKeys, wire: Wire) -> Response:
    if fault.body is None:
        reply = _error(fault.status, fault.message, wire)
    elif isinstance(fault.body, str):
        reply = Response(fault.body, fault.status, media_type="text/plain")
    else:
        reply = JSONResponse(fault.body, fault.status)
    for name, value in fault.headers.items():
        reply.headers[name] = value
    return reply


def _error(status: int, message: str | None, wire: Wire) -> Response:
    """The server's error body."""
    if status in (204, 304):
        return Response(status_code=status)
    phrase = next((known.phrase for known in HTTPStatus if known == status), "Unknown")
    said = message or f"{phrase}: a fault that was set on stubserver"
    return JSONResponse(wire.status_body(status, said), status)


async def _hang(scope: Scope, receive: Receive, send: Send) -> None:
    await until_gone(receive)


async def _close(scope: Scope, receive: Receive, send: Send) -> None:
    await close_connection(scope, receive)


async def _close_mid_headers(scope: Scope, receive: Receive, send: Send) -> None:
    await close_connection(scope, receive, _HALF_HEADERS)
