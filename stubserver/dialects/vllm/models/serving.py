"""GET /v1/models."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from stubserver.dialects.vllm.models.protocol import ModelCard, ModelList, ModelPermission
from stubserver.serving.dialect import Route
from stubserver.serving.sending import json_reply, random_id
from stubserver.serving.state import server_state


async def list_models(request: Request) -> Response:
    """Every name that the server answers to."""
    now = int(time.time())
    cards = [
        ModelCard(
            id=name,
            created=now,
            root=model.name,
            max_model_len=model.settings.max_model_len,
            permission=[ModelPermission(id=f"modelperm-{random_id()}", created=now)],
        )
        for model in server_state(request).models
        for name in model.settings.served_model_name
    ]
    return json_reply(ModelList(data=cards).model_dump())


ROUTE = Route(list_models, reply=ModelList)
