"""Routes of vLLM for which there is nothing behind: they say so, as vLLM does where it can.

Sources: vLLM 0.32.0, `entrypoints/serve/elastic_ep/`, `entrypoints/openai/responses/`, and recordings.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from stubserver.dialects.vllm.raw_body import check_object, read_raw_json
from stubserver.dialects.vllm.wire.errors import status_body
from stubserver.errors import SchemaError, UnsupportedError
from stubserver.serving.body import check_media_type, read_json, validate
from stubserver.serving.dialect import Route
from stubserver.serving.sending import json_reply


class _AnyObject(BaseModel):
    model_config = ConfigDict(extra="allow")


_OBJECT = TypeAdapter(_AnyObject)


async def show_kv_event_sources(request: Request) -> Response:
    """Who publishes events of the KV cache: nobody."""
    return json_reply({})


async def is_scaling(request: Request) -> Response:
    """Never."""
    return json_reply({"is_scaling_elastic_ep": False})


async def scale(request: Request) -> Response:
    """To one engine, which there is already; to more it fails."""
    check_media_type(request)
    body = await read_raw_json(request, "Invalid JSON format")
    check_object(body)
    size, timeout = body.get("new_data_parallel_size"), body.get("drain_timeout", 120)
    if size is None:
        raise SchemaError("new_data_parallel_size is required")
    for name, value in (("new_data_parallel_size", size), ("drain_timeout", timeout)):
        if not isinstance(value, int) or value <= 0:
            raise SchemaError(f"{name} must be a positive integer")
    if size != 1:
        return JSONResponse(status_body(500, "Scale failed"), 500)
    return json_reply({"message": f"Scaled to {size} data parallel engines"})


async def find_response(request: Request) -> Response:
    """No response is stored."""
    return JSONResponse(_unknown_response(request.path_params["response_id"]), 404)


def _unknown_response(response_id: str) -> Any:
    return {
        "error": {
            "message": f"Response with id '{response_id}' not found.",
            "type": "invalid_request_error",
            "param": "response_id",
            "code": 404,
        }
    }


async def refuse(request: Request) -> Response:
    """What vLLM does here isn't imitated. Raises SchemaError for what is no request at all, else UnsupportedError."""
    validate(await read_json(request), _OBJECT)
    raise UnsupportedError(f"stubserver doesn't imitate {request.method} {request.url.path}: vLLM would answer it")


KV_EVENT_SOURCES, IS_SCALING, SCALE = Route(show_kv_event_sources), Route(is_scaling), Route(scale)
FIND_RESPONSE, NOT_IMITATED = Route(find_response), Route(refuse)
