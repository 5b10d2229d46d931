"""From a script's steps to rows: one function a kind of step."""

from __future__ import annotations

from math import inf

from stubserver.errors import TokenizerError
from stubserver.keys.document import Place
from stubserver.sampling.logits import Floats
from stubserver.script.file.arrays import ArrayFiles
from stubserver.script.file.schema import ArrayKeys, StepKeys, Token
from stubserver.script.rows import ArrayError, ArrayRow, Row, SparseRow, logprobs_row, one_token_row, probs_row
from stubserver.script.tokens import TokenError, TokenReader


class StepReader:
    """Reads steps for one vocabulary. What is wrong raises ScriptError with the place."""

    def __init__(self, tokens: TokenReader, arrays: ArrayFiles, vocab_size: int) -> None:
        self._tokens = tokens
        self._arrays = arrays
        self._vocab_size = vocab_size
        self._one_token_rows: dict[int, Row] = {}
        self._array_rows: dict[tuple[str, str | None, int | None], list[Row]] = {}

    def rows(self, step: StepKeys, place: Place) -> list[Row]:
        """The rows of a step: one, or as many as its text has tokens or its array rows."""
        place = place / step.kind
        try:
            return self._read(step)
        except TokenError as error:
            raise (place / error.key).error(error) from None
        except (TokenizerError, ArrayError, ValueError) as error:
            raise place.error(error) from None

    def text(self, text: str, place: Place) -> list[Row]:
        """The tokens of a text, a row each."""
        try:
            return [self.one_token(token_id) for token_id in self._tokens.split(text)]
        except (TokenizerError, TokenError) as error:
            raise place.error(error) from None

    def one_token(self, token_id: int) -> Row:
        """A token by a wide margin; the same row for the same token, so that long texts cost little."""
        return self._one_token_rows.setdefault(token_id, one_token_row(token_id))

    def _read(self, step: StepKeys) -> list[Row]:
        if step.logits is not None:
            return [self._logits(step.logits, step.rest)]
        if step.probs is not None:
            return [probs_row(self._tokens.read_values(step.probs), self._vocab_size)]
        if step.logprobs is not None:
            return [logprobs_row(self._tokens.read_values(step.logprobs), self._vocab_size)]
        if step.text is not None:
            return [self.one_token(token_id) for token_id in self._tokens.split(step.text)]
        if step.tokens is not None:
            return [self.one_token(token_id) for token_id in self._tokens.read_list(step.tokens)]
        assert step.array is not None  # the schema has seen to it
        return self._array(step.array)

    def _logits(self, logits: dict[Token, float], rest: float | None) -> Row:
        read = self._tokens.read_values(logits)
        unlisted = self._vocab_size - len(read)
        if unlisted and rest is None:
            raise ValueError(
                f"{unlisted} tokens aren't listed: say what they get, for instance `rest: -10` or `rest: -inf`"
            )
        if max(read.values(), default=-inf) == -inf and (rest in (None, -inf) or not unlisted):
            raise ValueError("every token is -inf, so that nothing could follow")
        return SparseRow(read, -inf if rest is None else rest)

    def _array(self, array: ArrayKeys) -> list[Row]:
        """The same rows for the same place of a file, so that many rules can share a few."""
        place = (array.file, array.key, array.index)
        if place not in self._array_rows:
            self._array_rows[place] = self._new_array_rows(array)
        return self._array_rows[place]

    def _new_array_rows(self, array: ArrayKeys) -> list[Row]:
        rows = load_rows(self._arrays, array)
        if rows.shape[-1] != self._vocab_size:
            raise ArrayError(f"rows have {rows.shape[-1]} values, but the vocabulary has {self._vocab_size} tokens")
        return [ArrayRow(row) for row in rows]


def load_rows(arrays: ArrayFiles, array: ArrayKeys) -> Floats:
    """The rows that a step names, float32 [n, V]. Raises ArrayError."""
    loaded = arrays.load(array.file, array.key)
    if array.index is None:
        return loaded.reshape(-1, loaded.shape[-1])
    if loaded.ndim != 2 or not -len(loaded) <= array.index < len(loaded):
        raise ArrayError(f"has no row {array.index}: its shape is {list(loaded.shape)}")
    row: Floats = loaded[array.index]
    return row[None]
