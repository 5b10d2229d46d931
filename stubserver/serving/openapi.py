"""openapi.json, made from the endpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pydantic import TypeAdapter

from stubserver.config.settings import Settings
from stubserver.serving.dialect import Endpoint, Route

OPENAPI_PATH = "/openapi.json"


def shows_docs(settings: Settings) -> bool:
    """Whether the server describes itself."""
    return not settings.disable_fastapi_docs


def describe(endpoints: Iterable[Endpoint], version: str, error: Any = None) -> dict[str, Any]:
    """The OpenAPI 3.1 document of these endpoints. error: the model of the body of a refusal."""
    paths: dict[str, Any] = {}
    components: dict[str, Any] = {}
    for endpoint in endpoints:
        if endpoint.method == "ANY":
            continue
        route = endpoint.load()
        operation = _operation(endpoint, route, error, components)
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "stubserver", "version": version},
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(endpoint: Endpoint, route: Route, error: Any, components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": endpoint.summary, "responses": {"200": _reply(route, components)}}
    parts = re.findall(r"{(\w+)", endpoint.path)
    if parts:
        operation["parameters"] = [
            {"name": part, "in": "path", "required": True, "schema": {"type": "string"}} for part in parts
        ]
    if route.request is not None:
        operation["requestBody"] = {"required": True, "content": _content(route.request, components)}
        if error is not None:
            refused = {"description": "The request is refused", "content": _content(error, components)}
            operation["responses"] |= {"400": refused, "404": refused}
    return operation


def _reply(route: Route, components: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"description": "Successful Response"}
    if route.reply is not None:
        found["content"] = _content(route.reply, components)
    return found


def _content(model: Any, components: dict[str, Any]) -> dict[str, Any]:
    schema = TypeAdapter(model).json_schema(ref_template="#/components/schemas/{model}")
    components.update(schema.pop("$defs", {}))
    if "title" in schema:
        name = schema["title"]
        components[name] = schema
        schema = {"$ref": f"#/components/schemas/{name}"}
    return {"application/json": {"schema": schema}}
