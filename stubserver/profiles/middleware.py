"""Profiles on a request's way: it goes on as a server with other habits would have understood it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Collection, Sequence

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from stubserver.asgi import json_object, read_body, replaying, with_headers
from stubserver.errors import RequestError
from stubserver.profiles.treat import treat
from stubserver.serving.state import ServerState
from stubserver.serving.wire import Wire


class ProfileMiddleware:
    """Changes the bodies of requests to the given paths, or refuses them; stands aside if everything is heeded."""

    def __init__(
        self, app: ASGIApp, served: ServerState, paths: Collection[str], places: Sequence[str], wire: Wire
    ) -> None:
        self._app = app
        self._served = served
        self._paths = paths
        self._places = places
        self._wire = wire

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Let the request through as its profile has it."""
        if self._served.heeds_everything or scope["type"] != "http" or scope["path"] not in self._paths:
            return self._app(scope, receive, send)
        return self._treat(scope, receive, send)

    async def _treat(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = await read_body(receive)
        body = json_object(raw)
        try:
            treated = treat(body, self._served.profile_of(body.get("model")), scope["path"], self._places)
        except RequestError as error:
            status, said = self._wire.error_reply(error)
            await JSONResponse(said, status)(scope, receive, send)
            return
        if treated is not body:
            raw = json.dumps(treated).encode()
            length = (b"content-length", str(len(raw)).encode())
            others = [header for header in scope["headers"] if header[0] != b"content-length"]
            scope = with_headers(scope, [*others, length])
        await self._app(scope, replaying(raw, receive), send)
