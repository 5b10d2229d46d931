"""The terms of a generation: what it is made under, whatever the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stubserver.config import Settings
from stubserver.engine.grammar import Constraint, compile_constraint
from stubserver.engine.grammar.words import DIFFUSION
from stubserver.engine.model import Model
from stubserver.engine.trace_replay import check_enabled, check_trace
from stubserver.errors import ValidationError
from stubserver.sampling.params import SamplingParams, check_model
from stubserver.sampling.pipeline import StepState
from stubserver.sampling.sampling_mask import check_sampling_mask


class Terms:
    """A model, parameters and a constraint, with what follows from them; worked out once for requests that agree in it.

    constraint: (kind, value) of structured outputs. grammar: the same as engines take it, once the terms are
    checked.
    ending_token_ids: EOS and the stop ids: what is masked while fewer than min_tokens tokens are out.
    stop_reasons: token id → the stop reason of a choice that ends with it. vLLM looks for EOS first, which has none.
    reported: what tells one report of the same logits from another: the mode and which tokens are asked for; None if
    no logprobs are.
    """

    __slots__ = (
        *("accepted", "constraint", "ending_token_ids", "grammar", "greedy", "model", "params", "reported"),
        *("reports_raw", "returns_mask", "stop_reasons"),
    )

    def __init__(self, model: Model, params: SamplingParams, constraint: tuple[str, Any] | None = None) -> None:
        mode, eos = model.settings.logprobs_mode, model.tokenizer.eos_token_id
        self.model = model
        self.params = params
        self.constraint = constraint
        self.grammar: Constraint | None = None
        self.greedy = params.greedy
        self.ending_token_ids = [*params.stop_token_ids, *([] if eos is None else [eos])]
        self.stop_reasons: dict[int, int | None] = {token_id: token_id for token_id in params.stop_token_ids}
        if eos is not None and not params.ignore_eos:
            self.stop_reasons[eos] = None
        self.reported = (
            (mode, params.logprobs, tuple(params.logprob_token_ids or ())) if params.wants_logprobs else None
        )
        self.reports_raw = mode.startswith("raw")
        self.returns_mask = model.settings.return_sampling_mask
        self.accepted = False

    def state(self, prompt_token_ids: Sequence[int], output_token_ids: Sequence[int]) -> StepState:
        """What the pipeline may know of a step after these tokens."""
        processors = self.model.custom_processors
        return StepState(
            prompt_token_ids, output_token_ids, self.ending_token_ids, self.grammar is not None, processors
        )

    def check(self) -> None:
        """Refuse what this model can't do. Raises ValidationError. Terms that are `accepted` need no other check."""
        model, params, settings = self.model, self.params, self.model.settings
        check_model(params, model.vocab_size, settings.max_logprobs)
        check_thinking(params, settings)
        check_trace(params, model, constrained=self.constraint is not None)
        if self.constraint and settings.diffusion:
            raise ValidationError(DIFFUSION)
        if self.constraint:
            self.grammar = compile_constraint(*self.constraint, settings.structured_outputs_config)
        if settings.return_sampling_mask:
            check_sampling_mask(params)
        check_enabled(params, settings)
        self.accepted = True


def check_thinking(params: SamplingParams, settings: Settings) -> None:
    """Refuse a budget for thoughts where the server doesn't know thoughts. Raises ValidationError."""
    if params.thinking_token_budget is not None and not settings.reasoning_parser:
        raise ValidationError(
            "thinking_token_budget is set but reasoning_config is not configured. Please set --reasoning-parser and/or "
            "--reasoning-config to use thinking_token_budget."
        )
