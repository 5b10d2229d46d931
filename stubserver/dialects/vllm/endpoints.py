"""vLLM's routes, as data: the app serves them, openapi.json describes them, a test holds the docs to them.

What answers at a route is imported with its first request.
"""

from __future__ import annotations

from stubserver.serving.dialect import Endpoint, Route
from stubserver.serving.openapi import shows_docs


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


def _tokenizer_info() -> Route:
    from stubserver.dialects.vllm.tokenize.serving import INFO

    return INFO


def _metrics_app() -> Route:
    from stubserver.dialects.vllm.metrics.serving import APP

    return APP


def _docs() -> Route:
    from stubserver.dialects.vllm.docs_pages.serving import DOCS

    return DOCS


def _redoc() -> Route:
    from stubserver.dialects.vllm.docs_pages.serving import REDOC

    return REDOC


def _oauth2() -> Route:
    from stubserver.dialects.vllm.docs_pages.serving import OAUTH2

    return OAUTH2


def _invocations() -> Route:
    from stubserver.dialects.vllm.invocations.serving import ROUTE

    return ROUTE


def _kv_event_sources() -> Route:
    from stubserver.dialects.vllm.other_routes.serving import KV_EVENT_SOURCES

    return KV_EVENT_SOURCES


def _is_scaling() -> Route:
    from stubserver.dialects.vllm.other_routes.serving import IS_SCALING

    return IS_SCALING


def _scale() -> Route:
    from stubserver.dialects.vllm.other_routes.serving import SCALE

    return SCALE


def _find_response() -> Route:
    from stubserver.dialects.vllm.other_routes.serving import FIND_RESPONSE

    return FIND_RESPONSE


def _not_imitated() -> Route:
    from stubserver.dialects.vllm.other_routes.serving import NOT_IMITATED

    return NOT_IMITATED


_NOT_IMITATED = tuple(
    Endpoint("POST", path, "Is there in vLLM; 501 here", _not_imitated)
    for path in (
        "/v1/responses/render",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/messages/render",
        "/v1/chat/completions/derender",
        "/v1/completions/derender",
    )
)


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
    Endpoint(
        "POST",
        "/v1/embeddings",
        "A vector for each input, scripted or seeded; 404 with `--no-embeddings-endpoint`",
        _embeddings,
        generates=True,
        served=lambda settings: settings.embeddings_endpoint,
    ),
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
    Endpoint("ANY", "/metrics{rest:path}", "The same, in the format that `accept` asks for", _metrics_app),
    Endpoint(
        "GET",
        "/tokenizer_info",
        "The tokenizer's configuration; 404 without `--enable-tokenizer-info-endpoint`",
        _tokenizer_info,
        served=lambda settings: settings.enable_tokenizer_info_endpoint,
    ),
    Endpoint(
        "POST", "/invocations", "A completion or chat request, under SageMaker's name", _invocations, generates=True
    ),
    Endpoint("GET", "/kv_event_sources", "Empty", _kv_event_sources),
    Endpoint("POST", "/scale_elastic_ep", "One engine is all there is", _scale),
    Endpoint("POST", "/is_scaling_elastic_ep", "Never", _is_scaling),
    Endpoint("POST", "/v1/responses", "Is there in vLLM; 501 here", _not_imitated),
    Endpoint("GET", "/v1/responses/{response_id}", "404: no response is stored", _find_response),
    Endpoint("POST", "/v1/responses/{response_id}/cancel", "The same", _find_response),
    *_NOT_IMITATED,
    Endpoint("GET", "/docs", "Swagger's page about this server", _docs, heads=True, served=shows_docs),
    Endpoint("GET", "/docs/oauth2-redirect", "A part of it", _oauth2, heads=True, served=shows_docs),
    Endpoint("GET", "/redoc", "ReDoc's page about this server", _redoc, heads=True, served=shows_docs),
)
