"""Between the outside and everything else: each request and its reply are written down as they pass."""

from __future__ import annotations

from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stubserver.asgi import CONTROL_PREFIX
from stubserver.journal.journal import Journal
from stubserver.serving.observers import observe
from stubserver.serving.wire import Wire


class JournalMiddleware:
    """Writes down what passes. A reply is written down before it goes out: who has it finds it in the journal."""

    def __init__(self, app: ASGIApp, journal: Journal, wire: Wire) -> None:
        self._app = app
        self._journal = journal
        self._framing = wire.framing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through."""
        if scope["type"] != "http" or scope["path"].startswith(CONTROL_PREFIX):
            await self._app(scope, receive, send)
            return
        entry = self._journal.open(scope, self._framing)
        observe(scope, entry)

        async def receiving() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                entry.received(message)
            return message

        def sending(message: Message) -> Awaitable[None]:
            entry.sent(message)
            return send(message)

        try:
            await self._app(scope, receiving, sending)
        except BaseException as error:
            entry.fail(error)
            raise
        finally:
            for record in entry.generations:
                if record.has_own_rows:
                    self._journal.count_rows(record)
