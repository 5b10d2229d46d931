"""One choice's way through a grammar."""

from __future__ import annotations

from collections.abc import Sequence

from stubserver.engine.grammar import words
from stubserver.engine.grammar.constraint import Constraint
from stubserver.engine.grammar.tokens import GrammarTokens
from stubserver.errors import GenerationError, ValidationError
from stubserver.sampling.logits import Logits


class Grammar:
    """The state of one output under a constraint.

    stop_token_ids: EOS and the request's stop ids, which may come where the constraint is met, and only there.
    Raises GenerationError where vLLM's engine fails at compiling, UnsupportedError for what isn't here.
    """

    def __init__(self, constraint: Constraint, tokens: GrammarTokens, stop_token_ids: Sequence[int] = ()) -> None:
        self._matcher = tokens.matcher(constraint, stop_token_ids)

    def apply(self, logits: Logits) -> Logits:
        """Mask every token that can't come next; after the end nothing is masked."""
        allowed = None if self._matcher.is_over() else self._matcher.allowed()
        return logits if allowed is None else logits.keep(allowed)

    def accept(self, token_id: int, *, is_forced: bool = False) -> None:
        """Go on by the token that was taken.

        Raises GenerationError for one that can't come next, as vLLM's engine fails when masks leave nothing: it takes
        token 0 then. Raises ValidationError if the token was forced by the client of this server.
        """
        if self._matcher.is_over() or self._matcher.accept(token_id):
            return
        if is_forced:
            raise ValidationError(words.FORCED.format(token_id=token_id))
        raise GenerationError(words.ENGINE_FAILED)
