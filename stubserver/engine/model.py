"""One served model: everything that answers for it, put together once at start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from stubserver.config.settings import Settings
from stubserver.engine.behaviour import Behaviour
from stubserver.engine.stats import Stats
from stubserver.sampling.processors import CustomProcessor
from stubserver.script.context import Script
from stubserver.script.embeddings import Embeddings
from stubserver.tokenizer.hf import HFTokenizer

if TYPE_CHECKING:
    from stubserver.engine.grammar.tokens import GrammarTokens


@dataclass(eq=False)
class Model:
    """A script with the tokenizer and the settings that it is served with, by a server of this behaviour.

    stats: what it has done so far.
    """

    settings: Settings
    tokenizer: HFTokenizer
    script: Script
    behaviour: Behaviour
    custom_processors: Sequence[CustomProcessor] = ()
    embeddings: Embeddings = field(default_factory=Embeddings)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Counters and seeds as at start."""
        self._seeds: np.random.Generator | None = None
        self.stats = Stats(self.settings.max_model_len, self.behaviour.finish_reasons)
        if "grammar_tokens" in self.__dict__:
            self.grammar_tokens.backend = None

    @cached_property
    def name(self) -> str:
        """The name that replies show."""
        return self.settings.served_model_name[0]

    @cached_property
    def vocab_size(self) -> int:
        """V: the length of a row of logits."""
        return self.script.vocab_size

    @cached_property
    def prompt_vocab_size(self) -> int:
        """How many token ids a prompt may have: the tokenizer may know some for which there is no logit."""
        return max(self.vocab_size, self.tokenizer.vocab_size)

    @cached_property
    def default_sampling_params(self) -> dict[str, Any]:
        """What requests get that leave a field out."""
        return self.settings.override_generation_config.model_dump(exclude_none=True, exclude={"max_new_tokens"})

    @cached_property
    def max_new_tokens(self) -> int | None:
        """The server's own cap on max_tokens."""
        return self.settings.override_generation_config.max_new_tokens

    @cached_property
    def grammar_tokens(self) -> GrammarTokens:
        """For structured outputs; loaded with the first of them, as all grammars are."""
        from stubserver.engine.grammar.tokens import GrammarTokens

        return GrammarTokens(self.tokenizer, self.vocab_size)

    @cached_property
    def system_fingerprint(self) -> str:
        """The server, its version, and a digest of how it is set up."""
        setup = self.settings.model_dump_json(exclude={"api_key"})
        return f"{self.behaviour.server}-{self.behaviour.version}-{blake2b(setup.encode(), digest_size=4).hexdigest()}"

    def next_seed(self) -> int:
        """For a choice whose request has no seed: another one each time, the same series in every run of the server."""
        if self._seeds is None:  # not at start: numpy.random is slow to load
            self._seeds = np.random.Generator(np.random.PCG64(self.settings.seed % 2**128))
        return int(self._seeds.integers(2**63))
