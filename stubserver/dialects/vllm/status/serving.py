"""GET /health, /ping, /version and /load: is it there, and what is it?"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from stubserver.serving.dialect import Route
from stubserver.serving.sending import json_reply
from stubserver.serving.state import server_state


async def health(request: Request) -> Response:
    """200 without a body; /ping is the same under SageMaker's name."""
    return Response(status_code=200)


async def show_version(request: Request) -> Response:
    """The version of the vLLM that is imitated: clients choose their behaviour by it."""
    return json_reply({"version": server_state(request).models[0].behaviour.version})


async def server_load(request: Request) -> Response:
    """How many requests are being answered."""
    return json_reply({"server_load": server_state(request).in_flight})


HEALTH, VERSION, LOAD = Route(health), Route(show_version), Route(server_load)
