"""The routes, as data: the app serves them, openapi.json describes them, a test holds the docs to them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from stubserver import __version__
from stubserver.api import completions, instrumentator, models, tokenize
from stubserver.api.openapi import Endpoint, describe
from stubserver.api.protocol.completions import CompletionReply, CompletionRequest
from stubserver.api.protocol.models import ModelList
from stubserver.api.protocol.tokenize import DetokenizeReply, DetokenizeRequest, TokenizeReply, TokenizeRequest
from stubserver.api.replies import json_reply


async def show_openapi(request: Request) -> Response:
    """The description of all routes."""
    return json_reply(describe(ENDPOINTS, __version__))


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "POST",
        "/v1/completions",
        completions.create_completion,
        "Complete prompts, full or as a stream",
        CompletionRequest,
        CompletionReply,
        generates=True,
    ),
    Endpoint("GET", "/v1/models", models.list_models, "The served names", None, ModelList),
    Endpoint("POST", "/tokenize", tokenize.tokenize, "Text or messages to token ids", TokenizeRequest, TokenizeReply),
    Endpoint("POST", "/detokenize", tokenize.detokenize, "Token ids to text", DetokenizeRequest, DetokenizeReply),
    Endpoint("GET", "/health", instrumentator.health, "200 as soon as the server is ready"),
    Endpoint("GET", "/ping", instrumentator.health, "The same"),
    Endpoint("POST", "/ping", instrumentator.health, "The same"),
    Endpoint("GET", "/version", instrumentator.show_version, "The version of vLLM that is imitated"),
    Endpoint("GET", "/load", instrumentator.server_load, "How many requests are being answered"),
    Endpoint("GET", "/openapi.json", show_openapi, "This description"),
)
