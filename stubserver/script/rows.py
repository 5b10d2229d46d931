"""The rows of a script: constants, written down small and made into logits when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp, fsum, inf, log

import numpy as np

from stubserver.memory import Memo
from stubserver.sampling.logits import Floats, Logits, SparseLogits
from stubserver.script.context import Context

WIDE_MARGIN = 50.0
"""The logit of a `text` step's token; every other token has 0.

Wide enough that the token's logprob is 0.0 in float32 in any vocabulary, and that temperature 2 doesn't leave it;
narrow enough that a logit_bias of ±100 forces or bans it, as on a real model.
"""

PROBABILITY_TOLERANCE = 1e-6
"""How far a sum of probabilities may be off 1 and still count as 1."""

CACHE_BYTES = 256 * 2**20
"""About how much memory the rows in use may take, their logprobs included."""

SPARSE_ROWS = 16384
"""How many rows are kept that nobody asked for the whole of; each takes about as much as its step in the script."""

_BYTES_A_TOKEN = 8  # a logit and a logprob, float32 each


@dataclass(frozen=True, eq=False)
class SparseRow:
    """Logits of some tokens, and the one of all the others."""

    logits: Mapping[int, float]
    rest: float

    def read(self, vocab_size: int, on_written: Callable[[SparseLogits], None] | None = None) -> SparseLogits:
        """As logits, [V], read-only. on_written: is told when they are written out."""
        return SparseLogits(self.logits, self.rest, vocab_size, on_written)


@dataclass(frozen=True, eq=False)
class ArrayRow:
    """A row that came as an array, float32 [V]."""

    array: Floats

    def read(self, vocab_size: int) -> Logits:
        """As logits, [V], read-only; over the array itself if that is contiguous."""
        return read_only(self.array)


Row = SparseRow | ArrayRow
"""The logits of one step. Rows are compared by identity: a row is one object of one script."""


def one_token_row(token_id: int) -> SparseRow:
    """This token by a wide margin."""
    return SparseRow({token_id: WIDE_MARGIN}, 0.0)


def probs_row(probs: Mapping[int, float], vocab_size: int) -> SparseRow:
    """The logarithms of these probabilities; what is left of 1 goes evenly to the other tokens.

    Raises ValueError if the sum is above 1, or below it where there are no other tokens.
    """
    total = fsum(probs.values())
    left, others = 1 - total, vocab_size - len(probs)
    if left < -PROBABILITY_TOLERANCE:
        raise ValueError(f"the probabilities sum to {total:.7g}, which is more than 1")
    if others == 0 and left > PROBABILITY_TOLERANCE:
        raise ValueError(f"every token is listed, but the probabilities sum to {total:.7g} instead of 1")
    rest = left / others if left > PROBABILITY_TOLERANCE else 0.0
    return SparseRow({token_id: _log(prob) for token_id, prob in probs.items()}, _log(rest))


def logprobs_row(logprobs: Mapping[int, float], vocab_size: int) -> SparseRow:
    """The same for logprobs, whose values are kept to the last bit."""
    rest = probs_row({token_id: exp(logprob) for token_id, logprob in logprobs.items()}, vocab_size).rest
    return SparseRow(logprobs, rest)


def _log(prob: float) -> float:
    return log(prob) if prob > 0 else -inf


class ArrayError(ValueError):
    """An array can't be used; the message says what is wrong, the caller knows the place."""


class RowStore:
    """Makes rows into Logits and remembers those in use, so that their logprobs are computed once.

    Sparse rows are small until somebody asks for the whole of one, so many more of them are remembered than of others.
    """

    def __init__(self, vocab_size: int, max_bytes: int = CACHE_BYTES) -> None:
        self.vocab_size = vocab_size
        most = max(16, max_bytes // (_BYTES_A_TOKEN * vocab_size))
        self._sparse: Memo[SparseRow, SparseLogits] = Memo(max(most, SPARSE_ROWS))
        self._written_out: Memo[SparseLogits, bool] = Memo(most, forgotten=SparseLogits.shrink)
        self._dense: Memo[ArrayRow, Logits] = Memo(most)

    def get(self, row: Row) -> Logits:
        """The row's Logits [V], read-only; as a rule the same object again."""
        return self._get_sparse(row) if isinstance(row, SparseRow) else self._get_dense(row)

    def _get_sparse(self, row: SparseRow) -> Logits:
        logits = self._sparse.find(row)
        if logits is None:
            logits = row.read(self.vocab_size, self._note_written)
            self._sparse.keep(row, logits.shared())
        elif logits.is_written_out:
            self._written_out.find(logits)  # it is in use
        return logits

    def _note_written(self, logits: SparseLogits) -> None:
        self._written_out.keep(logits, True)

    def _get_dense(self, row: ArrayRow) -> Logits:
        logits = self._dense.find(row)
        if logits is None:
            logits = row.read(self.vocab_size)
            self._dense.keep(row, logits.shared())
        return logits


def check_rows(rows: Floats) -> None:
    """Raises ArrayError if a row, [V] or [n, V], has NaN or +inf, or is -inf altogether."""
    # One pass over the data: the largest value of a row is NaN if any is.
    largest = rows.max(axis=-1, initial=-np.inf)
    if np.isfinite(largest).all():
        return
    wrong = np.argwhere(np.isnan(rows) | (rows == np.inf))
    if len(wrong):
        position = tuple(wrong[0].tolist())
        raise ArrayError(f"the value at [{', '.join(map(str, position))}] is {rows[position]}")
    raise ArrayError("a row is -inf for every token, so that nothing could follow")


def read_only(values: Floats) -> Logits:
    """Logits over an array that nobody may write to, float32 [V]."""
    logits = Logits.of(values)
    logits.values.setflags(write=False)
    return logits


def random_row(context: Context, scale: float, tokens: int, vocab_size: int) -> Logits:
    """Normally distributed logits that depend on the seed and the context alone.

    The ids from `tokens` up stand for no token; their value is so low that they aren't drawn, as with trained models.
    """
    row = np.full(vocab_size, -10 * scale, dtype=np.float32)
    row[:tokens] = context.rng.standard_normal(tokens, dtype=np.float32) * np.float32(scale)
    return read_only(row)
