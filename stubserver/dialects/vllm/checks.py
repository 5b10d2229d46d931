"""What vLLM refuses of sampling parameters, and in which words.

Checks come in two rounds, as in vLLM 0.32.0 (`sampling_params.py`): `check_values` when the parameters are made, before
a reply starts; those of the behaviour when the engine takes the request, which in a stream is after the 200 went out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stubserver.engine.behaviour import Circumstances
from stubserver.errors import GenerationError, ValidationError
from stubserver.sampling.params import GREEDY_BELOW, SamplingParams

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
        lambda p: not has_small_integers(p.extra_args),
        lambda p: "extra_args integers must be between -2**63 and 2**64 - 1.",
        "extra_args",
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
    (lambda p: p.min_tokens > p.max_tokens, lambda p: _too_few_tokens(p), None),
    (
        lambda p: p.stream_interval is not None and p.stream_interval < 1,
        lambda p: f"stream_interval must be at least 1, got {p.stream_interval}.",
        "stream_interval",
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
        lambda p: bool(p.stop) and not p.detokenize,
        lambda p: "stop strings are only supported when detokenize is True. Set detokenize=True to use stop.",
        None,
    ),
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
            value = getattr(params, parameter) if parameter and parameter not in _NOT_SHOWN else None
            raise ValidationError(words(params), parameter=parameter, value=value)


_NOT_SHOWN = ("extra_args",)
"""Parameters whose value isn't told."""


def _too_few_tokens(params: SamplingParams) -> str:
    return f"min_tokens must be less than or equal to max_tokens={params.max_tokens}, got {params.min_tokens}."


def has_small_integers(value: Any) -> bool:
    """Whether all integers in it have 64 bits, with a sign or without: msgpack's, by which vLLM talks to its engine."""
    return why_unsendable(value) != _TOO_LARGE


_TOO_LARGE = "can't serialize ints < -2**63 or > 2**64 - 1"


def why_unsendable(value: Any) -> str | None:
    """Why vLLM can't send this to its engine, in its words; None if it can."""
    if isinstance(value, Mapping):
        return next(filter(None, (why_unsendable(part) for pair in value.items() for part in pair)), None)
    if isinstance(value, list | tuple):
        return next(filter(None, map(why_unsendable, value)), None)
    if isinstance(value, int):
        return None if -(2**63) <= value < 2**64 else _TOO_LARGE
    if not isinstance(value, str):
        return None
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return str(error)
    return None


def check_beam_width(width: int) -> None:
    """Refuse a number of beams that vLLM refuses. Raises ValidationError."""
    if width < 1:
        raise ValidationError(f"beam_width must be at least 1, got {width}.")


def check_logprobs(params: SamplingParams, circumstances: Circumstances) -> None:
    """Refuse more logprobs than the server returns, and of no token. Raises ValidationError."""
    vocab_size, max_logprobs = circumstances.vocab_size, circumstances.settings.max_logprobs
    allowed = vocab_size if max_logprobs == -1 else max_logprobs
    _check_count("sample", params.logprobs, "logprobs", vocab_size, allowed)
    if params.logprob_token_ids is not None:
        _check_logprob_token_ids(params.logprob_token_ids, params.logprobs, vocab_size)
    _check_count("prompt", params.prompt_logprobs, "prompt_logprobs", vocab_size, allowed)
    if params.prompt_logprob_token_ids is not None:
        _check_rows(params.prompt_logprob_token_ids, params.prompt_logprob_start, circumstances, allowed)
    elif params.prompt_logprob_start is not None:
        message = "prompt_logprob_start requires prompt_logprob_token_ids."
        raise ValidationError(message, parameter="prompt_logprob_start", value=params.prompt_logprob_start)


def check_logit_bias(params: SamplingParams, circumstances: Circumstances) -> None:
    """Refuse biases of no token. Raises ValidationError."""
    _check_vocabulary(params.logit_bias or (), "logit_bias", circumstances.vocab_size)


def check_ids(params: SamplingParams, circumstances: Circumstances) -> None:
    """Refuse to stop at no token, and to allow none. Raises ValidationError."""
    _check_vocabulary(params.stop_token_ids, "stop_token_ids", circumstances.vocab_size)
    if params.allowed_token_ids is not None:
        _check_allowed_token_ids(params.allowed_token_ids, circumstances.vocab_size)


def check_decoding(params: SamplingParams, circumstances: Circumstances) -> None:
    """Refuse what the server's way of decoding can't do. Raises ValidationError."""
    settings = circumstances.settings
    # Only above what counts as greedy does vLLM take min_p to be set.
    min_p = params.min_p > GREEDY_BELOW and not params.greedy
    if settings.speculative_config and (min_p or params.logit_bias):
        raise ValidationError(
            "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding."
        )
    if not settings.diffusion:
        return
    moved = (params.temperature != 1, min_p, params.seed is not None, params.min_tokens > 0)
    if any(moved) or params.logit_bias or params.bad_words or params.allowed_token_ids:
        raise ValidationError(
            "The temperature, min_p, seed, min_tokens, logit_bias, bad_words, and allowed_token_ids sampling "
            "parameters are not yet supported with diffusion models."
        )
    if circumstances.constraint:
        raise ValidationError(DIFFUSION)


def check_runner(params: SamplingParams, circumstances: Circumstances) -> None:
    """Refuse scores of chosen tokens of the prompt: one runner can't, the other isn't imitated in this."""
    if params.prompt_logprob_token_ids is None:
        return
    message = "prompt_logprob_token_ids is not supported by stubserver; use prompt_logprobs"
    if circumstances.settings.model_runner == "v1":
        message = "prompt_logprob_token_ids requires the V2 model runner (VLLM_USE_V2_MODEL_RUNNER=1)."
    raise ValidationError(message, parameter="prompt_logprob_token_ids")


def check_prompt_fields(params: SamplingParams, circumstances: Circumstances) -> None:
    """Refuse what this prompt is too short or too long for. Raises ValidationError."""
    start, prompt_len = params.routed_experts_prompt_start, circumstances.prompt_len
    if not 0 <= start <= prompt_len:
        raise ValidationError(
            f"routed_experts_prompt_start must be between 0 and the prompt length ({prompt_len}), inclusive.",
            parameter="routed_experts_prompt_start",
            value=start,
        )
    if params.min_tokens > params.max_tokens:
        raise ValidationError(_too_few_tokens(params))


def check_transport(params: SamplingParams) -> None:
    """Fail at what can't be handed to the engine. Raises GenerationError."""
    handed = [
        *(params.stream_interval, params.thinking_token_budget, params.repetition, params.stop, params.extra_args),
        *(() if params.greedy else (params.top_k,)),
    ]
    why = why_unsendable(handed)
    if why:
        raise GenerationError(why, code="unsaid")


def check_thinking(params: SamplingParams, circumstances: Circumstances) -> None:
    """Refuse a budget for thoughts where the server doesn't know thoughts. Raises ValidationError."""
    if params.thinking_token_budget is not None and not circumstances.settings.reasoning_parser:
        raise ValidationError(
            "thinking_token_budget is set but reasoning_config is not configured. Please set --reasoning-parser and/or "
            "--reasoning-config to use thinking_token_budget."
        )


def check_sampling_mask(params: SamplingParams, circumstances: Circumstances) -> None:
    """Fail at what a mask can't be returned for. Raises GenerationError.

    vLLM 0.32.0 raises a plain ValueError with these words in `v1/engine/input_processor.py`, inside of the engine's
    generate(), so that its HTTP server says no more than a 500 without a message; in a stream, as an event.
    """
    if not circumstances.settings.return_sampling_mask:
        return
    if params.temperature <= 0:
        raise GenerationError("sampling distribution replay requires temperature > 0", code="unsaid")
    # A greedy request's top_k is 0 by then, but it has been refused already.
    if params.top_k <= 0:
        raise GenerationError(
            "sampling distribution replay requires top_k > 0 to bound sampling mask size, reduce transfer overhead, "
            "and avoid potential OOMs",
            code="unsaid",
        )


def _check_count(kind: str, count: int | None, parameter: str, vocab_size: int, allowed: int) -> None:
    asked = vocab_size if count == -1 else count or 0
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


def _check_rows(rows: Sequence[Sequence[int]], start: int | None, circumstances: Circumstances, allowed: int) -> None:
    """Refuse rows of ids to score of a prompt. Raises ValidationError."""
    name = "prompt_logprob_token_ids"
    width, max_rows = max(map(len, rows), default=0), circumstances.settings.max_model_len - 1
    if not width:
        message = f"{name} must be a non-empty integer array of shape [num_rows, num_ids]."
        raise ValidationError(message, parameter=name, value="list")
    if len(rows) > max_rows:
        message = f"{name} has {len(rows)} rows, but a prompt has at most {max_rows} scored rows (max_model_len - 1)."
        raise ValidationError(message, parameter=name, value=len(rows))
    if width > allowed:
        message = (
            f"Requested {width} token ids per row in {name}, which is greater than max allowed: {allowed}. "
            f"Set max_logprobs (--max-logprobs) to at least {width}."
        )
        raise ValidationError(message, parameter=name, value=width)
    # Shorter rows are filled up with -1.
    ids = [token_id for row in rows for token_id in (*row, *([-1] if len(row) < width else ()))]
    if not all(-(2**63) <= token_id < 2**63 for token_id in ids):
        raise ValidationError(f"{name} must contain integer token ids.", parameter=name)
    if min(ids) < -1 or max(ids) >= circumstances.vocab_size:
        message = f"{name} contain out-of-vocab token ids (-1 pads a row). Vocabulary size: {circumstances.vocab_size}"
        raise ValidationError(message, parameter=name, value=[min(ids), max(ids)])
    if start is not None and start < 0:
        message = "prompt_logprob_start must be non-negative."
        raise ValidationError(message, parameter="prompt_logprob_start", value=start)


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
