"""Around an app as vLLM's: who may read replies in a browser, which request a reply is to, and where it is mounted."""

from __future__ import annotations

from collections.abc import Awaitable

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stubserver.asgi import find_header
from stubserver.config.settings import Settings

VARY = (b"vary", b"Origin")
"""The header of replies to requests from no page: Starlette's middleware would say so too. The endpoints add it."""


class OriginMiddleware:
    """CORS as Starlette has it, for requests from a page; all others, which most are, it lets through."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._cors = CORSMiddleware(
            app,
            allow_origins=settings.allowed_origins,
            allow_methods=settings.allowed_methods,
            allow_headers=settings.allowed_headers,
            allow_credentials=settings.allow_credentials,
        )

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Let the request through, or answer it."""
        is_from_page = scope["type"] == "http" and find_header(scope, b"origin") is not None
        return (self._cors if is_from_page else self._app)(scope, receive, send)


class RootPathMiddleware:
    """Takes the beginning off paths that have it, so that nothing further in has to know of it."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path.rstrip("/")

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Let the request through. A redirect leads to the path with its beginning."""
        if scope["type"] not in ("http", "websocket") or not scope["path"].startswith(self._root_path + "/"):
            return self._app(scope, receive, send)
        path = scope["path"].removeprefix(self._root_path)

        def sending(message: Message) -> Awaitable[None]:
            if message.get("status") == 307:
                message = {**message, "headers": [self._with_root(*header) for header in message["headers"]]}
            return send(message)

        return self._app({**scope, "path": path, "raw_path": path.encode()}, receive, sending)

    def _with_root(self, name: bytes, value: bytes) -> tuple[bytes, bytes]:
        if name != b"location":
            return name, value
        scheme, host, path = value.split(b"/", 3)[0], value.split(b"/", 3)[2], value.split(b"/", 3)[3]
        return name, b"/".join([scheme, b"", host + self._root_path.encode(), path])
