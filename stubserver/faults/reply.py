"""A reply on its way out, through the faults of its plan."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Receive, Scope, Send

from stubserver.asgi import close_connection, until_gone
from stubserver.faults.edits import Decode
from stubserver.faults.events import DONE, END, Event, Item, Stop, Wait, flow
from stubserver.faults.plan import Plan


class Reply:
    """Takes what an app sends, and sends what the faults make of it."""

    def __init__(self, plan: Plan, decode: Decode, scope: Scope, receive: Receive, send: Send) -> None:
        self._content_type = plan.content_type()
        self._stages = [*plan.content_stages(decode), self._measure, *plan.delivery_stages()]
        self._scope, self._receive, self._send = scope, receive, send
        self._start: Message | None = None
        """The status and the headers, until they are sent."""
        self._is_stream = False
        self._is_over = False
        self._count = 0
        self._held = b""
        """What isn't a whole event yet, or a whole reply."""

    async def send(self, message: Message) -> None:
        """The `send` for the app."""
        if self._is_over:
            return
        if message["type"] == "http.response.start":
            await self._begin(message)
            return
        for event in self._events_of(message.get("body", b""), last=not message.get("more_body", False)):
            for item in flow(event, self._stages):
                await self._do(item)
                if self._is_over:
                    return
        if not message.get("more_body", False):
            await self._send_start()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _begin(self, start: Message) -> None:
        self._start = {**start, "headers": list(start.get("headers", ()))}
        headers = MutableHeaders(scope=self._start)
        self._is_stream = headers.get("content-type", "").startswith("text/event-stream")
        if self._content_type is not None:
            headers["content-type"] = self._content_type
        if self._is_stream:
            await self._send_start()  # as vLLM does, before the first token

    def _events_of(self, data: bytes, *, last: bool) -> Iterator[Event]:
        self._held += data
        if self._is_stream:
            *whole, self._held = self._held.split(END)
            yield from (self._event(event + END) for event in whole)
            if last and self._held:
                yield self._event(self._held)
        elif last:
            yield Event(0, self._held, "full")
        if last:
            yield Event(self._count, b"", "flush")

    def _event(self, data: bytes) -> Event:
        if data.startswith(DONE):
            return Event(self._count, data, "done")
        self._count += 1
        return Event(self._count - 1, data)

    def _measure(self, event: Event) -> Iterator[Item]:
        """A stage: Content-Length says how long the content is, whatever becomes of it on its way."""
        if event.kind == "full" and self._start is not None:
            headers = MutableHeaders(scope=self._start)
            if "content-length" in headers:
                headers["content-length"] = str(len(event.data))
        yield event

    async def _do(self, item: Item) -> None:
        match item:
            case Event():
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
