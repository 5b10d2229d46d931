"""What a generation is asked for, and the terms on which it then runs, whatever the prompt says."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from stubserver.engine.behaviour import Circumstances, RequestedConstraint
from stubserver.engine.grammar.constraint import Constraint
from stubserver.engine.model import Model
from stubserver.engine.waiting import Waiting
from stubserver.sampling.params import SamplingParams
from stubserver.sampling.stages import StepState

if TYPE_CHECKING:
    from stubserver.engine.grammar.matching import Grammar


class EngineRequest:
    """What an endpoint asks of the engine, for a prompt of this length; one for requests that agree in all of it.

    constraint: of structured outputs. The engine looks at it when it takes the request: `terms`. waiting: what has to
    come before it holds. keeps_to_recorded: whether values may rest on nothing but what was recorded, or have to say
    so.
    """

    def __init__(
        self,
        model: Model,
        params: SamplingParams,
        constraint: RequestedConstraint | None = None,
        *,
        prompt_len: int,
        waiting: Waiting | None = None,
    ) -> None:
        self.model = model
        self.params = params
        self.constraint = constraint
        self.prompt_len = prompt_len
        self.waiting = waiting
        self.keeps_to_recorded = model.settings.unrecorded != "allow"

    @cached_property
    def grammar(self) -> Constraint | None:
        """The constraint, compiled, of parameters that passed. Raises RequestError for what this model can't do."""
        behaviour = self.model.behaviour
        for check in behaviour.checks:
            check(self.params, self._circumstances)
        grammar = None
        if self.constraint is not None:
            grammar = behaviour.compile_constraint(*self.constraint, self.model.settings)
        for check in behaviour.late_checks:
            check(self.params, self._circumstances)
        return grammar

    @cached_property
    def terms(self) -> Terms:
        """The terms, once the prompt is taken. Raises RequestError; each time anew."""
        grammar = self.grammar
        return Terms(self.model, self.model.behaviour.adapt(self.params, self._circumstances), grammar)

    @cached_property
    def _circumstances(self) -> Circumstances:
        model = self.model
        return Circumstances(model.settings, model.vocab_size, self.constraint, self.prompt_len, model.tokenizer)


class Terms:
    """A model, parameters that it can take and a compiled grammar, with what follows from them.

    ending_token_ids: EOS and the stop ids: what is masked while fewer than min_tokens tokens are out.
    stop_reasons: token id → the stop reason of a choice that ends with it. EOS, which has none, is looked for first.
    reported: what tells one report of the same logits from another: the mode and which tokens are asked for; None if
    no logprobs are.
    """

    __slots__ = (
        *("ending_token_ids", "grammar", "greedy", "mode", "model", "params", "reported", "reports_raw"),
        *("returns_mask", "stages", "stop_reasons"),
    )

    def __init__(self, model: Model, params: SamplingParams, grammar: Constraint | None = None) -> None:
        behaviour, eos = model.behaviour, model.tokenizer.eos_token_id
        self.model = model
        self.params = params
        self.grammar = grammar
        self.greedy = params.greedy
        self.stages = behaviour.stages(params, model.settings)
        self.mode = behaviour.mode(params, model.settings)
        self.reports_raw = self.mode.startswith("raw")
        self.returns_mask = model.settings.return_sampling_mask
        self.ending_token_ids = [*params.stop_token_ids, *([] if eos is None else [eos])]
        self.stop_reasons: dict[int, int | None] = {token_id: token_id for token_id in params.stop_token_ids}
        if eos is not None and not params.ignore_eos:
            self.stop_reasons[eos] = None
        wanted = tuple(params.logprob_token_ids or ())
        self.reported = (self.mode, params.logprobs, wanted) if params.wants_logprobs else None

    def start_grammar(self) -> Grammar | None:
        """One choice's way through the constraint, if there is one."""
        if self.grammar is None:
            return None
        from stubserver.engine.grammar.matching import Grammar

        return Grammar(self.grammar, self.model.grammar_tokens, self.ending_token_ids)

    def state(self, prompt_token_ids: Sequence[int], output_token_ids: Sequence[int]) -> StepState:
        """What the stages may know of a step after these tokens."""
        processors = self.model.custom_processors
        return StepState(
            prompt_token_ids, output_token_ids, self.ending_token_ids, self.grammar is not None, processors
        )
