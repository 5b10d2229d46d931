"""How to sample: the parameters of one prompt's generation, under vLLM's names. Who refuses which is a dialect's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

GREEDY_BELOW = 1e-5
"""A temperature below this samples greedily."""


class Repetition(NamedTuple):
    """Which repeats end an output: of patterns of these sizes (0 is 1), `min_count` times in a row at its end."""

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0


class ThinkingMarks(NamedTuple):
    """The tokens that begin a thought, and those that end it."""

    start: Sequence[int]
    end: Sequence[int]


@dataclass(slots=True, kw_only=True, eq=False)
class SamplingParams:
    """What one prompt's generation is made with, every default filled in.

    `logprobs` None returns none; -1 means the whole vocabulary. `bad_words_token_ids` are the token sequences that the
    `bad_words` stand for. `trace_decode_token_ids` are tokens that decoding has to follow. `stop_token_ids` end the
    generation; `min_tokens` keeps them and EOS masked until reached. `thinking_token_budget` are the tokens after
    which a thought is ended, `thinking_marks` how; without marks nothing is. `stream_interval`: tokens of a streamed
    piece.

    Of `detokenize`, `extra_args`, `routed_experts_prompt_start`, `prompt_logprob_token_ids` and `prompt_logprob_start`
    all that counts is whether they are refused.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: Sequence[int] | None = None
    allowed_token_ids: Sequence[int] | None = None
    logit_bias: Mapping[int, float] | None = None
    bad_words: Sequence[str] = ()
    bad_words_token_ids: Sequence[Sequence[int]] = ()
    trace_decode_token_ids: Sequence[int] | None = None
    thinking_token_budget: int | None = None
    thinking_marks: ThinkingMarks | None = None
    repetition: Repetition | None = None
    stream_interval: int | None = None
    detokenize: bool = True
    extra_args: Mapping[str, Any] | None = None
    routed_experts_prompt_start: int = 0
    prompt_logprob_token_ids: Sequence[Sequence[int]] | None = None
    prompt_logprob_start: int | None = None

    @property
    def greedy(self) -> bool:
        """Whether the best token is taken, top_p, top_k and min_p being off."""
        return self.temperature < GREEDY_BELOW

    @property
    def depends_on_output(self) -> bool:
        """Whether the tokens generated so far change what is made of the logits."""
        return bool(
            self.repetition_penalty != 1
            or self.frequency_penalty
            or self.presence_penalty
            or self.min_tokens
            or self.bad_words_token_ids
            or self.thinking_token_budget is not None
        )

    @property
    def wants_logprobs(self) -> bool:
        """Whether a step has to report values."""
        return self.logprobs is not None or bool(self.logprob_token_ids)
