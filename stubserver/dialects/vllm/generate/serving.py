"""POST /inference/v1/generate: token ids in, token ids (and their text, if asked for) out; and abort_requests.

A full reply's choice and an event's are made by the same function: the one of all steps, the other of one.
Source of the shapes: vLLM 0.32.0, `entrypoints/scale_out/token_in_token_out/`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from stubserver.dialects.vllm.checks import why_unsendable
from stubserver.dialects.vllm.generate.protocol import (
    AbortRequest,
    GenerateReply,
    GenerateRequest,
    MultiModalFeatures,
)
from stubserver.dialects.vllm.protocol import requested_constraint
from stubserver.dialects.vllm.raw_body import check_object, read_raw_json
from stubserver.dialects.vllm.sampling import choose_max_tokens
from stubserver.dialects.vllm.scale_out import check_scale_out
from stubserver.dialects.vllm.wire.codec import WIRE
from stubserver.dialects.vllm.wire.logprobs import MASKED, placeholder, prompt_logprobs, sendable
from stubserver.dialects.vllm.wire.usage import COMPLETION_DETAILS, usage
from stubserver.engine.generate import Generation, Step
from stubserver.engine.model import Model
from stubserver.engine.terms import EngineRequest
from stubserver.errors import RequestError, SchemaError, ValidationError
from stubserver.sampling.logprobs import PositionLogprobs
from stubserver.sampling.params import SamplingParams
from stubserver.serving.asked import Asked, Prompt
from stubserver.serving.body import read_json, validate
from stubserver.serving.dialect import Route
from stubserver.serving.sending import event_stream, json_reply
from stubserver.serving.start import request_id, start_generations
from stubserver.serving.state import ServerState, server_state

WEIGHT_VERSION = "default"
"""The label of weights that nobody has updated."""

_ADAPTER = TypeAdapter(GenerateRequest)


async def generate(request: Request) -> Response:
    """Answer a generate request."""
    state = server_state(request)
    check_scale_out(state)
    body = await read_json(request)
    asked = understand(state, body)
    (generation,) = start_generations(request.scope, body, asked)
    own_id = f"generate-tokens-{request_id(request, asked.request.request_id)}"
    job = _Job(own_id, asked.model, asked.request, generation)
    if asked.request.stream:
        state.follow(job.generation, job.id)
        return event_stream(_events(job), WIRE)
    return json_reply(_full_reply(job))


@dataclass(slots=True)
class GenerateAsked(Asked):
    """A generate request, understood."""

    request: GenerateRequest


def understand(state: ServerState, body: Any) -> GenerateAsked:
    """What a body asks for. Raises RequestError for what can't be done."""
    parsed = validate(body, _ADAPTER)
    model = state.find_model(parsed.model)
    _check_supported(model, parsed)
    prompt, params = _prompt(model, parsed.token_ids), _params(model, parsed)
    constraint = requested_constraint(parsed.sampling_params.structured_outputs, None)
    engine_request = EngineRequest(model, params, constraint, prompt_len=len(prompt.token_ids))
    return GenerateAsked(model, [prompt], [engine_request], parsed)


async def abort_requests(request: Request) -> Response:
    """End streams, by the id that a prompt has in vLLM's engine; one that isn't running is no error.

    That is the reply's own id, of completions with the prompt's number: "cmpl-x-0".
    """
    state = server_state(request)
    check_scale_out(state)
    body = await read_raw_json(request)
    check_object(body)
    if body.get("request_ids") is None:
        raise SchemaError("Missing 'request_ids' in request body")
    request_ids = body["request_ids"]
    state.abort([request_ids] if isinstance(request_ids, str) else request_ids if isinstance(request_ids, list) else [])
    return Response()


class _Job(NamedTuple):
    """A request with everything in place to run it."""

    id: str
    model: Model
    request: GenerateRequest
    generation: Generation

    @property
    def text_mode(self) -> bool:
        """Whether the reply has text beside the ids."""
        return self.request.output_mode == "text"


def _check_supported(model: Model, parsed: GenerateRequest) -> None:
    """Refuse what isn't even put to the engine. Raises ValidationError or RequestError."""
    given = parsed.sampling_params
    if parsed.stream and given.prompt_logprob_token_ids is not None:
        raise RequestError("prompt_logprob_token_ids are not available when stream=true.")
    _check_serializable(parsed)
    if any(part.get("type", "") in _MEDIA for part in parsed.content_parts or ()):
        raise ValidationError(f"{model.name} is not a multimodal model")


_MEDIA = ("image_url", "audio_url", "video_url")
"""Types of content parts that count; all others are passed over."""


def _check_serializable(parsed: GenerateRequest) -> None:
    """Refuse what vLLM can't send to its engine. Raises ValidationError."""
    # Scores of a prompt are an array there, and checked later; greedy sampling has no use for top_k.
    unsent = {"prompt_logprob_token_ids", *(["top_k"] if parsed.sampling_params.params().greedy else [])}
    sent = parsed.sampling_params.model_dump(exclude=unsent)
    why = why_unsendable([sent, parsed.kv_transfer_params, parsed.ec_transfer_params])
    if why:
        raise ValidationError(why)


def _prompt(model: Model, token_ids: Sequence[int]) -> Prompt:
    """`text` is for the script's conditions; ids that have none are refused later, as vLLM does."""
    known = [token_id for token_id in token_ids if token_id < model.vocab_size]
    return Prompt(list(token_ids), model.tokenizer.decode(known))


def _params(model: Model, parsed: GenerateRequest) -> SamplingParams:
    given = parsed.sampling_params
    params = given.params()
    prompt_len = len(parsed.token_ids)
    room = model.settings.max_model_len - prompt_len
    if "max_tokens" not in given.model_fields_set:
        if room < 0:
            raise ValidationError(
                f"Input length ({prompt_len}) exceeds model's maximum context length ({model.settings.max_model_len})."
            )
        return replace(params, max_tokens=choose_max_tokens(model, None, prompt_len))
    if given.max_tokens is None:
        # Without room the engine refuses the prompt.
        return replace(params, max_tokens=max(room, 1))
    return params


def _steps(job: _Job) -> Iterator[tuple[int, Step]]:
    """(choice, step) as they are generated. Raises ValidationError before the first one."""
    job.generation.check()
    _check_features(job.request.features)
    yield from job.generation.steps()


def _check_features(features: MultiModalFeatures | None) -> None:
    """Refuse the first image or sound, for which no model here has room. Raises ValidationError."""
    for kind, places in (features.mm_placeholders if features else {}).items():
        for place in places:
            raise ValidationError(
                f"The decoder prompt contains a(n) {kind} item with {place.length} embedding tokens, which exceeds the "
                "pre-allocated encoder cache size 0. Please reduce the input size or increase the encoder cache size "
                "by setting --limit-mm-per-prompt at startup."
            )


def _events(job: _Job) -> Iterator[dict[str, Any]]:
    """The events of a stream."""
    options = job.request.stream_options
    include_usage = bool(options and options.include_usage)
    continuous = include_usage and bool(options and options.continuous_usage_stats)
    prompt_token_ids = job.request.token_ids if job.request.return_token_ids else None
    generated = [0] * job.generation.params.n
    for index, step in _steps(job):
        generated[index] += len(step.token_ids)
        counts = usage(len(job.request.token_ids), generated[index], nulls=True) if continuous else None
        event = _event(job, [_choice(job, index, [step], generated[index])], counts)
        if prompt_token_ids is not None:
            event["prompt_token_ids"], prompt_token_ids = prompt_token_ids, None
        yield event
    if include_usage:
        details = COMPLETION_DETAILS if job.model.settings.enable_prompt_tokens_details else None
        yield _event(job, [], usage(len(job.request.token_ids), sum(generated), details=details))


def _event(job: _Job, choices: list[dict[str, Any]], counts: dict[str, Any] | None) -> dict[str, Any]:
    return {"request_id": job.id, "usage": counts, "output_mode": job.request.output_mode, "choices": choices}


def _full_reply(job: _Job) -> dict[str, Any]:
    """The fold of the steps."""
    folded: dict[int, list[Step]] = {}
    for index, step in _steps(job):
        folded.setdefault(index, []).append(step)
    generated = {index: sum(len(step.token_ids) for step in steps) for index, steps in folded.items()}
    details = COMPLETION_DETAILS if job.model.settings.enable_prompt_tokens_details else None
    return {
        "request_id": job.id,
        "model": job.model.name,
        "created": int(time.time()),
        "usage": usage(len(job.request.token_ids), sum(generated.values()), details=details, nulls=True),
        "prompt_logprobs": _prompt_logprobs(job),
        "prompt_token_id_logprobs": None,
        "prompt_token_ids": job.request.token_ids if job.request.return_token_ids else None,
        "mm_placeholders": None,
        "metrics": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "output_mode": job.request.output_mode,
        "choices": [_choice(job, index, folded[index], generated[index]) for index in sorted(folded)],
    }


def _choice(job: _Job, index: int, steps: Sequence[Step], generated: int) -> dict[str, Any]:
    """What these steps of one choice add up to. `generated`: how many tokens it has after them."""
    last = steps[-1]
    masks = [mask for step in steps for mask in step.sampling_mask or ()]
    span = {"version": WEIGHT_VERSION, "start": 0, "end": generated}
    choice = {
        "index": index,
        "finish_reason": last.finish_reason,
        "stop_reason": last.stop_reason,
        "token_ids": [token_id for step in steps for token_id in step.token_ids],
        "routed_experts": None,
        "sampling_mask": masks or None,
        "weight_versions": [span] if last.finish_reason else None,
        "logprobs": _logprobs(job, [position for step in steps for position in step.logprobs or ()]),
    }
    return {**choice, "text": "".join(step.text for step in steps)} if job.text_mode else choice


def _logprobs(job: _Job, positions: Sequence[PositionLogprobs]) -> dict[str, Any] | None:
    # Asked for by ids alone, they are computed and not shown.
    if job.request.sampling_params.logprobs is None:
        return None
    return {"content": [_content(job, position) for position in positions]}


def _content(job: _Job, position: PositionLogprobs) -> dict[str, Any]:
    """The sampled token's entry, and as many as were asked for: itself first, so that the last one may fall out."""
    count = job.request.sampling_params.logprobs or 1
    shown = len(position.token_ids) if count == -1 else count
    values = zip(position.token_ids, position.logprobs, position.tokens, position.ranks, strict=True)
    entries = [_entry(job, *each) for each in islice(values, shown)]
    return {**entries[0], "top_logprobs": entries}


def _entry(job: _Job, token_id: int, logprob: float, token: str, rank: int) -> dict[str, Any]:
    # NaN stands for a value that is masked here.
    value = sendable(logprob) if logprob == logprob else MASKED
    if not job.text_mode:
        return {"token_id": token_id, "logprob": value, "rank": rank or None}
    if job.model.settings.return_tokens_as_token_ids:
        return {"token": placeholder(token_id), "logprob": value, "bytes": None}
    return {"token": token, "logprob": value, "bytes": list(token.encode("utf-8", errors="replace"))}


def _prompt_logprobs(job: _Job) -> list[dict[str, Any] | None] | None:
    given = job.request.sampling_params
    if given.prompt_logprobs is None:
        return None
    positions: list[dict[str, Any] | None] = prompt_logprobs(job.generation.prompt_logprobs)
    if given.flat_logprobs:
        # Their first token has none, where it has nothing at all elsewhere.
        positions = [{}, *positions[1:]]
    if given.detokenize:
        return positions
    return [
        position and {key: {**entry, "decoded_token": None} for key, entry in position.items()}
        for position in positions
    ]


ROUTE = Route(generate, GenerateRequest, GenerateReply, understand)
ABORT = Route(abort_requests, AbortRequest)
