"""The API key: who may use the guarded paths."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from stubserver.asgi import find_header


class ApiKeyMiddleware:
    """401 for paths that begin so, without a bearer token that is one of the keys."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], guarded: tuple[str, ...]) -> None:
        self._app = app
        self._digests = [_digest(key) for key in keys]
        self._guarded = guarded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer it."""
        admitted = not self._is_guarded(scope) or self._knows(find_header(scope, b"authorization") or "")
        answer = self._app if admitted else JSONResponse({"error": "Unauthorized"}, status_code=401)
        await answer(scope, receive, send)

    def _is_guarded(self, scope: Scope) -> bool:
        guarded: bool = (
            scope["type"] == "http" and scope["method"] != "OPTIONS" and scope["path"].startswith(self._guarded)
        )
        return guarded

    def _knows(self, authorization: str) -> bool:
        scheme, _, token = authorization.partition(" ")
        given = _digest(token)
        known = [secrets.compare_digest(given, digest) for digest in self._digests]
        return scheme.lower() == "bearer" and any(known)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
