"""POST /v1/completions/render and /v1/chat/completions/render: what a request becomes before it is generated.

The reply is what /inference/v1/generate takes. Shapes recorded from vLLM 0.32.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from stubserver.dialects.vllm.chat.protocol import ChatCompletionRequest
from stubserver.dialects.vllm.chat.serving import understand as understand_chat
from stubserver.dialects.vllm.completions.protocol import CompletionRequest
from stubserver.dialects.vllm.completions.serving import understand as understand_completion
from stubserver.dialects.vllm.scale_out import check_scale_out
from stubserver.engine.model import Model
from stubserver.sampling.params import SamplingParams
from stubserver.serving.asked import Prompt
from stubserver.serving.body import read_json
from stubserver.serving.dialect import Route
from stubserver.serving.sending import json_reply
from stubserver.serving.start import request_id
from stubserver.serving.state import server_state


async def render_completion(request: Request) -> Response:
    """The prompts of a completion request as token ids, with their sampling parameters."""
    state = server_state(request)
    check_scale_out(state)
    body = await read_json(request)
    asked = understand_completion(state, body)
    own_id = f"cmpl-{request_id(request, asked.plan.request.request_id)}"
    ids = [own_id] if len(asked.prompts) == 1 else [f"{own_id}-{number}" for number in range(len(asked.prompts))]
    texts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
    rendered = [
        _rendered(body, asked.model, each, prompt, engine_request.params)
        for each, prompt, engine_request in zip(ids, asked.prompts, asked.engine_requests, strict=True)
    ]
    for reply, text in zip(rendered, texts, strict=False):
        reply["token_offsets"] = _offsets(body, asked.model, text)
    return json_reply(rendered)


async def render_chat_completion(request: Request) -> Response:
    """The prompt of a chat request as token ids, with its sampling parameters."""
    state = server_state(request)
    check_scale_out(state)
    body = await read_json(request)
    asked = understand_chat(state, body)
    (prompt,), (engine_request,) = asked.prompts, asked.engine_requests
    own_id = f"chatcmpl-{request_id(request, asked.plan.request.request_id)}"
    reply = _rendered(body, asked.model, own_id, prompt, engine_request.params)
    return json_reply({**reply, "token_offsets": _offsets(body, asked.model, prompt.text)})


def _rendered(
    body: dict[str, Any], model: Model, own_id: str, prompt: Prompt, params: SamplingParams
) -> dict[str, Any]:
    return {
        "request_id": own_id,
        "token_ids": prompt.token_ids,
        "token_offsets": None,
        "features": None,
        "content_parts": None,
        "sampling_params": _sampling_params(body, params),
        "model": model.name,
        "reasoning_ended": None,
        "reasoning_parser_kwargs": None,
        "return_token_ids": None,
        "output_mode": "tokens",
        "stream": bool(body.get("stream")),
        "stream_options": body.get("stream_options"),
        "cache_salt": None,
        "priority": body.get("priority", 0),
        "kv_transfer_params": None,
        "ec_transfer_params": None,
    }


def _offsets(body: dict[str, Any], model: Model, text: Any) -> list[list[int]] | None:
    """Where each token begins and ends in the text, if asked for; token ids have no text."""
    if not body.get("return_token_offsets") or not isinstance(text, str):
        return None
    return model.tokenizer.offsets(text)


Shown = Callable[[SamplingParams], bool]


def _always(params: SamplingParams) -> bool:
    return True


def _unless_greedy(params: SamplingParams) -> bool:
    return not params.greedy


# Which parameters vLLM writes, in its order: most only where they differ from its defaults.
_SHOWN: tuple[tuple[str, Shown], ...] = (
    ("n", lambda p: p.n != 1),
    ("presence_penalty", _always),
    ("frequency_penalty", _always),
    ("repetition_penalty", _always),
    ("temperature", _always),
    ("top_p", _unless_greedy),
    ("top_k", lambda p: not p.greedy and p.top_k != 0),
    ("min_p", _unless_greedy),
    ("seed", lambda p: p.seed is not None),
    ("stop", _always),
    ("stop_token_ids", _always),
    ("ignore_eos", lambda p: p.ignore_eos),
    ("max_tokens", lambda p: p.max_tokens != 16),
    ("min_tokens", lambda p: p.min_tokens != 0),
    ("logprobs", lambda p: p.logprobs is not None),
    ("prompt_logprobs", lambda p: p.prompt_logprobs is not None),
    ("logprob_token_ids", lambda p: p.logprob_token_ids is not None),
    ("skip_special_tokens", lambda p: not p.skip_special_tokens),
    ("include_stop_str_in_output", lambda p: p.include_stop_str_in_output),
)


def _sampling_params(body: dict[str, Any], params: SamplingParams) -> dict[str, Any]:
    shown = {name: getattr(params, name) for name, is_shown in _SHOWN if is_shown(params)}
    shown["stop"] = list(params.stop)
    shown |= {"output_kind": 1 if body.get("stream") else 2, "skip_clone": True}
    if body.get("structured_outputs"):
        shown["structured_outputs"] = {**_NO_CONSTRAINT, **body["structured_outputs"]}
    if params.logit_bias is not None:
        shown["logit_bias"] = {str(token_id): bias for token_id, bias in params.logit_bias.items()}
    if params.allowed_token_ids is not None:
        shown["allowed_token_ids"] = params.allowed_token_ids
    return {**shown, "bad_words": params.bad_words, "skip_reading_prefix_cache": params.prompt_logprobs is not None}


_NO_CONSTRAINT: dict[str, Any] = {
    "json": None,
    "regex": None,
    "choice": None,
    "grammar": None,
    "json_object": None,
    "disable_any_whitespace": False,
    "disable_additional_properties": False,
    "whitespace_pattern": None,
    "structural_tag": None,
    "_backend": None,
    "_backend_was_auto": False,
}


COMPLETION = Route(render_completion, CompletionRequest)
CHAT = Route(render_chat_completion, ChatCompletionRequest)
