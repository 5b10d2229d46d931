"""Sending: JSON replies, and streams of events."""

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
from stubserver.serving.wire import Wire

logger = logging.getLogger("stubserver")

SLICE_SECONDS = 0.001
"""How long a stream goes on before it lets others in: a turn of the event loop costs as much as making an event."""


def json_reply(content: Any, status: int = 200) -> Response:
    """A full reply, as compact JSON."""
    try:
        encoded = orjson.dumps(content)
    except TypeError:  # an integer beyond 64 bits
        encoded = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    return Response(encoded, status, media_type="application/json")


def random_id() -> str:
    """16 hexadecimal digits."""
    return f"{random.getrandbits(64):016x}"


def error_reply(error: RequestError, wire: Wire) -> Response:
    """The error's status and body; what failed inside a script is logged with its traceback."""
    log_cause(error)
    status, body = wire.error_reply(error)
    try:
        return JSONResponse(body, status_code=status)
    except UnicodeEncodeError as problem:
        # The message quotes a lone surrogate of the request, which has no UTF-8.
        status, body = wire.error_reply(ValidationError(str(problem)))
        return JSONResponse(body, status_code=status)


def log_cause(error: RequestError) -> None:
    """Log the traceback of what a script or a custom processor raised."""
    if isinstance(error, GenerationError):
        logger.error("%s", error.message, exc_info=error.__cause__ or error)


def event_stream(events: Iterator[dict[str, Any]], wire: Wire) -> Response:
    """A stream of these events, ended as the server ends streams.

    An error on the way is the last event before that: the 200 has gone out by then.
    """
    return StreamingResponse(_encoded(events, wire), media_type=wire.framing.media_type)


async def _encoded(events: Iterator[dict[str, Any]], wire: Wire) -> AsyncIterator[bytes]:
    slice_end, write = 0.0, wire.framing.write
    try:
        for event in events:
            yield write(orjson.dumps(event))
            if perf_counter() >= slice_end:
                # Let other requests in, and the client's disconnect be noticed.
                await asyncio.sleep(0)
                slice_end = perf_counter() + SLICE_SECONDS
    except RequestError as error:
        log_cause(error)
        yield error_event(error, wire)
    except Exception as error:
        logger.exception("Error in a stream")
        yield error_event(GenerationError(f"{type(error).__name__}: {error}"), wire)
    if wire.framing.done:
        yield wire.framing.done


def error_event(error: RequestError, wire: Wire) -> bytes:
    """The event that an error is inside of a stream."""
    return wire.framing.write(json.dumps(wire.error_reply(error)[1]).encode())
