"""The reference: as little as a Starlette app on uvicorn can do and still answer the same requests.

It parses the JSON body and sends a constant: the bytes of one of our own replies, or of one of our own streams.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from time import perf_counter

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route


def create_app(reply: bytes, events: Sequence[bytes] = ()) -> Starlette:
    """The app; `events` answers requests with `stream`."""

    async def create_completion(request: Request) -> Response:
        body = await request.json()
        if body.get("stream"):
            source = in_slices if body.get("in_slices") else one_by_one
            return StreamingResponse(source(events), media_type="text/event-stream")
        return Response(reply, media_type="application/json")

    async def health(request: Request) -> Response:
        return Response()

    return Starlette(
        routes=[Route("/v1/completions", create_completion, methods=["POST"]), Route("/health", health)],
    )


async def one_by_one(events: Sequence[bytes]) -> AsyncIterator[bytes]:
    """Each event goes out before the next one comes, as from any source that makes them one after the other."""
    for event in events:
        yield event
        await asyncio.sleep(0)


async def in_slices(events: Sequence[bytes]) -> AsyncIterator[bytes]:
    """As our server does it: other clients get their turn once a millisecond."""
    slice_end = 0.0
    for event in events:
        yield event
        if perf_counter() >= slice_end:
            await asyncio.sleep(0)
            slice_end = perf_counter() + 0.001


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("content", type=Path, help='JSON: {"reply": "...", "events": ["..."]}')
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    content = json.loads(arguments.content.read_text())
    app = create_app(content["reply"].encode(), [event.encode() for event in content["events"]])
    uvicorn.run(app, port=arguments.port, http="httptools", loop="uvloop", log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
