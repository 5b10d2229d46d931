"""POST /v1/completions.

A request becomes one generation per prompt; their steps become parts, a choice's piece each; a stream sends the parts
as they come, a full reply is their fold.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from stubserver.dialects.vllm.chat.reasoning import constraint_waiting
from stubserver.dialects.vllm.completions.protocol import CompletionReply, CompletionRequest
from stubserver.dialects.vllm.prompts import Renderer, Truncation, check_given, render_prompts
from stubserver.dialects.vllm.protocol import requested_constraint
from stubserver.dialects.vllm.sampling import generation_params, steps_of
from stubserver.dialects.vllm.wire.codec import WIRE
from stubserver.dialects.vllm.wire.logprobs import (
    completion_logprobs,
    make_display,
    prompt_logprobs,
)
from stubserver.dialects.vllm.wire.usage import COMPLETION_DETAILS, usage, usage_in_stream
from stubserver.engine.generate import Generation, Step, check_finite, in_turn
from stubserver.engine.model import Model
from stubserver.engine.terms import EngineRequest
from stubserver.errors import GenerationError, RequestError, ValidationError
from stubserver.memory import remembering
from stubserver.sampling.logprobs import PositionLogprobs
from stubserver.sampling.params import SamplingParams
from stubserver.serving.asked import Asked
from stubserver.serving.body import read_json
from stubserver.serving.dialect import Route
from stubserver.serving.plans import MAX_PLANS, NOT_READ, Plans
from stubserver.serving.sending import event_stream, json_reply
from stubserver.serving.start import request_id, start_generations
from stubserver.serving.state import ServerState, server_state

_ADAPTER = TypeAdapter(CompletionRequest)


async def create_completion(request: Request) -> Response:
    """Answer a completion request."""
    state, body = server_state(request), await read_json(request)
    asked = understand(state, body)
    completion = _Completion(_head(request, asked), asked, start_generations(request.scope, body, asked))
    if asked.plan.request.stream:
        for number, generation in enumerate(completion.generations):
            state.follow(generation, f"{completion.head['id']}-{number}")
        return event_stream(_events(completion), WIRE)
    return json_reply(_full_reply(completion))


class Plan:
    """What a request asks for, whatever its prompts. Raises RequestError for what can't be done.

    renders: whether it is only rendered.
    """

    def __init__(self, state: ServerState, request: CompletionRequest, *, renders: bool = False) -> None:
        if request.stream and request.use_beam_search and not renders:
            raise ValidationError("Streaming is not currently supported with beam search")
        self.request = request
        self.model = state.find_model(request.model)
        if renders:
            check_renderable(use_beam_search=request.use_beam_search)
        self.renderer = _make_renderer(request, self.model)
        self.display = make_display(self.model, request, request.logprobs)
        self.engine_request = remembering(self._make_engine_request, MAX_PLANS)

    def _make_engine_request(self, prompt_len: int) -> EngineRequest:
        """For a prompt of this length, which counts where there is less room than the request asks for.

        Raises ValidationError.
        """
        constraint = requested_constraint(self.request.structured_outputs, self.request.response_format)
        params = _params(self.model, self.request, prompt_len)
        waiting = constraint_waiting(self.model) if constraint else None
        return EngineRequest(self.model, params, constraint, prompt_len=prompt_len, waiting=waiting)


@dataclass(slots=True)
class CompletionAsked(Asked):
    """A completion request, understood."""

    plan: Plan


def understand(state: ServerState, body: Any, *, renders: bool = False) -> CompletionAsked:
    """What a body asks for. Raises RequestError for what can't be done."""
    plan, given = state.once(_make_render_plans if renders else _make_plans).plan(body)
    prompts = render_prompts(plan.renderer, given)
    return CompletionAsked(
        plan.model, prompts, [plan.engine_request(len(prompt.token_ids)) for prompt in prompts], plan
    )


def _make_plans(state: ServerState) -> Plans[CompletionRequest, Plan]:
    return Plans(_ADAPTER, "prompt", read_prompt, partial(Plan, state))


def _make_render_plans(state: ServerState) -> Plans[CompletionRequest, Plan]:
    return Plans(_ADAPTER, "prompt", read_prompt, partial(Plan, state, renders=True))


def check_renderable(*, use_beam_search: bool) -> None:
    """Refuse what can't be rendered. Raises RequestError."""
    if use_beam_search:
        raise RequestError("Beam search is not supported by the render endpoint")


def read_prompt(prompt: Any) -> Any:
    """A text, or a list of plain token ids, passes the check as it is, and says nothing about other fields."""
    if isinstance(prompt, str):
        return prompt or NOT_READ
    plain = isinstance(prompt, list) and set(map(type, prompt)) == {int} and min(prompt) >= 0
    return prompt if plain else NOT_READ


class _Completion(NamedTuple):
    """A request with everything in place to run it. head: what a full reply and every event begin with."""

    head: Mapping[str, Any]
    asked: CompletionAsked
    generations: Sequence[Generation]

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts."""
        return sum([each.prompt_len for each in self.asked.engine_requests])


class _Part(NamedTuple):
    """A piece of one choice. `logprobs` and `text` may cover the echoed prompt too, `token_ids` are generated ones."""

    number: int
    generation: Generation
    text: str
    logprobs: dict[str, Any] | None
    token_ids: Sequence[int]
    finish_reason: str | None
    stop_reason: int | str | None
    first: bool


def _head(request: Request, asked: CompletionAsked) -> dict[str, Any]:
    return {
        "id": f"cmpl-{request_id(request, asked.plan.request.request_id)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": asked.model.name,
    }


def _make_renderer(parsed: CompletionRequest, model: Model) -> Renderer:
    """What makes the prompts of a completion request. Raises RequestError for what can't be rendered.

    The order of the checks: vLLM 0.32.0, `renderers/online_renderer.py`.
    """
    if parsed.suffix is not None:
        raise RequestError(_why_no_suffix(parsed), parameter="suffix")
    if parsed.prompt_embeds is not None and parsed.echo:
        raise RequestError("Echo is unsupported with prompt embeds.")
    if parsed.prompt_embeds is not None and parsed.prompt_logprobs is not None:
        raise RequestError("prompt_logprobs is not compatible with prompt embeds.")
    truncation = Truncation(parsed.truncate_prompt_tokens, parsed.truncation_side)
    max_tokens, special = parsed.max_tokens or 0, parsed.add_special_tokens
    renderer = Renderer(model, max_tokens=max_tokens, truncation=truncation, add_special_tokens=special)
    if parsed.prompt_embeds not in (None, []):
        message = "You must set `--enable-prompt-embeds` to input `prompt_embeds`."
        raise ValidationError(message, parameter="prompt_embeds")
    check_given(parsed.prompt)
    return renderer


def _why_no_suffix(parsed: CompletionRequest) -> str:
    """What doesn't go with a suffix; no model here fills in the middle."""
    if parsed.echo:
        return "Echo is unsupported with suffix."
    for name in ("prompt_embeds", "truncate_prompt_tokens"):
        if getattr(parsed, name) is not None:
            return f"suffix is not supported with {name}"
    prompt = parsed.prompt
    if isinstance(prompt, str) or (isinstance(prompt, list) and any(isinstance(part, str) for part in prompt)):
        return "suffix is only supported for models with FIM completion rendering"
    return "suffix requires text prompt input for FIM completion rendering"


def _params(model: Model, parsed: CompletionRequest, prompt_len: int) -> SamplingParams:
    """The parameters of one prompt of a completion request, their values checked. Raises ValidationError."""
    return generation_params(
        parsed,
        model,
        prompt_len,
        max_tokens=parsed.max_tokens,
        logprobs=parsed.logprobs,
        echoed=parsed.logprobs,
        echo_alone=bool(parsed.echo) and parsed.max_tokens == 0,
    )


def _parts(completion: _Completion) -> Iterator[_Part]:
    """The parts of all choices as they are generated. Raises ValidationError before the first one."""
    generations, request = completion.generations, completion.asked.plan.request
    for generation in generations:
        generation.check()
    ends: dict[int, int] = {}  # of the choices that have begun: where their text ends
    sources = [steps_of(generation, request) for generation in generations]
    for number, (choice, step) in in_turn(sources):
        generation = generations[number]
        index = number * generation.params.n + choice
        first = index not in ends
        positions: Sequence[PositionLogprobs | None] = step.logprobs or ()
        text, token_ids = step.text, step.token_ids
        if first and request.echo:
            text, token_ids, positions = _after_prompt(completion, number, step)
        logprobs, end = None, ends.get(index, 0)
        if request.logprobs is not None:
            logprobs, end = completion_logprobs(token_ids, positions, completion.asked.plan.display, end)
        ends[index] = end
        yield _Part(index, generation, text, logprobs, step.token_ids, step.finish_reason, step.stop_reason, first)


def _after_prompt(
    completion: _Completion, number: int, step: Step
) -> tuple[str, Sequence[int], Sequence[PositionLogprobs | None]]:
    """(text, token ids, their values) that a first step shows after the echoed prompt's."""
    generation, request = completion.generations[number], completion.asked.plan.request
    # Asked for ids, vLLM leaves the prompt's text out.
    text = "" if request.return_token_ids else completion.asked.prompts[number].text
    token_ids = generation.request.prompt_token_ids
    positions = generation.prompt_logprobs if request.logprobs is not None else []
    if request.max_tokens == 0:
        return text, token_ids, positions
    return text + step.text, [*token_ids, *step.token_ids], [*positions, *(step.logprobs or ())]


def _events(completion: _Completion) -> Iterator[dict[str, Any]]:
    """The events of a stream."""
    request, settings = completion.asked.plan.request, completion.asked.model.settings
    include_usage, continuous = usage_in_stream(request.stream_options, settings)
    generated = [0] * sum(generation.params.n for generation in completion.generations)
    for part in _as_streamed(completion, _parts(completion)):
        generated[part.number] += len(part.token_ids)
        event = {**completion.head, "choices": [_stream_choice(completion, part)]}
        if part.finish_reason is not None and not include_usage:
            event["system_fingerprint"] = completion.asked.model.system_fingerprint
        if continuous:
            event["usage"] = usage(len(part.generation.request.prompt_token_ids), generated[part.number])
        yield event
    if include_usage:
        counts = usage(
            completion.prompt_tokens,
            sum(generated),
            details=COMPLETION_DETAILS if settings.enable_prompt_tokens_details else None,
        )
        yield {
            **completion.head,
            "choices": [],
            "usage": counts,
            "system_fingerprint": completion.asked.model.system_fingerprint,
        }


def _as_streamed(completion: _Completion, parts: Iterator[_Part]) -> Iterator[_Part]:
    """The parts that a stream gets: all, but where vLLM loses the values of the prompt.

    The first prompt's first choice is a token ahead of its others there. With its second token come their first ones,
    and the prompt's values, which go out only with first tokens, are lost with that: the echo of choice 1 fails.
    """
    request, first = completion.asked.plan.request, completion.generations[0]
    echoes_values = request.echo and request.logprobs is not None and request.max_tokens != 0
    waiting = range(1, first.params.n) if echoes_values else range(0)
    begun = False
    for part in parts:
        if part.number not in waiting:
            yield part
        if part.number == 0 and waiting:
            if begun:
                # The whole text of a KeyError there.
                raise GenerationError(str(first.request.prompt_token_ids[0]))
            begun = True
            if part.finish_reason is not None:
                waiting = range(0)


def _stream_choice(completion: _Completion, part: _Part) -> dict[str, Any]:
    request = completion.asked.plan.request
    shows_prompt = part.first and (request.echo or request.return_token_ids)
    return {
        "index": part.number,
        "text": part.text,
        "logprobs": part.logprobs,
        "finish_reason": part.finish_reason,
        "stop_reason": part.stop_reason,
        "prompt_token_ids": part.generation.request.prompt_token_ids if shows_prompt else None,
        "token_ids": part.token_ids if request.return_token_ids else None,
    }


def _full_reply(completion: _Completion) -> dict[str, Any]:
    """The fold of the parts."""
    folded: dict[int, list[_Part]] = {}
    generated = 0
    for part in _parts(completion):
        generated += len(part.token_ids)
        folded.setdefault(part.number, []).append(part)
    choices = [_full_choice(completion, _joined(folded[index])) for index in sorted(folded)]
    # A beam search is many requests to the engine, of whose cached tokens vLLM tells nothing.
    has_details = completion.asked.model.settings.enable_prompt_tokens_details
    details = COMPLETION_DETAILS if has_details and not completion.asked.plan.request.use_beam_search else None
    return {
        **completion.head,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": completion.asked.model.system_fingerprint,
        "usage": usage(completion.prompt_tokens, generated, details=details, nulls=True),
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def _full_choice(completion: _Completion, part: _Part) -> dict[str, Any]:
    generation, request = part.generation, completion.asked.plan.request
    scored = generation.params.prompt_logprobs is not None
    for top in part.logprobs["top_logprobs"] if part.logprobs else ():
        check_finite(top.values() if top else ())
    return {
        "index": part.number,
        "text": part.text,
        "logprobs": part.logprobs,
        "finish_reason": part.finish_reason,
        "stop_reason": part.stop_reason,
        "token_ids": part.token_ids if request.return_token_ids else None,
        "prompt_logprobs": prompt_logprobs(generation.prompt_logprobs) if scored else None,
        "prompt_token_ids": generation.request.prompt_token_ids if request.return_token_ids else None,
        "routed_experts": None,
    }


def _joined(parts: Sequence[_Part]) -> _Part:
    """All parts of a choice as one."""
    last = parts[-1]
    if len(parts) == 1:
        return last
    text = "".join([part.text for part in parts])
    token_ids = [token for part in parts for token in part.token_ids]
    logprobs = [part.logprobs for part in parts if part.logprobs]
    lists = {name: [entry for each in logprobs for entry in each[name]] for name in logprobs[0]} if logprobs else None
    return last._replace(text=text, token_ids=token_ids, logprobs=lists)


ROUTE = Route(create_completion, CompletionRequest, CompletionReply, understand)
