"""The callable script: a Python function, context → logits, that is asked for every token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

import numpy as np

from stubserver.errors import GenerationError, RequestError
from stubserver.sampling.logits import Floats, Logits
from stubserver.script.context import Answer, Context, ScriptRequest
from stubserver.script.rows import SparseRow, check_rows, read_only
from stubserver.script.tokens import TokenReader

LogitsFunction = Callable[[Context], Any]
"""Context → an array of V logits; or {token: logit}, every other token -inf; or ({token: logit}, rest)."""


class CallableScript:
    """The `Script` protocol over a function, whose every result is checked."""

    has_faults = False

    def __init__(self, function: LogitsFunction, tokens: TokenReader, vocab_size: int) -> None:
        self._function = function
        self._tokens = tokens
        self._vocab_size = vocab_size

    @property
    def vocab_size(self) -> int:
        """V: the length of every row."""
        return self._vocab_size

    def bind(self, request: ScriptRequest) -> Answer:
        """The function answers every request."""
        return Answer(self.next_logits)

    def next_logits(self, context: Context) -> Logits:
        """What the function says. Raises GenerationError, with the cause, if it fails or returns what is no logits.

        A RequestError of the function's own goes through: that is how it refuses a request.
        """
        try:
            return self._as_logits(self._function(context))
        except RequestError:
            raise
        except Exception as error:
            raise GenerationError(f"{type(error).__name__}: {error}") from error

    def _as_logits(self, result: Any) -> Logits:
        if isinstance(result, Mapping):
            return self._sparse(result, -inf)
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Mapping):
            return self._sparse(*result)
        if result is None:
            raise TypeError("the script's function returned None instead of logits")
        # A copy, for the function may go on using its array.
        return self._checked(np.array(result, dtype=np.float32))

    def _sparse(self, logits: Mapping[int | str, float], rest: float) -> Logits:
        # numpy's integers are ids too.
        named = {token.item() if isinstance(token, np.integer) else token: value for token, value in logits.items()}
        return self._checked(SparseRow(self._tokens.read_values(named), float(rest)).read(self._vocab_size).values)

    def _checked(self, values: Floats) -> Logits:
        if values.shape != (self._vocab_size,):
            raise ValueError(
                f"the script's function returned logits of shape {list(values.shape)} instead of [{self._vocab_size}]"
            )
        check_rows(values)
        return read_only(values)
