"""The real server behind the proxy. httpx is imported only where there is one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from stubserver.errors import SettingsError, UpstreamError
from stubserver.playback.asgi_messages import passed_on
from stubserver.playback.encodings import accepted
from stubserver.playback.exchange import Headers, Request

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 10.0
READ_SECONDS = 600.0
"""A model may think for minutes before its first byte."""

IDENTITY_SECONDS = 5.0

KEEP_SECONDS = 1.0
"""How long an idle connection is kept: servers close theirs after some seconds, and a request must not meet that."""


class Upstream:
    """A server of the OpenAI kind at this URL, with or without /v1. Raises SettingsError."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingsError(f"--upstream: has to be a URL like http://127.0.0.1:8000 (got {url!r})")
        try:
            import httpx
        except ImportError:
            raise SettingsError("--upstream needs httpx: pip install 'llm-stubserver[record]'") from None
        self._httpx = httpx
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()
        # Clients are told the URL with /v1, and their requests bring it along.
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._origin = f"{parts.scheme}://{parts.netloc}"

    @property
    def url(self) -> str:
        """For people and for cassettes: without a user's name and password."""
        return (
            f"{self._origin.partition('://')[0]}://{self._origin.rpartition('@')[2].rpartition('://')[2]}{self._prefix}"
        )

    @asynccontextmanager
    async def open(self, request: Request, raw_path: str | None = None) -> AsyncIterator[httpx.Response]:
        """Send a request; its reply, not yet read. Raises UpstreamError if there is no connection.

        raw_path: the path as it was on the wire, percent signs and all.
        """
        path = self._prefix + (raw_path or request.path)
        target = f"{path}?{request.query}" if request.query else path
        url = self._httpx.URL(self._origin).copy_with(raw_path=target.encode("latin-1", "replace"))
        message = self._httpx.Request(
            request.method, url, headers=_headers_upstream(request.headers), content=request.body or None
        )
        try:
            response = await self._client().send(message, stream=True)
        except self._httpx.TransportError as error:
            raise UpstreamError(f"Can't reach {self.url}: {error or type(error).__name__}") from error
        try:
            yield response
        finally:
            await response.aclose()

    @property
    def broken(self) -> type[Exception]:
        """What reading a reply raises when the connection breaks."""
        return self._httpx.TransportError

    async def identity(self, paths: Mapping[str, str], headers: Headers = ()) -> dict[str, Any]:
        """What the server says of itself on these paths, and its url; what it doesn't say is left out."""
        known = {name: value for name, value in headers if name in ("authorization", "api-key", "x-api-key")}
        found: dict[str, Any] = {"url": self.url}
        for key, path in paths.items():
            answer = await self._get_json(path, known)
            if answer is not None:
                found[key] = answer
        return found

    async def _get_json(self, path: str, headers: Mapping[str, str]) -> Any:
        try:
            async with (
                asyncio.timeout(IDENTITY_SECONDS),
                self.open(Request("GET", path, headers=tuple(headers.items()))) as response,
            ):
                await response.aread()
                return response.json() if response.status_code == 200 else None
        except (UpstreamError, TimeoutError, self.broken, ValueError):
            return None

    def _client(self) -> httpx.AsyncClient:
        """One for each event loop: its connections belong to the loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            # Without trust_env=False a .netrc or a proxy of the environment would change what is sent.
            timeout = self._httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
            limits = self._httpx.Limits(max_connections=None, keepalive_expiry=KEEP_SECONDS)
            self._clients[loop] = self._httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False)
        return self._clients[loop]


def _headers_upstream(headers: Headers) -> list[tuple[bytes, bytes]]:
    """What goes upstream: of encodings only those that can be taken off again for the cassette."""
    offered = next((value for name, value in headers if name == "accept-encoding"), "")
    # A space at the end of a value ("Bearer " without a key) is no part of it, and httpx refuses to send it.
    kept = tuple((name, value.strip()) for name, value in passed_on(headers) if name != "accept-encoding")
    sent = (*kept, ("accept-encoding", ", ".join(accepted(offered)) or "identity"))
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in sent]
