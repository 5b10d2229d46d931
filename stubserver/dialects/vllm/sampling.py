"""From a request's fields to sampling parameters: what the request says, else the server's default, else vLLM's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

from stubserver.dialects.vllm.checks import check_beam_width, check_values
from stubserver.dialects.vllm.protocol import RepetitionDetectionParams
from stubserver.engine.beam_search import beam_search
from stubserver.engine.generate import Generation, Step
from stubserver.engine.model import Model
from stubserver.errors import ValidationError
from stubserver.sampling.params import SamplingParams

LOWEST_TEMPERATURE = 1e-2
"""A temperature between 0 and this is raised to it: so only 0 itself is greedy."""


class SamplingFields(Protocol):
    """What the generating endpoints' requests have in common."""

    @property
    def n(self) -> int | None:
        """Choices."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    seed: int | None
    min_tokens: int
    stop: str | list[str] | None
    stop_token_ids: list[int] | None
    ignore_eos: bool
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    prompt_logprobs: int | None
    logprob_token_ids: list[int] | None
    allowed_token_ids: list[int] | None
    logit_bias: dict[str, float] | None
    bad_words: list[str]
    thinking_token_budget: int | None
    repetition_detection: RepetitionDetectionParams | None
    stream_interval: int | None
    routed_experts_prompt_start: int
    vllm_xargs: dict[str, Any] | None
    kv_transfer_params: dict[str, Any] | None
    ec_transfer_params: dict[str, Any] | None


class BeamFields(Protocol):
    """What of a request says how its tokens are chosen."""

    use_beam_search: bool
    length_penalty: float


class GenerationFields(SamplingFields, BeamFields, Protocol):
    """The same, with what depends on the prompt."""

    truncate_prompt_tokens: int | None

    @property
    def echo(self) -> bool | None:
        """Whether the prompt is shown before what follows it."""


_DEFAULTS: dict[str, Any] = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
}


def generation_params(
    request: GenerationFields,
    model: Model,
    prompt_len: int,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    echoed: int | None,
    echo_alone: bool = False,
) -> SamplingParams:
    """The parameters of one prompt of a completion or chat request, their values checked. Raises ValidationError.

    max_tokens, logprobs: as asked for. echoed: how many top values the tokens of an echoed prompt get, unless
    `prompt_logprobs` says so. echo_alone: whether nothing but the echo is wanted; a token is generated all the same.
    """
    room = choose_max_tokens(model, max_tokens, prompt_len, request.truncate_prompt_tokens)
    if request.use_beam_search:
        return beam_params(request, model, room)
    scored = request.prompt_logprobs
    if scored is None and request.echo:
        scored = echoed
    room = 1 if echo_alone else room
    return sampling_params(request, model, max_tokens=room, logprobs=logprobs, prompt_logprobs=scored)


def sampling_params(
    request: SamplingFields, model: Model, *, max_tokens: int, logprobs: int | None, prompt_logprobs: int | None
) -> SamplingParams:
    """The parameters of one prompt, their values checked. Raises ValidationError."""
    chosen = {
        name: default if (value := getattr(request, name)) is None else value
        for name, default in {**_DEFAULTS, **model.default_sampling_params}.items()
    }
    stop = [request.stop] if isinstance(request.stop, str) else request.stop or ()
    params = SamplingParams(
        **{**chosen, "temperature": effective_temperature(chosen["temperature"])},
        n=1 if request.n is None else request.n,
        seed=None if request.seed == -1 else request.seed,
        max_tokens=max_tokens,
        min_tokens=request.min_tokens,
        stop=stop,
        stop_token_ids=list(dict.fromkeys(request.stop_token_ids or ())),
        ignore_eos=request.ignore_eos,
        include_stop_str_in_output=request.include_stop_str_in_output,
        skip_special_tokens=request.skip_special_tokens,
        # Asked-for ids take the place of the top ones, whose number then isn't checked.
        logprobs=None if request.logprob_token_ids else logprobs,
        prompt_logprobs=prompt_logprobs,
        logprob_token_ids=request.logprob_token_ids or None,
        allowed_token_ids=request.allowed_token_ids,
        logit_bias=parse_logit_bias(request.logit_bias),
        bad_words=list(dict.fromkeys(request.bad_words)),
        thinking_token_budget=request.thinking_token_budget,
        repetition=request.repetition_detection.params() if request.repetition_detection else None,
        stream_interval=request.stream_interval,
        extra_args=_extra_args(request),
        routed_experts_prompt_start=request.routed_experts_prompt_start,
    )
    check_values(params)
    return params


def _extra_args(request: SamplingFields) -> dict[str, Any] | None:
    """What is for extensions of the server, in one: null if there is nothing."""
    given = dict(request.vllm_xargs or {})
    for name in ("kv_transfer_params", "ec_transfer_params"):
        if getattr(request, name):
            given[name] = getattr(request, name)
    return given or None


def beam_params(request: SamplingFields, model: Model, max_tokens: int) -> SamplingParams:
    """The parameters of a beam search: vLLM heeds no other fields. Raises ValidationError."""
    width = 1 if request.n is None else request.n
    check_beam_width(width)
    temperature = request.temperature
    if temperature is None:
        temperature = model.default_sampling_params.get("temperature", _DEFAULTS["temperature"])
    # The engine gets one-token requests, so their checks are those of a single choice.
    params = SamplingParams(
        temperature=effective_temperature(temperature),
        max_tokens=max_tokens,
        ignore_eos=request.ignore_eos,
        include_stop_str_in_output=request.include_stop_str_in_output,
        skip_special_tokens=request.skip_special_tokens,
        logprobs=2 * width,
    )
    check_values(params)
    return replace(params, n=width)


def choose_max_tokens(
    model: Model, max_tokens: int | None, prompt_len: int, truncate_prompt_tokens: int | None = None
) -> int:
    """How many tokens may be generated: the least of what was asked for, what fits, and the server's cap."""
    if truncate_prompt_tokens is not None:
        limit = model.settings.max_model_len if truncate_prompt_tokens == -1 else truncate_prompt_tokens
        prompt_len = min(prompt_len, limit)
    limits = [model.settings.max_model_len - prompt_len, max_tokens, model.max_new_tokens]
    return min(limit for limit in limits if limit is not None)


def effective_temperature(temperature: float) -> float:
    """The temperature that is sampled with: tiny ones are raised."""
    return LOWEST_TEMPERATURE if 0 < temperature < LOWEST_TEMPERATURE else temperature


def parse_logit_bias(logit_bias: Mapping[str, float] | None) -> dict[int, float] | None:
    """JSON's string keys → token ids; values clamped to [-100, 100]."""
    if logit_bias is None:
        return None
    bad_keys = [key for key in logit_bias if not _is_int(key)]
    if bad_keys:
        message = f"logit_bias contains key(s) that cannot be converted to integer token IDs: {bad_keys!r}"
        raise ValidationError(message, parameter="logit_bias", value=bad_keys)
    return {int(key): min(100.0, max(-100.0, bias)) for key, bias in logit_bias.items()}


def _is_int(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True


def steps_of(generation: Generation, request: BeamFields) -> Iterator[tuple[int, Step]]:
    """(choice, step) as they are generated; of a beam search, a step a choice."""
    if request.use_beam_search:
        return enumerate(beam_search(generation, request.length_penalty))
    return generation.steps()
