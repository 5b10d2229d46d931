"""A dialect: one kind of server as a value, from which the app is built.

Its endpoints are named here and loaded with their first request; the rest is what the engine (`behaviour`) and those
who read and write its replies (`wire`) have to know of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from stubserver.config.settings import Settings
from stubserver.engine.behaviour import Behaviour
from stubserver.serving.asked import Asked
from stubserver.serving.state import ServerState
from stubserver.serving.wire import Wire

Handler = Callable[[Request], Awaitable[Response]]

Understand = Callable[[ServerState, Any], Asked]
"""A JSON body → what it asks for. Raises RequestError for what can't be done."""


class Route(NamedTuple):
    """What answers at an endpoint.

    request, reply: the models of the bodies, for openapi.json; None where there is no JSON body. understand: for
    requests that are put to the engine, so that they can be explained.
    """

    handler: Handler
    request: Any = None
    reply: Any = None
    understand: Understand | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path and method. load: imports what answers there.

    method: "ANY" stands for every method. path: `{name}` stands for a part of it, as Starlette has it.
    generates: whether its requests count as running, and profiles and faults act on them. told_by: the field by which
    a body without a path is known to be for it. heads: whether it answers HEAD too. served: whether there is such an
    endpoint at all, by the settings of the server.
    """

    method: str
    path: str
    summary: str
    load: Callable[[], Route]
    generates: bool = False
    told_by: str = ""
    heads: bool = False
    served: Callable[[Settings], bool] = lambda settings: True

    @property
    def methods(self) -> tuple[str, ...] | None:
        """Those that it answers; None for all."""
        if self.method == "ANY":
            return None
        return (self.method, "HEAD") if self.heads else (self.method,)


@dataclass(frozen=True)
class Dialect:
    """A kind of server.

    guarded: beginnings of paths that need the API key, if there is one. uncounted: parts of paths whose requests aren't
    counted as HTTP traffic. parameter_places: objects of a body that hold
    parameters, as its top does. check_settings: refuses settings that it can't be started with; raises SettingsError.
    load_error_model: the model of an error's body, for openapi.json.
    """

    name: str
    endpoints: tuple[Endpoint, ...]
    behaviour: Behaviour
    wire: Wire
    guarded: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    parameter_places: tuple[str, ...] = ()
    check_settings: Callable[[Settings], None] = lambda settings: None
    load_error_model: Callable[[], Any] = lambda: None

    @property
    def generating(self) -> frozenset[str]:
        """The paths of the endpoints that generate."""
        return frozenset(endpoint.path for endpoint in self.endpoints if endpoint.generates)
