"""From raw to processed logits: the stages, each an operation with the parameters that it takes from a request.

Which stages follow which is data of a server's behaviour (engine/behaviour.py); they run in the order that it gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from stubserver.sampling import processors as ops
from stubserver.sampling.logits import Logits
from stubserver.sampling.params import SamplingParams
from stubserver.sampling.thinking import find_forced_end


class StepState(NamedTuple):
    """What a stage may know besides the parameters.

    ending_token_ids: EOS and the stop ids, masked while fewer than min_tokens tokens are out.
    constrained: whether a grammar masked the logits.
    """

    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    ending_token_ids: Sequence[int] = ()
    constrained: bool = False
    custom_processors: Sequence[ops.CustomProcessor] = ()


Stage = Callable[[Logits, SamplingParams, StepState], Logits]


def allowed_token_ids(logits: Logits, params: SamplingParams, state: StepState) -> Logits:
    """Mask every token but the allowed ones."""
    if params.allowed_token_ids is None:
        return logits
    return ops.apply_allowed_token_ids(logits, params.allowed_token_ids)


def bad_words(logits: Logits, params: SamplingParams, state: StepState) -> Logits:
    """Mask what would complete a bad word."""
    if not params.bad_words_token_ids:
        return logits
    return ops.apply_bad_words(logits, params.bad_words_token_ids, state.output_token_ids)


def min_tokens(logits: Logits, params: SamplingParams, state: StepState) -> Logits:
    """Mask what would end an output that is too short."""
    if len(state.output_token_ids) >= params.min_tokens:
        return logits
    return ops.apply_min_tokens(logits, state.ending_token_ids, state.constrained)


def logit_bias(logits: Logits, params: SamplingParams, state: StepState) -> Logits:
    """Add the tokens' biases."""
    return ops.apply_logit_bias(logits, params.logit_bias) if params.logit_bias else logits


def custom(logits: Logits, params: SamplingParams, state: StepState) -> Logits:
    """Run the server's custom logits processors."""
    for processor in state.custom_processors:
        logits = ops.apply_custom_processor(logits, processor)
    return logits


def repetition_penalty(logits: Logits, params: SamplingParams, state: StepState) -> Logits:
    """Make tokens of the prompt and the output less likely."""
    if params.repetition_penalty == 1:
        return logits
    seen = (*state.prompt_token_ids, *state.output_token_ids)
    return ops.apply_repetition_penalty(logits, params.repetition_penalty, seen)


def frequency_penalty(logits: Logits, params: SamplingParams, state: StepState) -> Logits:
    """Make tokens of the output less likely, for each time that they are there."""
    if params.frequency_penalty == 0:
        return logits
    return ops.apply_frequency_penalty(logits, params.frequency_penalty, state.output_token_ids)


def presence_penalty(logits: Logits, params: SamplingParams, state: StepState) -> Logits:
    """Make tokens of the output less likely."""
    if params.presence_penalty == 0:
        return logits
    return ops.apply_presence_penalty(logits, params.presence_penalty, state.output_token_ids)


def thinking_budget(logits: Logits, params: SamplingParams, state: StepState) -> Logits:
    """Make the next token of a thought's end the best one by far, once the budget for the thought is spent."""
    if params.thinking_token_budget is None or params.thinking_marks is None:
        return logits
    forced = find_forced_end(
        params.thinking_marks, params.thinking_token_budget, [*state.prompt_token_ids, *state.output_token_ids]
    )
    return logits if forced is None else ops.apply_forced_token(logits, forced)


def temperature(logits: Logits, params: SamplingParams, state: StepState) -> Logits:
    """Divide by the temperature."""
    return ops.apply_temperature(logits, params.temperature) if params.temperature != 1 else logits


def min_p(logits: Logits, params: SamplingParams, state: StepState) -> Logits:
    """Mask what is far less probable than the best token."""
    return ops.apply_min_p(logits, params.min_p) if params.min_p > 0 else logits


def top_k(logits: Logits, params: SamplingParams, state: StepState) -> Logits:
    """Mask all but the k best tokens."""
    return ops.apply_top_k(logits, params.top_k) if params.top_k > 0 else logits


def top_p(logits: Logits, params: SamplingParams, state: StepState) -> Logits:
    """Mask the tail of the distribution."""
    return ops.apply_top_p(logits, params.top_p) if params.top_p < 1 else logits


LARGEST_REMEMBERED = 4096
"""Unmasked tokens of a result that is remembered: label reads, not whole vocabularies."""


def process_logits(raw: Logits, params: SamplingParams, state: StepState, stages: Sequence[Stage]) -> Logits:
    """Raw → processed logits of one step.

    What a row that comes again becomes by the same parameters is worked out once, where nothing else counts.
    """
    if raw.memo is None or params.depends_on_output or state.custom_processors:
        return run(stages, raw, params, state)
    processed = raw.memo.processed.find(params)
    if processed is None:
        processed = run(stages, raw, params, state)
        if len(processed.values) <= LARGEST_REMEMBERED:
            raw.memo.processed.keep(params, processed if processed is raw else processed.shared())
    return processed


def run(stages: Sequence[Stage], logits: Logits, params: SamplingParams, state: StepState) -> Logits:
    """The logits after all stages, one after the other."""
    for stage in stages:
        logits = stage(logits, params, state)
    return logits
