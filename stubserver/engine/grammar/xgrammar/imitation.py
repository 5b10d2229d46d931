"""xgrammar's checks and masks without xgrammar: the same language, and llguidance to follow it without forcing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from stubserver.engine.grammar import words
from stubserver.engine.grammar.constraint import Constraint, Kind
from stubserver.engine.grammar.guidance import read_mask
from stubserver.engine.grammar.vocabulary import Vocabulary
from stubserver.engine.grammar.xgrammar.ebnf import ebnf_language
from stubserver.engine.grammar.xgrammar.json_schema import schema_language
from stubserver.engine.grammar.xgrammar.language import Language
from stubserver.engine.grammar.xgrammar.lark import HEAD, as_lark
from stubserver.engine.grammar.xgrammar.notation import is_lark
from stubserver.engine.grammar.xgrammar.regex import regex_language
from stubserver.engine.grammar.xgrammar.structural_tag import check_form
from stubserver.errors import GenerationError, UnsupportedError
from stubserver.memory import remembered
from stubserver.sampling.logits import Ids


def parse(kind: Kind, text: str) -> None:
    """Read a constraint. Raises LanguageError and others for what xgrammar wouldn't take, UnsupportedError for ours."""
    if kind == "structural_tag":
        check_form(text)
    _grammar(kind, text, False)


class ImitationCompiler:
    """llguidance over a vocabulary in which only EOS is special, as xgrammar has it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    @cached_property
    def _tokenizer(self) -> Any:
        eos = self._vocabulary.eos_token_id
        return self._vocabulary.llguidance([] if eos is None else [eos])

    def matcher(self, constraint: Constraint, stop_token_ids: Sequence[int]) -> ImitationMatcher:
        """Start an output. Raises GenerationError for what xgrammar can't compile."""
        try:
            grammar = _grammar(constraint.kind, constraint.spec, constraint.config.disable_any_whitespace)
        except Exception as error:
            raise GenerationError(words.ENGINE_FAILED) from error
        return ImitationMatcher(self._tokenizer, grammar, self._vocabulary, stop_token_ids)


@remembered(most=256)
def _grammar(kind: Kind, text: str, compact: bool) -> str:
    """The constraint as a grammar of llguidance. Raises ValueError for what xgrammar doesn't read."""
    match kind:
        case "regex":
            return as_lark(Language({"root": regex_language(text)}))
        case "json":
            return as_lark(schema_language(json.loads(text), compact=compact))
        case "json_object":
            return as_lark(schema_language({"type": "object"}, compact=compact))
        case "grammar" if is_lark(text):
            return _read_lark(text)
        case "grammar":
            return as_lark(ebnf_language(text))
        case _:
            raise ValueError(f"xgrammar gets no constraint of kind {kind}")


def _read_lark(text: str) -> str:
    from llguidance import LLMatcher

    if text.lstrip().startswith("%llguidance"):
        raise ValueError("Lark parsing error: %llguidance is not supported")
    problem = LLMatcher.validate_grammar(HEAD + "\n" + text, None)
    if problem:
        raise ValueError(problem)
    return HEAD + "\n" + text


class ImitationMatcher:
    """llguidance's state of one output, with stop tokens as xgrammar has them: they come at the end, and only there."""

    def __init__(self, tokenizer: Any, grammar: str, vocabulary: Vocabulary, stop_token_ids: Sequence[int]) -> None:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(
            initial_lexer_fuel=20_000_000,
            step_lexer_fuel=1_000_000,
            max_lexer_states=1_000_000,
        )
        self._matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        self._eos = vocabulary.eos_token_id
        self._vocab_size = vocabulary.size
        self._stops = np.unique(np.array([*stop_token_ids] or [self._eos or 0], dtype=np.int64))
        self._ended = False
        self._check()

    def _check(self) -> None:
        problem = self._matcher.get_error()
        if problem and not problem.startswith("NoExtension"):
            raise UnsupportedError(words.GAVE_UP.format(error=problem.partition("\n")[0]))

    def _may_end(self) -> bool:
        return bool(self._matcher.is_accepting())

    def allowed(self) -> Ids:
        """The tokens that may come next, ascending."""
        allowed = read_mask(self._matcher, self._vocab_size) if not self._matcher.is_stopped() else np.array([], int)
        self._check()
        others = np.setdiff1d(allowed, self._ends)
        return np.union1d(others, self._stops) if self._may_end() else others

    @cached_property
    def _ends(self) -> Ids:
        return self._stops if self._eos is None else np.union1d(self._stops, np.array([self._eos], dtype=np.int64))

    def accept(self, token_id: int) -> bool:
        """Go on by a token. False if it can't come next."""
        if token_id in self._ends:
            self._ended = self._may_end() and token_id in self._stops
            return self._ended
        if self._matcher.is_stopped() or not self._matcher.try_consume_tokens([token_id]):
            self._check()
            return False
        return True

    def is_over(self) -> bool:
        """Whether a stop token came."""
        return self._ended
