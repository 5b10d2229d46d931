"""POST /v1/completions/render and /v1/chat/completions/render: what a request becomes before it is generated.

The reply is what /inference/v1/generate takes. Shapes recorded from vLLM 0.32.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from stubserver.dialects.vllm.chat.protocol import ChatCompletionRequest, ChatFields
from stubserver.dialects.vllm.chat.reasoning import PARSERS, reasoning_ended
from stubserver.dialects.vllm.chat.serving import Plan
from stubserver.dialects.vllm.chat.serving import understand as understand_chat
from stubserver.dialects.vllm.completions.protocol import CompletionRequest
from stubserver.dialects.vllm.completions.serving import check_renderable
from stubserver.dialects.vllm.completions.serving import understand as understand_completion
from stubserver.dialects.vllm.protocol import requested_structured_outputs
from stubserver.dialects.vllm.scale_out import check_scale_out
from stubserver.engine.model import Model
from stubserver.errors import RequestError
from stubserver.sampling.params import SamplingParams
from stubserver.serving.asked import Prompt
from stubserver.serving.body import read_json
from stubserver.serving.dialect import Route
from stubserver.serving.sending import json_reply
from stubserver.serving.start import request_id
from stubserver.serving.state import server_state

COHERE_FORMAT = "cmd4"
"""An argument that vLLM gives every template, by the default of a flag of its own."""


async def render_completion(request: Request) -> Response:
    """The prompts of a completion request as token ids, with their sampling parameters."""
    state = server_state(request)
    check_scale_out(state)
    asked = understand_completion(state, await read_json(request), renders=True)
    parsed = asked.plan.request
    own_id = f"cmpl-{request_id(request, parsed.request_id)}"
    ids = [own_id] if len(asked.prompts) == 1 else [f"{own_id}-{number}" for number in range(len(asked.prompts))]
    rendered = [
        _rendered(parsed, asked.model, each, prompt, engine_request.params)
        for each, prompt, engine_request in zip(ids, asked.prompts, asked.engine_requests, strict=True)
    ]
    return json_reply(rendered)


async def render_chat_completion(request: Request) -> Response:
    """The prompt of a chat request as token ids, with its sampling parameters."""
    state = server_state(request)
    check_scale_out(state)
    asked = understand_chat(state, await read_json(request))
    parsed = asked.plan.request
    check_renderable(use_beam_search=parsed.use_beam_search)
    (prompt,), (engine_request,) = asked.prompts, asked.engine_requests
    own_id = f"chatcmpl-{request_id(request, parsed.request_id)}"
    rendered = _rendered(parsed, asked.model, own_id, prompt, engine_request.params)
    return json_reply(rendered | _reasoning(asked.plan, prompt))


def _rendered(
    parsed: CompletionRequest | ChatFields, model: Model, own_id: str, prompt: Prompt, params: SamplingParams
) -> dict[str, Any]:
    """What /inference/v1/generate takes. Raises RequestError for a prompt without tokens."""
    if not prompt.token_ids:
        raise RequestError("No token_ids rendered")
    options = parsed.stream_options if parsed.stream else None
    return {
        "request_id": own_id,
        "token_ids": prompt.token_ids,
        "token_offsets": _offsets(parsed, model, prompt),
        "features": None,
        "content_parts": None,
        "sampling_params": _sampling_params(parsed, params),
        "model": parsed.model,
        "reasoning_ended": None,
        "reasoning_parser_kwargs": None,
        "return_token_ids": None,
        "output_mode": "tokens",
        "stream": bool(parsed.stream),
        "stream_options": options and options.model_dump(),
        "cache_salt": parsed.cache_salt,
        "priority": parsed.priority,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
    }


def _reasoning(plan: Plan, prompt: Prompt) -> dict[str, Any]:
    """What the engine has to know of reasoning, so that a constraint waits for its end."""
    model, arguments = plan.model, dict(plan.options.arguments)
    parser = PARSERS.get(model.settings.reasoning_parser)
    if parser is None:
        return {"reasoning_ended": None if plan.request.include_reasoning else True}
    ended = reasoning_ended(parser, model.tokenizer, arguments, prompt.token_ids)
    arguments.pop("tools")
    return {
        "reasoning_ended": ended or not plan.request.include_reasoning,
        "reasoning_parser_kwargs": {"chat_template_kwargs": {"cohere_format": COHERE_FORMAT, **arguments}},
    }


def _offsets(parsed: CompletionRequest | ChatFields, model: Model, prompt: Prompt) -> list[list[int]] | None:
    """Where each token begins and ends in the text, if asked for; token ids have no text."""
    if not parsed.return_token_offsets or not prompt.tokenized:
        return None
    offsets = model.tokenizer.offsets(prompt.text)
    kept = len(prompt.token_ids)
    return offsets[:kept] if parsed.truncation_side == "right" else offsets[len(offsets) - kept :]


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
    ("stream_interval", lambda p: p.stream_interval is not None),
    ("extra_args", lambda p: bool(p.extra_args)),
    ("thinking_token_budget", lambda p: p.thinking_token_budget is not None),
    ("routed_experts_prompt_start", lambda p: p.routed_experts_prompt_start != 0),
)


def _sampling_params(parsed: CompletionRequest | ChatFields, params: SamplingParams) -> dict[str, Any]:
    shown = {name: getattr(params, name) for name, is_shown in _SHOWN if is_shown(params)}
    shown["stop"] = list(params.stop)
    shown |= {"output_kind": 1 if parsed.stream else 2, "skip_clone": True}
    if parsed.watermarking is not None:
        shown["watermarking"] = parsed.watermarking
    if not parsed.spaces_between_special_tokens:
        shown["spaces_between_special_tokens"] = False
    constraint = requested_structured_outputs(parsed.structured_outputs, parsed.response_format)
    if constraint:
        shown["structured_outputs"] = constraint.shown()
    held_back = max(map(len, params.stop), default=1) - 1
    if held_back and not params.include_stop_str_in_output:
        shown["output_text_buffer_length"] = held_back
    if params.logit_bias is not None:
        shown["logit_bias"] = {str(token_id): bias for token_id, bias in params.logit_bias.items()}
    if params.allowed_token_ids is not None:
        shown["allowed_token_ids"] = params.allowed_token_ids
    if params.repetition is not None:
        shown["repetition_detection"] = params.repetition._asdict()
    return {**shown, "bad_words": params.bad_words, "skip_reading_prefix_cache": params.prompt_logprobs is not None}


COMPLETION = Route(render_completion, CompletionRequest)
CHAT = Route(render_chat_completion, ChatCompletionRequest)
