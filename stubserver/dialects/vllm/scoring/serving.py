"""POST /generative_scoring: the probability of a label after a query and each of some items.

Source of the facts: vLLM 0.32.0, `entrypoints/generate/generative_scoring/serving.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from stubserver.dialects.vllm.prompts import Prompt
from stubserver.dialects.vllm.scoring.protocol import ScoringRequest
from stubserver.dialects.vllm.wire.usage import usage
from stubserver.engine.label_reads import LabelRead, compute_label_probs, compute_vocab_probs, read_labels
from stubserver.engine.model import Model
from stubserver.engine.terms import Terms
from stubserver.errors import ValidationError
from stubserver.sampling.params import SamplingParams
from stubserver.serving.body import parse_body
from stubserver.serving.generations import make_generation, request_id
from stubserver.serving.replies import json_reply
from stubserver.serving.state import server_state

_ADAPTER = TypeAdapter(ScoringRequest)


async def create_generative_scoring(request: Request) -> Response:
    """Answer a scoring request."""
    body, parsed = await parse_body(request, _ADAPTER)
    model = server_state(request).find_model(parsed.model)
    _check(model, parsed)
    prompts = [_prompt(model, parsed, item) for item in parsed.items]
    terms = Terms(model, _params(parsed.label_token_ids))
    reads = read_labels([make_generation(request, body, prompt, terms) for prompt in prompts])
    scores = [_score(read, apply_softmax=parsed.apply_softmax) for read in reads]
    return json_reply(
        {
            "id": f"generative-scoring-{request_id(request, parsed.request_id)}",
            "object": "list",
            "created": int(time.time()),
            "model": model.name,
            "data": [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)],
            "usage": usage(sum(len(prompt.token_ids) for prompt in prompts), len(reads), nulls=True),
        }
    )


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
        raise ValidationError("Out of range float values are not JSON compliant: nan")
    return score
