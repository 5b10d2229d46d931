"""Trace replay: decoding follows the tokens of `trace_decode_token_ids`, with the logprobs that they really have.

Source of the facts: vLLM 0.32.0, `sampling_params.py` and `v1/engine/input_processor.py`. Those raise a plain
ValueError for all combinations, of which vLLM's HTTP server makes a 500 without a message: the words are for the log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stubserver.engine.behaviour import Circumstances
from stubserver.errors import GenerationError, ValidationError
from stubserver.sampling.params import SamplingParams

_COMBINATIONS: tuple[tuple[Callable[[SamplingParams], bool], str], ...] = (
    (lambda p: not p.trace_decode_token_ids, "trace_decode_token_ids must be a non-empty list."),
    (lambda p: p.n != 1, "trace_decode_token_ids requires n=1."),
    (
        lambda p: any(token_id < 0 for token_id in p.trace_decode_token_ids or ()),
        "trace_decode_token_ids must contain non-negative integers.",
    ),
    *(
        (lambda p, name=name: getattr(p, name) is not None, f"trace_decode_token_ids is not supported with {name}.")
        for name in ("prompt_logprobs", "prompt_logprob_token_ids")
    ),
)


def check_trace(params: SamplingParams, circumstances: Circumstances) -> None:
    """Fail at a trace with what it doesn't go with, enabled or not. Raises GenerationError, or ValidationError."""
    if params.trace_decode_token_ids is None:
        return
    for refused, words in _COMBINATIONS:
        if refused(params):
            raise GenerationError(words, code="unsaid")
    others = {
        "speculative decoding": bool(circumstances.settings.speculative_config),
        "structured outputs": circumstances.constraint is not None,
        "repetition_detection": params.repetition is not None,
        "thinking_token_budget": params.thinking_token_budget is not None,
        "bad_words": bool(params.bad_words),
    }
    for name, is_set in others.items():
        if is_set:
            raise GenerationError(f"trace_decode_token_ids is not supported with {name}.", code="unsaid")
    vocab_size = circumstances.vocab_size
    outside = [token_id for token_id in params.trace_decode_token_ids if token_id >= vocab_size]
    if outside:
        message = (
            f"token_id(s) {outside} in trace_decode_token_ids contain out-of-vocab token ids. "
            f"Vocabulary size: {vocab_size}"
        )
        raise ValidationError(message, parameter="trace_decode_token_ids", value=outside)


def check_enabled(params: SamplingParams, circumstances: Circumstances) -> None:
    """Refuse a trace unless the server accepts them. Raises ValidationError."""
    if params.trace_decode_token_ids and not circumstances.settings.enable_trace_replay:
        raise ValidationError(
            "trace_decode_token_ids is set but trace replay is not enabled. Start the engine with "
            "--enable-trace-replay to use it."
        )


def follow_trace(params: SamplingParams, circumstances: Circumstances) -> SamplingParams:
    """The parameters under which a trace is followed to its end: nothing but a length stops it."""
    if not params.trace_decode_token_ids:
        return params
    trace = list(params.trace_decode_token_ids)[: circumstances.settings.max_model_len - circumstances.prompt_len]
    return replace(
        params,
        trace_decode_token_ids=trace,
        max_tokens=min(len(trace), params.max_tokens),
        min_tokens=0,
        ignore_eos=True,
        stop=(),
        stop_token_ids=(),
    )
