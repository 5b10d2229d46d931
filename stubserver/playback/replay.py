"""Sending a recorded reply: a full one byte for byte, a stream event by event."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import lru_cache

from starlette.types import Message, Receive, Send

from stubserver.asgi import until_gone
from stubserver.playback.asgi_messages import start_message
from stubserver.playback.encodings import accepted, packer
from stubserver.playback.exchange import Exchange, Reply, Request

NO_BODY = (204, 304)
"""Statuses whose replies have no body, and so no length either."""


MAX_READY = 1024
"""Full replies that are kept as they are sent, so that a repeated one isn't made again."""


class Replayer:
    """Plays replies. `pace` times the recorded delays: 0 at once, 1 as recorded."""

    def __init__(self, pace: float) -> None:
        self._pace = pace
        self._full_messages = lru_cache(maxsize=MAX_READY)(_full_messages)

    async def play(self, exchange: Exchange, request: Request, receive: Receive, send: Send) -> None:
        """Answer the request with the recorded reply."""
        reply = exchange.reply
        encoding = _encoding(reply, request) if reply.encoding else ""
        if reply.events is not None:
            await self._play_events(reply, encoding, receive, send)
            return
        if self._pace and await _gone_after(reply.seconds * self._pace, receive):
            return
        for message in self._full_messages(reply, encoding):
            await send(message)

    async def _play_events(self, reply: Reply, encoding: str, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        pack = packer(encoding) if encoding else None
        if self._pace and await _gone_after(reply.seconds * self._pace, receive):
            return
        await send(start_message(reply.status, _headers(reply, encoding)))
        for event in reply.events or ():
            left = started + event.at * self._pace - time.perf_counter() if self._pace else 0
            if await _gone_after(left, receive):
                return
            data = pack(event.data, False) if pack else event.data
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": pack(b"", True) if pack else b""})


async def _gone_after(seconds: float, receive: Receive) -> bool:
    """Wait; True if the client has gone meanwhile. Without a wait, let others in."""
    if seconds <= 0:
        await asyncio.sleep(0)
        return False
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(until_gone(receive), seconds)
        return True
    return False


def _full_messages(reply: Reply, encoding: str) -> tuple[Message, Message]:
    body = packer(encoding)(reply.body, True) if encoding else reply.body
    length = () if reply.status in NO_BODY else (("content-length", str(len(body))),)
    start = start_message(reply.status, (*_headers(reply, encoding), *length))
    return start, {"type": "http.response.body", "body": body}


def _headers(reply: Reply, encoding: str) -> tuple[tuple[str, str], ...]:
    return (*reply.headers, ("content-encoding", encoding)) if encoding else reply.headers


def _encoding(reply: Reply, request: Request) -> str:
    """The recorded encoding, if this client takes it too."""
    offered = next((value for name, value in request.headers if name == "accept-encoding"), "")
    return reply.encoding if reply.encoding in accepted(offered) else ""
