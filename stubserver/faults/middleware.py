"""Between the outside and the routes: stands aside unless a fault may befall the request."""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from functools import cached_property
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Receive, Scope, Send

from stubserver.asgi import CONTROL_PREFIX, find_header
from stubserver.faults.active import ActiveFaults
from stubserver.serving.state import ServerState
from stubserver.serving.wire import Wire

if TYPE_CHECKING:
    from stubserver.faults.answering import FaultyApp

_HEADER = b"x-stub-faults"


class FaultMiddleware:
    """What replies go out by is loaded with the first request that a fault may befall.

    generating: the paths where faults act that name none.
    """

    def __init__(
        self, app: ASGIApp, active: ActiveFaults, served: ServerState, wire: Wire, generating: Collection[str]
    ) -> None:
        self._app = app
        self._active = active
        self._served = served
        self._wire = wire
        self._generating = generating

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Let the request in, and its reply out."""
        header = find_header(scope, _HEADER)
        idle = header is None and self._active.is_empty and not self._served.rules_have_faults
        if idle or scope["type"] != "http" or scope["path"].startswith(CONTROL_PREFIX):
            return self._app(scope, receive, send)
        return self._faulty.answer(scope, receive, send, header)

    @cached_property
    def _faulty(self) -> FaultyApp:
        from stubserver.faults.answering import FaultyApp

        return FaultyApp(self._app, self._active, self._served, self._wire, self._generating)
