"""POST /invocations: SageMaker's one route, which hands a body to the route whose request it is.

Sources: vLLM 0.32.0, `entrypoints/serve/sagemaker/api_router.py`, and recordings. A body that is no object fails in the
SageMaker package before that, in Python's words.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from stubserver.asgi import find_header, replaying
from stubserver.dialects.vllm.chat.protocol import ChatCompletionRequest
from stubserver.dialects.vllm.chat.serving import ROUTE as CHAT
from stubserver.dialects.vllm.completions.protocol import CompletionRequest
from stubserver.dialects.vllm.completions.serving import ROUTE as COMPLETION
from stubserver.dialects.vllm.raw_body import read_raw_json
from stubserver.errors import SchemaError, ValidationError
from stubserver.serving.body import check_media_type, validate
from stubserver.serving.dialect import Handler, Route

ADAPTER_HEADER = b"x-amzn-sagemaker-adapter-identifier"

_TYPES: tuple[tuple[TypeAdapter[Any], str, Handler], ...] = (
    (TypeAdapter(ChatCompletionRequest), "/v1/chat/completions", CHAT.handler),
    (TypeAdapter(CompletionRequest), "/v1/completions", COMPLETION.handler),
)


async def invoke(request: Request) -> Response:
    """Answer as the first route does whose request the body is; the model is the header's, or the first one."""
    check_media_type(request)
    body = {**_object(await read_raw_json(request))}
    body["model"] = find_header(request.scope, ADAPTER_HEADER) or ""
    for adapter, path, handler in _TYPES:
        try:
            validate(body, adapter)
        except SchemaError:
            continue
        scope = {**request.scope, "path": path}
        return await handler(Request(scope, replaying(json.dumps(body).encode(), request.receive)))
    raise ValidationError(
        "Cannot find suitable handler for request. Expected one of: ['ChatCompletionRequest', 'CompletionRequest']"
    )


def _object(body: Any) -> dict[str, Any]:
    """Raises ValidationError."""
    if isinstance(body, dict):
        return body
    words: dict[type, str] = {
        list: "list indices must be integers or slices, not str",
        str: "'str' object does not support item assignment",
    }
    raise ValidationError(words.get(type(body), f"argument of type '{type(body).__name__}' is not iterable"))


ROUTE = Route(invoke)
