"""POST /generative_scoring: the probability of a label after a query and each of some items.

Source of the facts: vLLM 0.32.0, `entrypoints/generate/generative_scoring/serving.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from stubserver.dialects.vllm.scoring.protocol import ScoringReply, ScoringRequest
from stubserver.dialects.vllm.wire.usage import usage
from stubserver.engine.label_reads import LabelRead, compute_label_probs, compute_vocab_probs, read_labels
from stubserver.engine.model import Model
from stubserver.engine.terms import EngineRequest
from stubserver.errors import ValidationError
from stubserver.sampling.params import SamplingParams
from stubserver.serving.asked import Asked, Prompt
from stubserver.serving.body import read_json, validate
from stubserver.serving.dialect import Route
from stubserver.serving.sending import json_reply
from stubserver.serving.start import request_id, start_generations
from stubserver.serving.state import ServerState, server_state

_ADAPTER = TypeAdapter(ScoringRequest)


async def create_generative_scoring(request: Request) -> Response:
    """Answer a scoring request."""
    body = await read_json(request)
    asked = understand(server_state(request), body)
    reads = read_labels(start_generations(request.scope, body, asked, routed=False))
    scores = [_score(read, apply_softmax=asked.request.apply_softmax) for read in reads]
    return json_reply(
        {
            "id": f"generative-scoring-{request_id(request, asked.request.request_id)}",
            "object": "list",
            "created": int(time.time()),
            "model": asked.model.name,
            "data": [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)],
            "usage": usage(sum(len(prompt.token_ids) for prompt in asked.prompts), len(reads), nulls=True),
        }
    )


@dataclass(slots=True)
class ScoringAsked(Asked):
    """A scoring request, understood: a prompt an item."""

    request: ScoringRequest


def understand(state: ServerState, body: Any) -> ScoringAsked:
    """What a body asks for. Raises RequestError for what can't be done."""
    parsed = validate(body, _ADAPTER)
    model = state.find_model(parsed.model)
    _check(model, parsed)
    prompts = [_prompt(model, parsed, item) for item in parsed.items]
    params = _params(parsed.label_token_ids)
    engine_requests = [EngineRequest(model, params, prompt_len=len(prompt.token_ids)) for prompt in prompts]
    return ScoringAsked(model, prompts, engine_requests, parsed)


def _check(model: Model, parsed: ScoringRequest) -> None:
    for token_id in parsed.label_token_ids:
        if not 0 <= token_id < model.vocab_size:
            raise ValidationError(
                f"label_token_id {token_id} is out of vocabulary range [0, {model.vocab_size}). "
                "Please provide valid token IDs."
            )
    if not parsed.label_token_ids:
        raise ValidationError("label_token_ids must contain at least one token ID.")
    if not parsed.items:
        raise ValidationError("items must contain at least one item.")


def _prompt(model: Model, parsed: ScoringRequest, item: str | Sequence[int]) -> Prompt:
    """Query and item, each tokenized by itself, cut so that one token still fits."""
    query = _part(model, parsed.query, add_special_tokens=parsed.add_special_tokens)
    # A second beginning-of-text in the middle would be wrong, so the item never has special tokens.
    own = _part(model, item, add_special_tokens=False)
    first, second = (own, query) if parsed.item_first else (query, own)
    token_ids = [*first.token_ids, *second.token_ids]
    return Prompt(token_ids[: model.settings.max_model_len - 1], first.text + second.text)


def _part(model: Model, given: str | Sequence[int], *, add_special_tokens: bool) -> Prompt:
    if isinstance(given, str):
        return Prompt(model.tokenizer.encode(given, add_special_tokens=add_special_tokens), given)
    return Prompt(list(given), model.tokenizer.decode(given))


def _params(label_token_ids: Sequence[int]) -> SamplingParams:
    return SamplingParams(max_tokens=1, logprobs=len(label_token_ids), logprob_token_ids=label_token_ids)


def _score(read: LabelRead, *, apply_softmax: bool) -> float:
    """The probability of the first label. Raises ValidationError if JSON can't carry it."""
    probs = compute_label_probs(read.logprobs) if apply_softmax else compute_vocab_probs(read.logprobs)
    score = float(probs[0])
    if math.isinf(score):  # a logit, in the logits modes
        raise ValidationError("math range error")
    if math.isnan(score):
        raise ValidationError("No label is possible.", code="not_finite", value=score)
    return score


ROUTE = Route(create_generative_scoring, ScoringRequest, ScoringReply, understand)
