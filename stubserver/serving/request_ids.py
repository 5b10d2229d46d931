"""The header X-Request-Id of replies. Source: vLLM 0.32.0, `entrypoints/serve/middleware/x_request_id.py`."""

from __future__ import annotations

import random

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stubserver.asgi import find_header

HEADER = b"x-request-id"


class RequestIdMiddleware:
    """Sends a request's id back with its reply, whatever that is; a request without one gets 32 random digits."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = find_header(scope, HEADER)
        own = (f"{random.getrandbits(128):032x}" if given is None else given).encode("latin-1")

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (HEADER, own)]}
            await send(message)

        await self._app(scope, receive, send_with_id)
