"""One served model: everything that answers for it, put together once at start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from stubserver.engine.grammar import GrammarTokens
from stubserver.sampling.logprobs import LogprobsMode
from stubserver.sampling.pipeline import ModelRunner
from stubserver.sampling.processors import CustomProcessor
from stubserver.script.context import Script
from stubserver.tokenizer.hf import HFTokenizer


@dataclass
class Model:
    """A script with the tokenizer and the settings that it is served with. `default_sampling_params`: vLLM's names."""

    served_names: Sequence[str]
    tokenizer: HFTokenizer
    script: Script
    max_model_len: int = 4096
    max_logprobs: int = 20
    logprobs_mode: LogprobsMode = "raw_logprobs"
    model_runner: ModelRunner = "v2"
    default_sampling_params: Mapping[str, Any] = field(default_factory=dict)
    max_new_tokens: int | None = None
    custom_processors: Sequence[CustomProcessor] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        self._seeds = np.random.Generator(np.random.PCG64(self.seed % 2**128))

    @property
    def name(self) -> str:
        """The name that replies show."""
        return self.served_names[0]

    @property
    def vocab_size(self) -> int:
        """V: the length of a row of logits."""
        return self.script.vocab_size

    @cached_property
    def grammar_tokens(self) -> GrammarTokens:
        """For structured outputs."""
        return GrammarTokens(self.tokenizer, self.vocab_size)

    def next_seed(self) -> int:
        """For a choice whose request has no seed: another one each time, the same series in every run of the server."""
        return int(self._seeds.integers(2**63))
