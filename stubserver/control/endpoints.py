"""The control routes, /stub/*: what a test in any language does to the server that it tests against."""

from __future__ import annotations

from functools import partial
from ipaddress import ip_address

from starlette.requests import Request
from starlette.responses import Response

from stubserver.control.controls import Controls
from stubserver.errors import PermissionDeniedError
from stubserver.serving.dialect import Endpoint, Route

CONTROL_ROUTES = (
    ("GET", "/stub/requests", "The journal: requests, replies, and what led to them"),
    ("DELETE", "/stub/requests", "Forget them"),
    ("PUT", "/stub/script", "Serve another script, until the next reset"),
    ("PUT", "/stub/faults", "Have these faults and no others"),
    ("POST", "/stub/reset", "Script, journal, faults, counters and seeds as at start"),
    ("GET", "/stub/explain", "Which rule would answer this body, and with what values"),
    ("POST", "/stub/explain", "The same"),
)
"""(method, path, summary); what they do is in handlers.py."""


def control_endpoints(controls: Controls) -> tuple[Endpoint, ...]:
    """The control routes of one server."""
    return tuple(
        Endpoint(method, path, summary, partial(_load, controls, method, path))
        for method, path, summary in CONTROL_ROUTES
    )


def _load(controls: Controls, method: str, path: str) -> Route:
    """The route, for those only whom the setting `control` lets in."""
    from stubserver.control.handlers import ACTS

    async def controlled(request: Request) -> Response:
        allowed = controls.served.settings.control
        if allowed == "loopback" and not _is_loopback(request):
            raise PermissionDeniedError(
                f"{request.url.path} answers clients on the server's own machine only; --control any lets others in."
            )
        return await ACTS[method, path](controls, request)

    return Route(controlled)


def _is_loopback(request: Request) -> bool:
    try:
        return request.client is not None and ip_address(request.client.host).is_loopback
    except ValueError:
        return False
