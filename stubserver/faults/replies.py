"""Faults instead of a reply: small ASGI apps that answer in the server's place."""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from stubserver.asgi import close_connection, until_gone
from stubserver.dialects.vllm.wire.codec import WIRE
from stubserver.errors import GenerationError
from stubserver.faults import keys

# vLLM's words, in v1/engine/exceptions.py.
_ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."

_HALF_HEADERS = b"HTTP/1.1 200 OK\r\ncontent-type: applica"


def reply_in_place(fault: keys.FaultKeys) -> ASGIApp | None:
    """What answers in the server's place; None for a fault that changes the server's own reply."""
    match fault:
        case keys.StatusKeys():
            return _status_reply(fault)
        case keys.ReadinessKeys():
            return _error(503, "The server isn't ready yet: a fault that was set on stubserver")
        case keys.DeadEngineKeys():
            return dead_engine
        case keys.HangKeys(after_events=None):
            return _hang
        case keys.CloseKeys(at="mid_headers"):
            return _close_mid_headers
        case keys.CloseKeys(after_events=None, mid_event=None):
            return _close
    return None


async def dead_engine(scope: Scope, receive: Receive, send: Send) -> None:
    """What vLLM answers once its engine is dead: /health has a status without a body, everything else an error."""
    if scope["path"] in ("/health", "/ping"):
        await Response(status_code=503)(scope, receive, send)
    else:
        await JSONResponse(WIRE.error_reply(GenerationError(_ENGINE_DEAD))[1], 500)(scope, receive, send)


def _status_reply(fault: keys.StatusKeys) -> Response:
    if fault.body is None:
        reply = _error(fault.status, fault.message)
    elif isinstance(fault.body, str):
        reply = Response(fault.body, fault.status, media_type="text/plain")
    else:
        reply = JSONResponse(fault.body, fault.status)
    for name, value in fault.headers.items():
        reply.headers[name] = value
    return reply


def _error(status: int, message: str | None) -> Response:
    """vLLM's error body."""
    if status in (204, 304):
        return Response(status_code=status)
    phrase = next((known.phrase for known in HTTPStatus if known == status), "Unknown")
    said = message or f"{phrase}: a fault that was set on stubserver"
    return JSONResponse({"error": {"message": said, "type": phrase, "param": None, "code": status}}, status)


async def _hang(scope: Scope, receive: Receive, send: Send) -> None:
    await until_gone(receive)


async def _close(scope: Scope, receive: Receive, send: Send) -> None:
    await close_connection(scope, receive)


async def _close_mid_headers(scope: Scope, receive: Receive, send: Send) -> None:
    await close_connection(scope, receive, _HALF_HEADERS)
