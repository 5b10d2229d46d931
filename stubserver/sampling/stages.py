"""From raw to processed logits: which operation follows which, as data.

    logits ─ (grammar mask, in the engine) ─ raw values are taken here
           ─ LOGIT_STAGES[runner]   masks, biases, penalties: what may change which token is best
           ─ SAMPLING_STAGES        temperature, min_p, top_k, top_p: left out when sampling greedily
           ─ processed values are taken here ─ the token is drawn

Orders read in vLLM 0.32.0: `v1/sample/sampler.py` (Model Runner V1) and `v1/worker/gpu/sample/` (V2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from stubserver.sampling import processors as ops
from stubserver.sampling.logits import Logits
from stubserver.sampling.params import SamplingParams

ModelRunner = Literal["v1", "v2"]


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


def _allowed_token_ids(logits: Logits, params: SamplingParams, state: StepState) -> Logits:
    if params.allowed_token_ids is None:
        return logits
    return ops.apply_allowed_token_ids(logits, params.allowed_token_ids)


def _bad_words(logits: Logits, params: SamplingParams, state: StepState) -> Logits:
    if not params.bad_words_token_ids:
        return logits
    return ops.apply_bad_words(logits, params.bad_words_token_ids, state.output_token_ids)


def _min_tokens(logits: Logits, params: SamplingParams, state: StepState) -> Logits:
    if len(state.output_token_ids) >= params.min_tokens:
        return logits
    return ops.apply_min_tokens(logits, state.ending_token_ids, state.constrained)


def _logit_bias(logits: Logits, params: SamplingParams, state: StepState) -> Logits:
    return ops.apply_logit_bias(logits, params.logit_bias) if params.logit_bias else logits


def _custom(logits: Logits, params: SamplingParams, state: StepState) -> Logits:
    for processor in state.custom_processors:
        logits = ops.apply_custom_processor(logits, processor)
    return logits


def _repetition_penalty(logits: Logits, params: SamplingParams, state: StepState) -> Logits:
    if params.repetition_penalty == 1:
        return logits
    seen = (*state.prompt_token_ids, *state.output_token_ids)
    return ops.apply_repetition_penalty(logits, params.repetition_penalty, seen)


def _frequency_penalty(logits: Logits, params: SamplingParams, state: StepState) -> Logits:
    if params.frequency_penalty == 0:
        return logits
    return ops.apply_frequency_penalty(logits, params.frequency_penalty, state.output_token_ids)


def _presence_penalty(logits: Logits, params: SamplingParams, state: StepState) -> Logits:
    if params.presence_penalty == 0:
        return logits
    return ops.apply_presence_penalty(logits, params.presence_penalty, state.output_token_ids)


def _temperature(logits: Logits, params: SamplingParams, state: StepState) -> Logits:
    return ops.apply_temperature(logits, params.temperature) if params.temperature != 1 else logits


def _min_p(logits: Logits, params: SamplingParams, state: StepState) -> Logits:
    return ops.apply_min_p(logits, params.min_p) if params.min_p > 0 else logits


def _top_k(logits: Logits, params: SamplingParams, state: StepState) -> Logits:
    return ops.apply_top_k(logits, params.top_k) if params.top_k > 0 else logits


def _top_p(logits: Logits, params: SamplingParams, state: StepState) -> Logits:
    return ops.apply_top_p(logits, params.top_p) if params.top_p < 1 else logits


PENALTIES: tuple[Stage, ...] = (_repetition_penalty, _frequency_penalty, _presence_penalty)

LOGIT_STAGES: dict[ModelRunner, tuple[Stage, ...]] = {
    # A penalty scales what a bias or a custom processor adds, so their order shows in the values.
    "v1": (_allowed_token_ids, _bad_words, _min_tokens, _logit_bias, _custom, *PENALTIES),
    # V2 runs custom processors last: what they add is not penalised.
    "v2": (_allowed_token_ids, _logit_bias, _min_tokens, *PENALTIES, _bad_words, _custom),
}

SAMPLING_STAGES: tuple[Stage, ...] = (_temperature, _min_p, _top_k, _top_p)


LARGEST_KEPT = 4096
"""Unmasked tokens of a result that is kept: label reads, not whole vocabularies."""


def process_logits(raw: Logits, params: SamplingParams, state: StepState, runner: ModelRunner) -> Logits:
    """Raw → processed logits of one step.

    What a shared row becomes by the same parameters is worked out once, where nothing else counts, and kept by them.
    """
    if raw.kept is None or params.depends_on_output or state.custom_processors:
        return _run_stages(raw, params, state, runner)
    processed: Logits | None = raw.kept.get(params)
    if processed is None:
        processed = _run_stages(raw, params, state, runner)
        if len(processed.values) <= LARGEST_KEPT:
            raw.kept.keep(params, processed if processed is raw else processed.shared())
    return processed


def _run_stages(raw: Logits, params: SamplingParams, state: StepState, runner: ModelRunner) -> Logits:
    stages = LOGIT_STAGES[runner] if params.greedy else LOGIT_STAGES[runner] + SAMPLING_STAGES
    logits = raw
    for stage in stages:
        logits = stage(logits, params, state)
    return logits
