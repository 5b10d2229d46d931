"""Errors as vLLM writes them: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from stubserver.errors import GenerationError, RequestError

# vLLM's words, in v1/engine/exceptions.py.
ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


def error_reply(error: RequestError) -> tuple[int, Any]:
    """(status, body) of what answers a request that is refused."""
    return error.status, error.body()


def http_error(status: int, detail: str) -> Any:
    """FastAPI's body where there is no such path, or another method is meant."""
    return {"detail": detail}


def status_body(status: int, message: str) -> Any:
    """The body of a status that a test has chosen."""
    phrase = next((known.phrase for known in HTTPStatus if known == status), "Unknown")
    return {"error": {"message": message or phrase, "type": phrase, "param": None, "code": status}}


def dead_reply(path: str) -> tuple[int, Any]:
    """What is answered once the engine is dead: /health has a status without a body, everything else an error."""
    if path in ("/health", "/ping"):
        return 503, None
    return error_reply(GenerationError(ENGINE_DEAD))
