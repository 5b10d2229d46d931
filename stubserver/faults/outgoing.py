"""A reply on its way out, through the faults that befall it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Receive, Scope, Send

from stubserver.asgi import close_connection, until_gone
from stubserver.faults.reply_faults import ReplyFaults
from stubserver.faults.stages import Item, Piece, Stop, Wait, flow
from stubserver.serving.framing import EventCutter, Framing


class OutgoingReply:
    """Takes what an app sends, and sends what the faults make of it."""

    def __init__(self, faults: ReplyFaults, framing: Framing, scope: Scope, receive: Receive, send: Send) -> None:
        self._faults = faults
        self._framing = framing
        self._stages = [*faults.content_stages(), self._measure, *faults.delivery_stages()]
        self._scope, self._receive, self._send = scope, receive, send
        self._start: Message | None = None
        """The status and the headers, until they are sent."""
        self._cutter: EventCutter | None = None
        """Of a stream."""
        self._body = b""
        """Of a full reply, as far as it has come."""
        self._is_over = False
        self._count = 0

    async def send(self, message: Message) -> None:
        """The `send` for the app."""
        if self._is_over:
            return
        if message["type"] == "http.response.start":
            await self._begin(message)
            return
        is_last = not message.get("more_body", False)
        for piece in self._pieces_of(message.get("body", b""), is_last):
            for item in flow(piece, self._stages):
                await self._do(item)
                if self._is_over:
                    return
        if is_last:
            await self._send_start()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _begin(self, start: Message) -> None:
        self._start = {**start, "headers": list(start.get("headers", ()))}
        headers = MutableHeaders(scope=self._start)
        own_type = headers.get("content-type", "")
        sent_type = self._faults.begin(start["status"], own_type)
        if sent_type != own_type:
            headers["content-type"] = sent_type
        if self._framing.is_stream(own_type):
            self._cutter = EventCutter()
            await self._send_start()  # as vLLM does, before the first token

    def _pieces_of(self, data: bytes, is_last: bool) -> Iterator[Piece]:
        if self._cutter is None:
            self._body += data
            if is_last:
                yield Piece(0, self._body, "full")
        else:
            yield from map(self._event, self._cutter.feed(data))
            if is_last and self._cutter.rest():
                yield self._event(self._cutter.rest())
        if is_last:
            yield Piece(self._count, b"", "flush")

    def _event(self, data: bytes) -> Piece:
        if self._framing.is_done(data):
            return Piece(self._count, data, "done")
        self._count += 1
        return Piece(self._count - 1, data)

    def _measure(self, piece: Piece) -> Iterator[Item]:
        """A stage: Content-Length says how long the content is, whatever becomes of it on its way."""
        if piece.kind == "full" and self._start is not None:
            headers = MutableHeaders(scope=self._start)
            if "content-length" in headers:
                headers["content-length"] = str(len(piece.data))
        yield piece

    async def _do(self, item: Item) -> None:
        match item:
            case Piece():
                if item.data:
                    await self._send_start()
                    await self._send({"type": "http.response.body", "body": item.data, "more_body": True})
            case Wait(seconds):
                await asyncio.sleep(seconds)
            case Stop():
                self._is_over = True
                await self._send_start()
                if item is Stop.CLOSE:
                    await close_connection(self._scope, self._receive)
                else:
                    await until_gone(self._receive)

    async def _send_start(self) -> None:
        if self._start is not None:
            start, self._start = self._start, None
            await self._send(start)
