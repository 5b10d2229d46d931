"""vLLM's routes, as data: the app serves them, openapi.json describes them, a test holds the docs to them.

What answers at a route is imported with its first request.
"""

from __future__ import annotations

from stubserver.serving.dialect import Endpoint, Route


def _completions() -> Route:
    from stubserver.dialects.vllm.completions.serving import ROUTE

    return ROUTE


def _chat() -> Route:
    from stubserver.dialects.vllm.chat.serving import ROUTE

    return ROUTE


def _chat_batch() -> Route:
    from stubserver.dialects.vllm.chat.serving import BATCH

    return BATCH


def _scoring() -> Route:
    from stubserver.dialects.vllm.scoring.serving import ROUTE

    return ROUTE


def _systemone() -> Route:
    from stubserver.dialects.vllm.systemone.serving import ROUTE

    return ROUTE


def _embeddings() -> Route:
    from stubserver.dialects.vllm.embeddings.serving import ROUTE

    return ROUTE


def _generate() -> Route:
    from stubserver.dialects.vllm.generate.serving import ROUTE

    return ROUTE


def _abort() -> Route:
    from stubserver.dialects.vllm.generate.serving import ABORT

    return ABORT


def _render_completion() -> Route:
    from stubserver.dialects.vllm.render.serving import COMPLETION

    return COMPLETION


def _render_chat() -> Route:
    from stubserver.dialects.vllm.render.serving import CHAT

    return CHAT


def _models() -> Route:
    from stubserver.dialects.vllm.models.serving import ROUTE

    return ROUTE


def _tokenize() -> Route:
    from stubserver.dialects.vllm.tokenize.serving import TOKENIZE

    return TOKENIZE


def _detokenize() -> Route:
    from stubserver.dialects.vllm.tokenize.serving import DETOKENIZE

    return DETOKENIZE


def _health() -> Route:
    from stubserver.dialects.vllm.status.serving import HEALTH

    return HEALTH


def _version() -> Route:
    from stubserver.dialects.vllm.status.serving import VERSION

    return VERSION


def _load() -> Route:
    from stubserver.dialects.vllm.status.serving import LOAD

    return LOAD


def _metrics() -> Route:
    from stubserver.dialects.vllm.metrics.serving import ROUTE

    return ROUTE


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "POST",
        "/v1/completions",
        "Complete prompts, full or as a stream",
        _completions,
        generates=True,
        told_by="prompt",
    ),
    Endpoint(
        "POST",
        "/v1/chat/completions",
        "Answer a conversation, full or as a stream",
        _chat,
        generates=True,
        told_by="messages",
    ),
    Endpoint(
        "POST",
        "/v1/chat/completions/batch",
        "Answer several conversations in one reply",
        _chat_batch,
        generates=True,
    ),
    Endpoint(
        "POST",
        "/generative_scoring",
        "The probability of a label after a query and each of some items",
        _scoring,
        generates=True,
        told_by="label_token_ids",
    ),
    Endpoint(
        "POST",
        "/v1/systemone",
        "Typed questions about a state, answered by label probabilities",
        _systemone,
        generates=True,
        told_by="questions",
    ),
    Endpoint("POST", "/v1/embeddings", "A vector for each input, scripted or seeded", _embeddings, generates=True),
    Endpoint(
        "POST",
        "/inference/v1/generate",
        "Token ids in, token ids out, with sampling masks if set up so; 403 without `--enable-scale-out`",
        _generate,
        generates=True,
        told_by="token_ids",
    ),
    Endpoint(
        "POST",
        "/inference/v1/abort_requests",
        "Ends streams that are under way, by their ids; 403 without `--enable-scale-out`",
        _abort,
    ),
    Endpoint(
        "POST",
        "/v1/completions/render",
        "What a completion request becomes: token ids and sampling parameters",
        _render_completion,
    ),
    Endpoint(
        "POST",
        "/v1/chat/completions/render",
        "What a chat request becomes: token ids and sampling parameters",
        _render_chat,
    ),
    Endpoint("GET", "/v1/models", "The served names", _models),
    Endpoint("POST", "/tokenize", "Text or messages to token ids", _tokenize),
    Endpoint("POST", "/detokenize", "Token ids to text", _detokenize),
    Endpoint("GET", "/health", "200 as soon as the server is ready", _health),
    Endpoint("GET", "/ping", "The same", _health),
    Endpoint("POST", "/ping", "The same", _health),
    Endpoint("GET", "/version", "The version of vLLM that is imitated", _version),
    Endpoint("GET", "/load", "How many requests are being answered", _load),
    Endpoint("GET", "/metrics", "Counters in Prometheus' text format", _metrics),
)
