"""A stub behind a real socket, in a thread of this process."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self

import uvicorn
from starlette.types import ASGIApp

from stubserver.app import ScriptSource
from stubserver.server import bind, make_config, url_of
from stubserver.testing.stub import Stub

GRACE_SECONDS = 0.2
"""How long requests that still run when the server stops may take to notice that their client is gone."""

TICK_SECONDS = 1.0
"""How often uvicorn renews the Date header."""


class StubServer(Stub):
    """A stub on a free port of 127.0.0.1, from `start` to `stop`, or as a context manager:

        with StubServer(logprobs_mode="processed_logprobs") as stub:
            stub.on(prompt="Answer:").logits({" A": 2.0, " B": 1.0}, rest=-10)

    script, settings: as for `create_app`; `host` and `port` too, where it has to be a certain one.
    """

    def __init__(self, script: ScriptSource = None, **settings: Any) -> None:
        super().__init__(script, **{"port": 0, **settings})
        self._server: _ThreadServer | None = None

    def start(self) -> Self:
        """Listen; requests are answered when this returns. Raises SettingsError if the port can't be had."""
        if self._server is None:
            settings = self._controls.served.settings
            self._server = _ThreadServer(self.app, bind(settings.host, settings.port))
            self._server.start()
        return self

    def stop(self) -> None:
        """Close the port and every connection, and let go of the cassette."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()
        self.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """`http://127.0.0.1:PORT`."""
        if self._server is None:
            raise RuntimeError("the server isn't running: use `with StubServer() as stub:`, or start()")
        return self._server.url

    @property
    def base_url(self) -> str:
        """`http://127.0.0.1:PORT/v1`, what OpenAI's clients take."""
        return f"{self.url}/v1"


class _ThreadServer(uvicorn.Server):
    """uvicorn in a thread. It stops at once, where uvicorn's own way looks every tenth of a second."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        super().__init__(make_config(app, sets_up_logging=False))
        self.url = url_of(listener)
        self._listener = listener
        self._ready = Event()
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name=f"stubserver {self.url}", daemon=True)

    def start(self) -> None:
        """Return when requests are answered."""
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Return when everything is closed."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve_until_stopped())
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    async def _serve_until_stopped(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        await self.startup(sockets=[self._listener])
        self._ready.set()
        while not self._stopped.is_set():
            await self.on_tick(0)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), TICK_SECONDS)
        await self._close()

    async def _close(self) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=GRACE_SECONDS)
