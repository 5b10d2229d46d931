"""A model's vocabulary, as backends need it, and the backend that works for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from stubserver.engine.grammar import guidance, words, xgrammar
from stubserver.engine.grammar.constraint import Backend, Compiler, Constraint, Matcher
from stubserver.engine.grammar.vocabulary import Vocabulary
from stubserver.errors import UnsupportedError
from stubserver.tokenizer.hf import HFTokenizer


class GrammarTokens:
    """What grammars need of a model. Made once a model, when first needed.

    backend: the one that the engine works with; None until the first constraint. vLLM's engine keeps the backend that
    its first constraint was chosen for, and gives it all others too: what it can't do is an error then.
    """

    def __init__(self, tokenizer: HFTokenizer, vocab_size: int) -> None:
        self.vocabulary = Vocabulary(tokenizer, vocab_size)
        self.vocab_size = vocab_size
        self.backend: Backend | None = None

    def matcher(self, constraint: Constraint, stop_token_ids: Sequence[int]) -> Matcher:
        """Start an output. Raises GenerationError where vLLM's engine fails, UnsupportedError for limits of ours."""
        if self.backend is None:
            if constraint.backend == "outlines":
                raise UnsupportedError(words.NO_OUTLINES)
            self.backend = constraint.backend
        compiler = self._guidance if self.backend == "guidance" else self._xgrammar
        return compiler.matcher(constraint, stop_token_ids)

    @cached_property
    def _xgrammar(self) -> Compiler:
        return xgrammar.compiler(self.vocabulary)

    @cached_property
    def _guidance(self) -> Compiler:
        return guidance.GuidanceCompiler(self.vocabulary)
