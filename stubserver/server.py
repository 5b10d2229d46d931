"""Running the app: uvicorn in the foreground."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from multiprocessing.synchronize import Semaphore
from types import FrameType

import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import LOGGING_CONFIG
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.supervisors import Multiprocess

from stubserver.asgi import CONNECTION
from stubserver.config.settings import Settings
from stubserver.errors import SettingsError


def run(app: ASGIApp, settings: Settings, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `on_ready` gets the URL once requests are answered. Raises SettingsError."""
    listener = bind(settings.host, settings.port)
    server = _Server(make_config(app), on_ready)
    server.run(sockets=[listener])


def run_workers(make_app: Callable[[], ASGIApp], settings: Settings, on_ready: Callable[[str], None]) -> None:
    """The same in several processes, each with an app of its own on the one port. `make_app` can be pickled."""
    listener = bind(settings.host, settings.port)
    made = get_context("spawn").Semaphore(0)
    config = make_config(partial(_make_in_worker, make_app, made), workers=settings.workers)
    _Workers(config, listener, made, on_ready).run()


def _make_in_worker(make_app: Callable[[], ASGIApp], made: Semaphore) -> ASGIApp:
    app = make_app()
    made.release()
    return app


def make_config(
    app: ASGIApp | Callable[[], ASGIApp], *, sets_up_logging: bool = True, workers: int = 1
) -> uvicorn.Config:
    """How uvicorn is run: without what a test double has no use for, and with connections that faults can close.

    sets_up_logging: whether uvicorn's warnings go to stderr, or wherever the process has them go already.
    workers: of several, each makes its `app` by calling it.
    """
    return uvicorn.Config(
        app,
        factory=workers > 1,
        workers=workers,
        http=_Protocol,
        ws=asyncio.Protocol,  # any: an upgrade is answered before it comes to that
        log_config=LOGGING_CONFIG if sets_up_logging else None,
        log_level="warning" if sets_up_logging else None,
        lifespan="off",
        access_log=False,
        proxy_headers=False,
    )


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises SettingsError if the address can't be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        # Now, not when uvicorn does: until then a second server could take the same port.
        listener.listen()
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"can't listen on {host}:{port}: {error.strerror}; choose another --port (0 takes a free one) or --host"
        ) from error
    return listener


_REFUSED_UPGRADE = b"\r\n".join(
    (b"HTTP/1.1 403 Forbidden", b"Connection: close", b"Content-Length: 0", b"Content-Type: text/plain", b"", b"")
)
"""As vLLM 0.32.0 answers for every path: a text model has no route for websockets."""


class _Protocol(HttpToolsProtocol):
    """HTTP that hands its connection to the app, which ASGI has no way of closing otherwise; and nothing but HTTP."""

    def handle_websocket_upgrade(self) -> None:
        """Refuse, whether or not a library for websockets is installed."""
        self.transport.write(_REFUSED_UPGRADE)
        self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {CONNECTION: self.transport}  # type: ignore[dict-item]


class _Workers(Multiprocess):
    """Says when all of them are ready. The listener takes connections before, which then wait."""

    def __init__(
        self, config: uvicorn.Config, listener: socket.socket, made: Semaphore, on_ready: Callable[[str], None]
    ) -> None:
        super().__init__(config, [listener])
        self._made = made
        self._on_ready = on_ready

    def init_processes(self) -> None:
        """Start them, and wait until each has its app."""
        super().init_processes()
        waited_for = self.processes_num
        while waited_for and all(process.process.is_alive() for process in self.processes):
            waited_for -= self._made.acquire(timeout=0.1)
        if not waited_for:
            self._on_ready(url_of(self.sockets[0]))


class _Server(uvicorn.Server):
    """Says when it is ready, and stops quietly."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[str], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            self._on_ready(url_of(sockets[0]))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; a second SIGINT doesn't wait for open requests.

        uvicorn's own raises the signal again at the end, a traceback after Ctrl-C; to be stopped is no failure here.
        """
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def url_of(listener: socket.socket) -> str:
    """Where a listening socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
