"""vLLM's behaviour as records, one a version: what the engine does for it, in which order, and what it refuses.

Orders read in vLLM 0.32.0: `v1/sample/sampler.py` (Model Runner V1) and `v1/worker/gpu/sample/` (V2).
"""

from __future__ import annotations

from typing import Any

from stubserver.config.settings import ModelRunner, Settings
from stubserver.dialects.vllm.checks import check_diffusion, check_model, check_sampling_mask, check_thinking
from stubserver.dialects.vllm.trace_replay import check_enabled, check_trace, follow_trace
from stubserver.engine.behaviour import Behaviour
from stubserver.engine.grammar.constraint import Constraint
from stubserver.sampling import stages
from stubserver.sampling.logprobs import LogprobsMode
from stubserver.sampling.params import SamplingParams
from stubserver.sampling.stages import Stage

_PENALTIES: tuple[Stage, ...] = (stages.repetition_penalty, stages.frequency_penalty, stages.presence_penalty)

_LOGIT_STAGES: dict[ModelRunner, tuple[Stage, ...]] = {
    "v1": (
        *(stages.allowed_token_ids, stages.bad_words, stages.min_tokens, stages.logit_bias),
        # A penalty scales what a bias or a custom processor adds, so their order shows in the values.
        *(stages.custom, *_PENALTIES),
    ),
    "v2": (
        *(stages.allowed_token_ids, stages.logit_bias, stages.min_tokens),
        # V2 runs custom processors last: what they add is not penalised.
        *(*_PENALTIES, stages.bad_words, stages.custom),
    ),
}

_SAMPLING_STAGES: tuple[Stage, ...] = (stages.temperature, stages.min_p, stages.top_k, stages.top_p)


def _stages(params: SamplingParams, settings: Settings) -> tuple[Stage, ...]:
    """Masks, biases, penalties; then what shapes the distribution that is drawn from, of which greedy has no use."""
    return _LOGIT_STAGES[settings.model_runner] + (() if params.greedy else _SAMPLING_STAGES)


def _compile_constraint(kind: str, value: Any, settings: Settings) -> Constraint:
    """Loaded with the first constraint, for few requests have one."""
    from stubserver.dialects.vllm.structured_outputs import compile_constraint

    return compile_constraint(kind, value, settings)


def _mode(params: SamplingParams, settings: Settings) -> LogprobsMode:
    """The server's setting, whatever the request."""
    return settings.logprobs_mode


VLLM_0_32_0 = Behaviour(
    server="vllm",
    version="0.32.0",
    stages=_stages,
    mode=_mode,
    checks=(check_model, check_thinking, check_trace, check_diffusion),
    compile_constraint=_compile_constraint,
    late_checks=(check_sampling_mask, check_enabled),
    adapt=follow_trace,
    finish_reasons=("stop", "length", "abort", "error", "repetition"),
    sentinel=-9999.0,
)
