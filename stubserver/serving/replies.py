"""Sending: JSON replies and streams of server-sent events."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator, Iterator
from time import perf_counter
from typing import Any

import orjson
from starlette.responses import JSONResponse, Response, StreamingResponse

from stubserver.errors import GenerationError, RequestError, ValidationError

logger = logging.getLogger("stubserver")

DONE = b"data: [DONE]\n\n"

SLICE_SECONDS = 0.001
"""How long a stream may keep the server to itself: a turn of the event loop costs as much as making an event."""


def json_reply(content: Any) -> Response:
    """A full reply, as compact JSON."""
    return Response(orjson.dumps(content), media_type="application/json")


def random_id() -> str:
    """16 hexadecimal digits, as vLLM's random ids have."""
    return f"{random.getrandbits(64):016x}"


def error_reply(error: RequestError) -> Response:
    """The error's status and body; what failed inside a script is logged with its traceback."""
    log_cause(error)
    try:
        return JSONResponse(error.body(), status_code=error.status)
    except UnicodeEncodeError as problem:
        # The message quotes a lone surrogate of the request, which has no UTF-8.
        return JSONResponse(ValidationError(str(problem)).body(), status_code=400)


def log_cause(error: RequestError) -> None:
    """Log the traceback of what a script or a custom processor raised."""
    if isinstance(error, GenerationError):
        logger.error("%s", error.message, exc_info=error.__cause__ or error)


def event_stream(events: Iterator[dict[str, Any]]) -> Response:
    """A stream of these events, ended by [DONE].

    An error on the way is the last event before it: the 200 has gone out by then, so vLLM does the same.
    """
    return StreamingResponse(_encoded(events), media_type="text/event-stream")


async def _encoded(events: Iterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    slice_end = 0.0
    try:
        for event in events:
            yield b"data: " + orjson.dumps(event) + b"\n\n"
            if perf_counter() >= slice_end:
                # Let other requests in, and the client's disconnect be noticed.
                await asyncio.sleep(0)
                slice_end = perf_counter() + SLICE_SECONDS
    except RequestError as error:
        log_cause(error)
        yield _error_event(error)
    except Exception as error:
        logger.exception("Error in a stream")
        failure = GenerationError(f"{type(error).__name__}: {error}")
        yield _error_event(failure)
    yield DONE


def _error_event(error: RequestError) -> bytes:
    return b"data: " + json.dumps(error.body()).encode() + b"\n\n"
