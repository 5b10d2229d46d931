"""Masks by the library xgrammar. Source of how vLLM 0.32.0 calls it: `v1/structured_output/backend_xgrammar.py`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from stubserver.engine.grammar import words
from stubserver.engine.grammar.constraint import Constraint, Kind
from stubserver.engine.grammar.vocabulary import Vocabulary
from stubserver.engine.grammar.xgrammar.bindings import load_bindings
from stubserver.engine.grammar.xgrammar.notation import is_lark
from stubserver.engine.grammar.xgrammar.structural_tag import as_format
from stubserver.errors import GenerationError
from stubserver.sampling.logits import Ids

RAW = 0
"""The type of a vocabulary whose tokens are given as bytes."""


def parse(kind: Kind, text: str) -> None:
    """Read a constraint, without compiling it. Raises RuntimeError with xgrammar's words."""
    grammar = _bindings().Grammar
    match kind:
        case "regex":
            grammar.from_regex(text, False)
        case "json":
            grammar.from_json_schema(text, True, None, None, True, None, False, False)
        case "structural_tag":
            grammar.from_structural_tag(as_format(text))
        case _ if is_lark(text):
            grammar.from_lark(text, None, [], [])
        case _:
            grammar.from_ebnf(text, "root")


class LibraryCompiler:
    """xgrammar's compiler for a vocabulary; it keeps what it has compiled."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    @cached_property
    def _compiler(self) -> Any:
        eos = self._vocabulary.eos_token_id
        tokens = self._vocabulary.tokens
        info = _bindings().TokenizerInfo(tokens, RAW, len(tokens), None if eos is None else [eos], False)
        return _bindings().GrammarCompiler(info, 1, True, 512 * 1024 * 1024)

    def matcher(self, constraint: Constraint, stop_token_ids: Sequence[int]) -> LibraryMatcher:
        """Start an output. Raises GenerationError for what xgrammar can't compile."""
        try:
            compiled = self._compiled(constraint)
            stops = sorted(set(stop_token_ids)) or None
            state = _bindings().GrammarMatcher(compiled, stops, False, 0, None)
        except Exception as error:
            raise GenerationError(words.ENGINE_FAILED) from error
        return LibraryMatcher(state, self._vocabulary.size)

    def _compiled(self, constraint: Constraint) -> Any:
        spec, compact = constraint.spec, constraint.config.disable_any_whitespace
        match constraint.kind:
            case "json" | "json_object":
                schema = spec if constraint.kind == "json" else '{"type": "object"}'
                separators = [",", ":"] if compact else None
                return self._compiler.compile_json_schema(schema, not compact, None, separators, True, None, False)
            case "regex":
                return self._compiler.compile_regex(spec)
            case "structural_tag":
                return self._compiler.compile_structural_tag(as_format(spec))
            case "grammar" if is_lark(spec):
                return self._compiler.compile_lark(spec, [], [])
            case "grammar":
                return self._compiler.compile_grammar_from_strings(spec, "root")
            case _:
                raise ValueError(f"xgrammar gets no constraint of kind {constraint.kind}")


class LibraryMatcher:
    """xgrammar's state of one output."""

    def __init__(self, state: Any, vocab_size: int) -> None:
        self._state = state
        self._vocab_size = vocab_size

    def allowed(self) -> Ids | None:
        """The tokens that may come next, ascending; None for every token."""
        bitmask = np.full((1, (self._vocab_size + 31) // 32), -1, dtype=np.int32)
        if not self._state.fill_next_token_bitmask(bitmask, 0, False):
            return None
        return np.flatnonzero(np.unpackbits(bitmask.view(np.uint8), bitorder="little", count=self._vocab_size))

    def accept(self, token_id: int) -> bool:
        """Go on by a token. False if it can't come next."""
        return bool(self._state.accept_token(token_id, False))

    def is_over(self) -> bool:
        """Whether a stop token came."""
        return bool(self._state.is_terminated())


def _bindings() -> Any:
    bindings = load_bindings()
    assert bindings is not None
    return bindings
