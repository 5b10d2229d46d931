"""Structured outputs: what a constraint means, and the mask that it puts on the logits before anything else.

The grammar engine is llguidance, loaded only when a request asks for a constraint.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from stubserver.errors import ValidationError
from stubserver.sampling.logits import Logits
from stubserver.tokenizer.hf import HFTokenizer


def compile_constraint(kind: str, spec: Any) -> str:
    """A constraint of a request → an llguidance grammar.

    kind: "json" (a schema, as object or text), "json_object", "regex", "choice" (a list of texts) or "grammar" (Lark,
    or GBNF/EBNF with `::=`). Raises ValidationError, with the grammar engine's words, if it can't be compiled.
    """
    from llguidance import LLMatcher, grammar_from

    try:
        match kind:
            case "json":
                grammar = grammar_from("json", spec if isinstance(spec, str) else json.dumps(spec))
            case "json_object":
                grammar = grammar_from("json", '{"type": "object"}')
            case "choice":
                grammar = grammar_from("choice", json.dumps(list(spec)))
            case "regex":
                grammar = grammar_from("regex", spec)
            case _:
                grammar = grammar_from("grammar", spec)
    except (ValueError, KeyError, TypeError) as error:
        raise _invalid(f"Invalid grammar specification: {error}") from error
    problem = LLMatcher.validate_grammar(grammar, None)
    if problem:
        raise _invalid(f"Grammar error: {problem.strip()}")
    return grammar


def _invalid(detail: str) -> ValidationError:
    return ValidationError(detail, code="invalid_grammar", detail=detail)


class GrammarTokens:
    """The vocabulary as the grammar engine sees it: the bytes of every token. Made once a model, when first needed."""

    def __init__(self, tokenizer: HFTokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.eos_token_id = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else vocab_size - 1
        self.bos_token_id = None
        self.special_token_ids: Sequence[int] = sorted(tokenizer.special_token_ids)

    @cached_property
    def tokens(self) -> list[bytes]:
        """Bytes of each id; ids that the tokenizer doesn't know have none, so no grammar allows them."""
        known = self._tokenizer.vocab_size
        return [self._tokenizer.token_bytes(i) if i < known else b"" for i in range(self.vocab_size)]

    def __call__(self, text: str | bytes) -> list[int]:
        """Tokenize, as the grammar engine asks for it."""
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self._tokenizer.encode(text, add_special_tokens=False)

    @cached_property
    def engine_tokenizer(self) -> Any:
        """llguidance's tokenizer over this vocabulary."""
        from llguidance import LLTokenizer, TokenizerWrapper

        return LLTokenizer(TokenizerWrapper(self), n_vocab=self.vocab_size)


class Grammar:
    """One choice's way through a grammar."""

    def __init__(self, grammar: str, tokens: GrammarTokens) -> None:
        from llguidance import LLMatcher

        self._tokens = tokens
        self._matcher = LLMatcher(tokens.engine_tokenizer, grammar, log_level=0)
        self._ended = False

    def apply(self, logits: Logits) -> Logits:
        """Mask every token that can't come next; after the end of the grammar only EOS can."""
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

        if self._ended:
            return logits
        bitmask = allocate_token_bitmask(1, self._tokens.vocab_size)
        fill_next_token_bitmask(self._matcher, bitmask)
        allowed = np.unpackbits(bitmask.view(np.uint8), bitorder="little", count=self._tokens.vocab_size)
        return logits.keep(np.flatnonzero(allowed))

    def accept(self, token_id: int) -> None:
        """Go on by the token that was taken. Raises ValidationError for a (forced) token that the grammar refuses."""
        if token_id == self._tokens.eos_token_id or self._ended:
            self._ended = True
            return
        if not self._matcher.is_stopped() and not self._matcher.consume_token(token_id):
            # The engine's own limits on a grammar's size end up here too; its first line says which.
            problem = self._matcher.get_error().partition("\n")[0]
            raise ValidationError(
                f"token {token_id} can't come next in the request's grammar: {problem}",
                code="token_not_allowed",
                value=token_id,
            )
