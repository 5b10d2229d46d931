"""What vLLM refuses of sampling parameters, and in which words.

Checks come in two rounds, as in vLLM 0.32.0 (`sampling_params.py`): `check_values` when the parameters are made, before
a reply starts; those of the behaviour when the engine takes the request, which in a stream is after the 200 went out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from stubserver.engine.behaviour import Circumstances
from stubserver.errors import ValidationError
from stubserver.sampling.params import SamplingParams

MAX_LOGPROB_TOKEN_IDS = 128
"""Most `logprob_token_ids` of a request."""

MAX_N = 16384
"""Most choices of a request."""

DIFFUSION = (
    "Structured outputs are not yet supported for diffusion language models. Remove the structured output constraint "
    "(e.g. `response_format`, `structured_outputs`) from the request."
)

Check = tuple[Callable[[SamplingParams], bool], Callable[[SamplingParams], str], str | None]
"""(is it refused, vLLM's words, the field that the error names)."""

_VALUE_CHECKS: tuple[Check, ...] = (
    (lambda p: p.n < 1, lambda p: f"n must be at least 1, got {p.n}.", None),
    (
        lambda p: p.n > MAX_N,
        lambda p: (
            f"n must be at most {MAX_N}, got {p.n}. To increase this limit, set the VLLM_MAX_N_SEQUENCES "
            "environment variable."
        ),
        None,
    ),
    (
        lambda p: not -2 <= p.presence_penalty <= 2,
        lambda p: f"presence_penalty must be in [-2, 2], got {p.presence_penalty}.",
        None,
    ),
    (
        lambda p: not -2 <= p.frequency_penalty <= 2,
        lambda p: f"frequency_penalty must be in [-2, 2], got {p.frequency_penalty}.",
        None,
    ),
    (
        lambda p: not math.isfinite(p.repetition_penalty),
        lambda p: f"repetition_penalty must be a finite number, got {p.repetition_penalty}.",
        None,
    ),
    (
        lambda p: p.repetition_penalty <= 0,
        lambda p: f"repetition_penalty must be greater than zero, got {p.repetition_penalty}.",
        None,
    ),
    (
        lambda p: not math.isfinite(p.temperature),
        lambda p: f"temperature must be a finite number, got {p.temperature}.",
        "temperature",
    ),
    (
        lambda p: p.temperature < 0,
        lambda p: f"temperature must be non-negative, got {p.temperature}.",
        "temperature",
    ),
    (
        lambda p: p.temperature > 2,
        lambda p: f"temperature must be in [0, 2], got {p.temperature}.",
        "temperature",
    ),
    (lambda p: not 0 < p.top_p <= 1, lambda p: f"top_p must be in (0, 1], got {p.top_p}.", "top_p"),
    (lambda p: p.top_k < -1, lambda p: f"top_k must be 0 (disable), or at least 1, got {p.top_k}.", None),
    (lambda p: not 0 <= p.min_p <= 1, lambda p: f"min_p must be in [0, 1], got {p.min_p}.", None),
    (lambda p: p.max_tokens < 1, lambda p: f"max_tokens must be at least 1, got {p.max_tokens}.", "max_tokens"),
    (
        lambda p: p.min_tokens < 0,
        lambda p: f"min_tokens must be greater than or equal to 0, got {p.min_tokens}.",
        None,
    ),
    (
        lambda p: p.min_tokens > p.max_tokens,
        lambda p: f"min_tokens must be less than or equal to max_tokens={p.max_tokens}, got {p.min_tokens}.",
        None,
    ),
    (
        lambda p: p.logprobs is not None and p.logprobs < -1,
        lambda p: f"logprobs must be non-negative or -1, got {p.logprobs}.",
        "logprobs",
    ),
    (
        lambda p: p.prompt_logprobs is not None and p.prompt_logprobs < -1,
        lambda p: f"prompt_logprobs must be non-negative or -1, got {p.prompt_logprobs}.",
        "prompt_logprobs",
    ),
    (lambda p: not all(p.stop), lambda p: "stop cannot contain an empty string.", None),
    (
        lambda p: not all(p.bad_words),
        lambda p: f"bad_words cannot contain an empty string. Got bad_words={list(p.bad_words)}",
        None,
    ),
    (
        lambda p: p.greedy and p.n > 1,
        lambda p: f"n must be 1 when using greedy sampling, got {p.n}.",
        None,
    ),
)


def check_values(params: SamplingParams) -> None:
    """Refuse values that are wrong whatever the model. Raises ValidationError for the first."""
    for refused, words, parameter in _VALUE_CHECKS:
        if refused(params):
            value = getattr(params, parameter) if parameter else None
            raise ValidationError(words(params), parameter=parameter, value=value)


def check_beam_width(width: int) -> None:
    """Refuse a number of beams that vLLM refuses. Raises ValidationError."""
    if width < 1:
        raise ValidationError(f"beam_width must be at least 1, got {width}.")


def check_model(params: SamplingParams, circumstances: Circumstances) -> None:
    """Refuse what this model can't take: too many logprobs, ids out of the vocabulary. Raises ValidationError."""
    vocab_size, max_logprobs = circumstances.vocab_size, circumstances.settings.max_logprobs
    _check_count("sample", params.logprobs, "logprobs", vocab_size, max_logprobs)
    if params.logprob_token_ids is not None:
        _check_logprob_token_ids(params.logprob_token_ids, params.logprobs, vocab_size)
    _check_count("prompt", params.prompt_logprobs, "prompt_logprobs", vocab_size, max_logprobs)
    _check_vocabulary(params.logit_bias or (), "logit_bias", vocab_size)
    _check_vocabulary(params.stop_token_ids, "stop_token_ids", vocab_size)
    if params.allowed_token_ids is not None:
        _check_allowed_token_ids(params.allowed_token_ids, vocab_size)


def check_thinking(params: SamplingParams, circumstances: Circumstances) -> None:
    """Refuse a budget for thoughts where the server doesn't know thoughts. Raises ValidationError."""
    if params.thinking_token_budget is not None and not circumstances.settings.reasoning_parser:
        raise ValidationError(
            "thinking_token_budget is set but reasoning_config is not configured. Please set --reasoning-parser and/or "
            "--reasoning-config to use thinking_token_budget."
        )


def check_diffusion(params: SamplingParams, circumstances: Circumstances) -> None:
    """Refuse a constraint where tokens don't come one after the other. Raises ValidationError."""
    if circumstances.constraint and circumstances.settings.diffusion:
        raise ValidationError(DIFFUSION)


def check_sampling_mask(params: SamplingParams, circumstances: Circumstances) -> None:
    """Refuse what a mask can't be returned for. Raises ValidationError.

    vLLM 0.32.0 raises a plain ValueError with these words, of which its HTTP server only shows a 500 without a message.
    """
    if not circumstances.settings.return_sampling_mask:
        return
    if params.temperature <= 0:
        raise ValidationError("sampling distribution replay requires temperature > 0")
    if params.top_k <= 0:
        raise ValidationError(
            "sampling distribution replay requires top_k > 0 to bound sampling mask size, reduce transfer overhead, "
            "and avoid potential OOMs"
        )


def _check_count(kind: str, count: int | None, parameter: str, vocab_size: int, max_logprobs: int) -> None:
    asked = vocab_size if count == -1 else count or 0
    allowed = vocab_size if max_logprobs == -1 else max_logprobs
    if asked > allowed:
        message = f"Requested {kind} logprobs of {asked}, which is greater than max allowed: {allowed}"
        raise ValidationError(message, parameter=parameter, value=asked)


def _check_logprob_token_ids(token_ids: Sequence[int], logprobs: int | None, vocab_size: int) -> None:
    if len(token_ids) > MAX_LOGPROB_TOKEN_IDS:
        message = (
            f"Requested logprob_token_ids of length {len(token_ids)}, "
            f"which is greater than max allowed: {MAX_LOGPROB_TOKEN_IDS}"
        )
        raise ValidationError(message, parameter="logprob_token_ids", value=len(token_ids))
    _check_vocabulary(token_ids, "logprob_token_ids", vocab_size)
    if logprobs is not None and logprobs != len(token_ids):
        message = (
            "When both logprobs and logprob_token_ids are set, logprobs must equal len(logprob_token_ids). "
            f"Got logprobs={logprobs}, len(logprob_token_ids)={len(token_ids)}."
        )
        raise ValidationError(message, parameter="logprob_token_ids", value=len(token_ids))


def _check_vocabulary(token_ids: Any, parameter: str, vocab_size: int) -> None:
    outside = _outside(token_ids, vocab_size)
    if outside:
        message = f"token_id(s) {outside} in {parameter} contain out-of-vocab token ids. Vocabulary size: {vocab_size}"
        raise ValidationError(message, parameter=parameter, value=outside)


def _check_allowed_token_ids(token_ids: Sequence[int], vocab_size: int) -> None:
    if not token_ids:
        message = "allowed_token_ids is not None and empty!"
        raise ValidationError(message, parameter="allowed_token_ids", value=list(token_ids))
    outside = _outside(token_ids, vocab_size)
    if outside:
        message = "allowed_token_ids contains out-of-vocab token id!"
        raise ValidationError(message, parameter="allowed_token_ids", value=outside)


def _outside(token_ids: Any, vocab_size: int) -> list[int]:
    return [token_id for token_id in token_ids if not 0 <= token_id < vocab_size]
