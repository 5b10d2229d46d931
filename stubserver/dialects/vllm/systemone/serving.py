"""POST /v1/systemone: typed questions about a state, answered by the probabilities of the reply's first token.

Each question is a chat prompt of its own: the state and the question in the user's turn, up to where the reply begins.
Source of the facts: vLLM 0.32.0, `entrypoints/generate/structured_decisions` (strategy NextTokenStrategy).
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from stubserver.dialects.vllm.prompts import Renderer, Truncation
from stubserver.dialects.vllm.systemone.protocol import DecisionReply, DecisionRequest
from stubserver.dialects.vllm.systemone.questions import (
    MAX_QUESTIONS,
    QUESTION_TYPES,
    Question,
    build_answer,
    parse_question,
    question_text,
)
from stubserver.engine.label_reads import LabelRead, compute_label_probs, compute_vocab_probs, read_labels
from stubserver.engine.model import Model
from stubserver.engine.terms import EngineRequest
from stubserver.errors import NotFoundError, UnsupportedError, ValidationError
from stubserver.memory import remembered
from stubserver.sampling.params import SamplingParams
from stubserver.serving.asked import Asked, Prompt
from stubserver.serving.body import read_json, validate
from stubserver.serving.dialect import Route
from stubserver.serving.sending import json_reply
from stubserver.serving.start import request_id, start_generations
from stubserver.serving.state import ServerState, server_state
from stubserver.tokenizer.chat_template import render_chat
from stubserver.tokenizer.hf import HFTokenizer

logger = logging.getLogger("stubserver")

_ADAPTER = TypeAdapter(DecisionRequest)


class _Labels(NamedTuple):
    """token_ids: label → the token that it is as a reply's first one. tail: the ids that every prompt ends with."""

    token_ids: Mapping[str, int]
    tail: Sequence[int]


async def create_decision(request: Request) -> Response:
    """Answer a request for decisions."""
    body = await read_json(request)
    asked = understand(server_state(request), body)
    reads = read_labels(start_generations(request.scope, body, asked, routed=False))
    masses = [float(compute_vocab_probs(read.logprobs).sum()) for read in reads]
    label_ids = [each.params.logprob_token_ids or () for each in asked.engine_requests]
    answered = list(zip(asked.questions, reads, masses, label_ids, strict=True))
    return json_reply(
        {
            "id": f"decision-{request_id(request, asked.request.request_id)}",
            "object": "structured_decision",
            "created": int(time.time()),
            "model": asked.model.name,
            "answers": {question.id: _answer(question, read, mass) for question, read, mass, _ in answered},
            "usage": {
                "input_tokens": sum(len(prompt.token_ids) for prompt in asked.prompts),
                "output_tokens": len(reads),
            },
            "diagnostics": {
                question.id: {"label_mass": mass, "argmax_is_label": read.token_id in token_ids}
                for question, read, mass, token_ids in answered
            },
        }
    )


@dataclass(slots=True)
class DecisionAsked(Asked):
    """A request for decisions, understood: a prompt a question."""

    request: DecisionRequest
    questions: Sequence[Question]


def understand(state: ServerState, body: Any) -> DecisionAsked:
    """What a body asks for. Raises RequestError for what can't be done."""
    parsed = validate(body, _ADAPTER)
    try:
        model = state.find_model(parsed.model)
    except NotFoundError:
        _find_labels(state.models[0])  # where vLLM leaves the route out, no model is looked for
        raise
    labels = _find_labels(model)
    questions = _parse_questions(parsed)
    _check_media(parsed)
    prompts = [_prompt(model, parsed, question, labels.tail) for question in questions]
    params = [_params([labels.token_ids[label] for label in question.labels]) for question in questions]
    engine_requests = [
        EngineRequest(model, each, prompt_len=len(prompt.token_ids))
        for prompt, each in zip(prompts, params, strict=True)
    ]
    return DecisionAsked(model, prompts, engine_requests, parsed, questions)


def _parse_questions(parsed: DecisionRequest) -> list[Question]:
    if not parsed.questions:
        raise ValidationError("questions: needs at least one question")
    if len(parsed.questions) > MAX_QUESTIONS:
        raise ValidationError(f"questions: at most {MAX_QUESTIONS} for this model")
    questions = []
    for question_id, spec in parsed.questions.items():
        if spec.model_extra:
            raise ValidationError(f"question {question_id!r}: unknown field(s) {sorted(spec.model_extra)}")
        questions.append(parse_question(question_id, spec.type, spec.instructions, spec.criteria))
    return questions


def _check_media(parsed: DecisionRequest) -> None:
    given = {"audio": parsed.audio, "image": parsed.images, "video": parsed.videos}
    names = ", ".join(name for name, urls in given.items() if urls)
    if names:
        raise ValidationError(f"this model does not take {names} inputs")


def _prompt(model: Model, parsed: DecisionRequest, question: Question, tail: Sequence[int]) -> Prompt:
    template_kwargs = {"enable_thinking": False, **(parsed.chat_template_kwargs or {})}
    if template_kwargs["enable_thinking"]:
        raise ValidationError("a read is the reply's first token, so thinking must be off")
    system = [{"role": "system", "content": parsed.instructions}] if parsed.instructions else []
    user = {"role": "user", "content": f"{_state_text(parsed.state)}\n\n{question_text(question)}"}
    text = _render(model.tokenizer, [*system, user], template_kwargs)
    prompt = Renderer(model, max_tokens=1, truncation=Truncation(), add_special_tokens=False).prompt(text)
    if prompt.token_ids[len(prompt.token_ids) - len(tail) :] != tail:
        raise ValidationError("these chat options end the prompt differently, so the labels' tokens are unknown")
    return prompt


def _state_text(state: Any) -> str:
    return state if isinstance(state, str) else json.dumps(state, ensure_ascii=False)


def _render(tokenizer: HFTokenizer, messages: Sequence[Mapping[str, Any]], template_kwargs: Mapping[str, Any]) -> str:
    """The chat up to where the reply begins, whatever the request's options say about that."""
    fixed = ("add_generation_prompt", "continue_final_message", "chat_template")
    options = {name: value for name, value in template_kwargs.items() if name not in fixed}
    # Another template is another end of the prompt, trusted or not.
    template = template_kwargs.get("chat_template")
    return render_chat(tokenizer, messages, add_generation_prompt=True, template=template, template_kwargs=options)


def _params(label_ids: Sequence[int]) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=1, logprob_token_ids=label_ids)


def _answer(question: Question, read: LabelRead, label_mass: float) -> dict[str, Any]:
    """The answer. Raises ValidationError if no label is possible: JSON can't carry 0/0."""
    probs = compute_label_probs(read.logprobs)
    if math.isnan(probs[0]):
        raise ValidationError("No label is possible.", code="not_finite", value=math.nan)
    return build_answer(question, probs, label_mass)


def _find_labels(model: Model) -> _Labels:
    """The labels' tokens. Raises UnsupportedError where vLLM leaves the route out; the log says why."""
    mode = model.settings.logprobs_mode
    try:
        if mode.endswith("logits"):
            raise ValidationError(f"it needs --logprobs-mode raw_logprobs or processed_logprobs, not {mode}")
        return _tokenize_labels(model.tokenizer)
    except ValidationError as error:
        logger.warning("/v1/systemone is disabled: %s", error)
        raise UnsupportedError("The model does not support the structured decision API") from None


@remembered(most=8)
def _tokenize_labels(tokenizer: HFTokenizer) -> _Labels:
    """What each label adds to the end of a chat prompt. Raises ValidationError if it isn't one token of its own."""
    text = _render(tokenizer, [{"role": "user", "content": "x"}], {"enable_thinking": False})
    tail = _tail(tokenizer, tokenizer.encode(text, add_special_tokens=False))
    end = tokenizer.decode(tail)
    token_ids: dict[str, int] = {}
    for kind in QUESTION_TYPES.values():
        own: dict[str, int] = {}
        for label in kind.labels:
            *before, last = tokenizer.encode(end + label, add_special_tokens=False)
            if before != tail or last in own.values():
                raise ValidationError(f"label {label!r} is not one distinct token after this model's chat prompt")
            own[label] = last
        token_ids |= own
    return _Labels(token_ids, tail)


def _tail(tokenizer: HFTokenizer, token_ids: Sequence[int]) -> list[int]:
    """What comes after the last special token: text by itself, of which the next token may become a part."""
    special = [place for place, token_id in enumerate(token_ids) if token_id in tokenizer.special_token_ids]
    return list(token_ids[special[-1] + 1 :] if special else token_ids)


ROUTE = Route(create_decision, DecisionRequest, DecisionReply, understand)
