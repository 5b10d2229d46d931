"""GET /openapi.json, made from the table of routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from stubserver.dialects.vllm.protocol import ErrorReply

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route. `request` and `reply` are the models of the bodies, None where there is no JSON body.

    generates: whether its requests count as running.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    request: Any = None
    reply: Any = None
    generates: bool = False


def describe(endpoints: Iterable[Endpoint], version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document of these routes."""
    paths: dict[str, Any] = {}
    components: dict[str, Any] = {}
    for endpoint in endpoints:
        operation: dict[str, Any] = {"summary": endpoint.summary, "responses": {"200": _reply(endpoint, components)}}
        if endpoint.request is not None:
            operation["requestBody"] = {"required": True, "content": _content(endpoint.request, components)}
            error = {"description": "The request is refused", "content": _content(ErrorReply, components)}
            operation["responses"] |= {"400": error, "404": error}
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "stubserver", "version": version},
        "paths": paths,
        "components": {"schemas": components},
    }


def _reply(endpoint: Endpoint, components: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"description": "Successful Response"}
    if endpoint.reply is not None:
        found["content"] = _content(endpoint.reply, components)
    return found


def _content(model: Any, components: dict[str, Any]) -> dict[str, Any]:
    schema = TypeAdapter(model).json_schema(ref_template="#/components/schemas/{model}")
    components.update(schema.pop("$defs", {}))
    if "title" in schema:
        name = schema["title"]
        components[name] = schema
        schema = {"$ref": f"#/components/schemas/{name}"}
    return {"application/json": {"schema": schema}}
