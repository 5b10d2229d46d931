"""The routes, as data: the app serves them, openapi.json describes them, a test holds the docs to them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from stubserver import __version__
from stubserver.control import routes as control
from stubserver.dialects.vllm.chat import serving as chat
from stubserver.dialects.vllm.chat.protocol import (
    ChatCompletionBatchRequest,
    ChatCompletionReply,
    ChatCompletionRequest,
)
from stubserver.dialects.vllm.completions import serving as completions
from stubserver.dialects.vllm.completions.protocol import CompletionReply, CompletionRequest
from stubserver.dialects.vllm.embeddings import serving as embeddings
from stubserver.dialects.vllm.embeddings.protocol import EmbeddingReply, EmbeddingRequest
from stubserver.dialects.vllm.generate import serving as generate
from stubserver.dialects.vllm.generate.protocol import AbortRequest, GenerateReply, GenerateRequest
from stubserver.dialects.vllm.metrics import serving as metrics
from stubserver.dialects.vllm.models import serving as models
from stubserver.dialects.vllm.models.protocol import ModelList
from stubserver.dialects.vllm.render import serving as render
from stubserver.dialects.vllm.scoring import serving as scoring
from stubserver.dialects.vllm.scoring.protocol import ScoringReply, ScoringRequest
from stubserver.dialects.vllm.status import serving as instrumentator
from stubserver.dialects.vllm.systemone import serving as decisions
from stubserver.dialects.vllm.systemone.protocol import DecisionReply, DecisionRequest
from stubserver.dialects.vllm.tokenize import serving as tokenize
from stubserver.dialects.vllm.tokenize.protocol import (
    DetokenizeReply,
    DetokenizeRequest,
    TokenizeReply,
    TokenizeRequest,
)
from stubserver.serving.openapi import Endpoint, describe
from stubserver.serving.replies import json_reply


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
    Endpoint(
        "POST",
        "/v1/chat/completions",
        chat.create_chat_completion,
        "Answer a conversation, full or as a stream",
        ChatCompletionRequest,
        ChatCompletionReply,
        generates=True,
    ),
    Endpoint(
        "POST",
        "/v1/chat/completions/batch",
        chat.create_batch_chat_completion,
        "Answer several conversations in one reply",
        ChatCompletionBatchRequest,
        ChatCompletionReply,
        generates=True,
    ),
    Endpoint(
        "POST",
        "/generative_scoring",
        scoring.create_generative_scoring,
        "The probability of a label after a query and each of some items",
        ScoringRequest,
        ScoringReply,
        generates=True,
    ),
    Endpoint(
        "POST",
        "/v1/systemone",
        decisions.create_decision,
        "Typed questions about a state, answered by label probabilities",
        DecisionRequest,
        DecisionReply,
        generates=True,
    ),
    Endpoint(
        "POST",
        "/v1/embeddings",
        embeddings.create_embedding,
        "A vector for each input, scripted or seeded",
        EmbeddingRequest,
        EmbeddingReply,
        generates=True,
    ),
    Endpoint(
        "POST",
        "/inference/v1/generate",
        generate.generate,
        "Token ids in, token ids out, with sampling masks if set up so; 403 without `--enable-scale-out`",
        GenerateRequest,
        GenerateReply,
        generates=True,
    ),
    Endpoint(
        "POST",
        "/inference/v1/abort_requests",
        generate.abort_requests,
        "Ends streams that are under way, by their ids; 403 without `--enable-scale-out`",
        AbortRequest,
    ),
    Endpoint(
        "POST",
        "/v1/completions/render",
        render.render_completion,
        "What a completion request becomes: token ids and sampling parameters",
        CompletionRequest,
    ),
    Endpoint(
        "POST",
        "/v1/chat/completions/render",
        render.render_chat_completion,
        "What a chat request becomes: token ids and sampling parameters",
        ChatCompletionRequest,
    ),
    Endpoint("GET", "/v1/models", models.list_models, "The served names", None, ModelList),
    Endpoint("POST", "/tokenize", tokenize.tokenize, "Text or messages to token ids", TokenizeRequest, TokenizeReply),
    Endpoint("POST", "/detokenize", tokenize.detokenize, "Token ids to text", DetokenizeRequest, DetokenizeReply),
    Endpoint("GET", "/health", instrumentator.health, "200 as soon as the server is ready"),
    Endpoint("GET", "/ping", instrumentator.health, "The same"),
    Endpoint("POST", "/ping", instrumentator.health, "The same"),
    Endpoint("GET", "/version", instrumentator.show_version, "The version of vLLM that is imitated"),
    Endpoint("GET", "/load", instrumentator.server_load, "How many requests are being answered"),
    Endpoint("GET", "/metrics", metrics.show_metrics, "Counters in Prometheus' text format"),
    Endpoint("GET", "/stub/requests", control.list_requests, "The journal: requests, replies, and what led to them"),
    Endpoint("DELETE", "/stub/requests", control.clear_requests, "Forget them"),
    Endpoint("PUT", "/stub/script", control.put_script, "Serve another script, until the next reset"),
    Endpoint("PUT", "/stub/faults", control.put_faults, "Have these faults and no others"),
    Endpoint("POST", "/stub/reset", control.reset, "Script, journal, faults, counters and seeds as at start"),
    Endpoint("GET", "/stub/explain", control.explain, "Which rule would answer this body, and with what values"),
    Endpoint("POST", "/stub/explain", control.explain, "The same"),
    Endpoint("GET", "/openapi.json", show_openapi, "This description"),
)
