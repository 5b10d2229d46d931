"""The logits of one position, and what can be read off them.

A vocabulary has up to hundreds of thousands of tokens, but a label read allows four. So `Logits` keeps the tokens that
are not masked: masking to K tokens costs K from there on, not V.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stubserver.memory import Memo

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

FEW_TOKENS = 256
"""Up to how many tokens are read from a sparse row one by one."""

_NEG_INF = np.float32(-np.inf)

MOST_PROCESSED = 16
MOST_REPORTS = 64
"""How many results are remembered with one row: what it becomes by parameters, and what is reported of it."""


class RowMemo:
    """What was made of a row that comes again: by parameters, and by what was asked of it (and the token sampled)."""

    __slots__ = ("processed", "reports")

    def __init__(self) -> None:
        self.processed: Memo[object, Logits] = Memo(MOST_PROCESSED)
        self.reports: Memo[object, Any] = Memo(MOST_REPORTS)


class Logits:
    """Logits of one position: `values` of the tokens `token_ids`; every other token of the vocabulary is -inf (masked).

    values: float32 [M], not to be written to: every operation makes a new array.
    token_ids: int64 [M], ascending, or None for the whole vocabulary in order (M = V).
    vocab_size: V.

    What is computed from the values (logprobs, the best tokens) is kept, so that a row which a script gives out again
    and again pays for it once. `kept` is where others keep what they make of such a row; None for other rows.
    """

    __slots__ = ("_best", "_logprobs", "_top", "memo", "token_ids", "values", "vocab_size")

    def __init__(self, values: Floats, token_ids: Ids | None, vocab_size: int) -> None:
        self.values = values
        self.token_ids = token_ids
        self.vocab_size = vocab_size
        self._best: int | None = None
        self._logprobs: Floats | None = None
        self._top: Ids | None = None
        self.memo: RowMemo | None = None

    @classmethod
    def of(cls, row: ArrayLike) -> Logits:
        """A row of the whole vocabulary, [V], in any numeric type; kept as float32 as vLLM does."""
        values = np.ascontiguousarray(row, dtype=np.float32)
        return cls(values, None, values.shape[0])

    def shared(self) -> Self:
        """The same object, for logits that come again: worth remembering what is made of them."""
        self.memo = RowMemo()
        return self

    def with_values(self, values: Floats) -> Logits:
        """The same tokens with other values, float32 [M]."""
        return Logits(values, self.token_ids, self.vocab_size)

    def keep(self, token_ids: Ids) -> Logits:
        """Mask every token but these (int64, ascending, no duplicates)."""
        if self.token_ids is None:
            return Logits(self.values[token_ids], token_ids, self.vocab_size)
        kept = np.isin(self.token_ids, token_ids, assume_unique=True)
        return Logits(self.values[kept], self.token_ids[kept], self.vocab_size)

    def mask(self, token_ids: Iterable[int]) -> Logits:
        """Set these tokens to -inf."""
        positions = self.positions(token_ids)
        if not positions:
            return self
        values = self.values.copy()
        values[positions] = _NEG_INF
        return self.with_values(values)

    def positions(self, token_ids: Iterable[int]) -> list[int]:
        """Where these tokens stand in `values`; masked tokens stand nowhere and are left out."""
        found = (self.position(token_id) for token_id in token_ids)
        return [position for position in found if position is not None]

    def position(self, token_id: int) -> int | None:
        """Where this token stands in `values`, or None if it is masked."""
        if self.token_ids is None:
            return token_id
        position = int(self.token_ids.searchsorted(token_id))
        found = position < len(self.token_ids) and self.token_ids[position] == token_id
        return position if found else None

    @property
    def logprobs(self) -> Floats:
        """log_softmax of the values, float32 [M]; NaN where every token is masked."""
        if self._logprobs is None:
            self._logprobs = compute_logprobs(self.values)
        return self._logprobs

    @property
    def best(self) -> int:
        """The token id with the largest value, the lowest among equals; 0 if every token is masked, as in vLLM."""
        if self._best is None:
            self._best = _best_token(self.values, self.token_ids)
        return self._best

    def top(self, count: int) -> Ids:
        """Positions of the `count` largest values, largest first, the lower id first among equals; no masked ones."""
        if self._top is None or len(self._top) < count:
            self._top = _top_positions(self.values, count)
        return self._top[:count]

    def ids_at(self, positions: Ids) -> list[int]:
        """The token ids at these positions."""
        ids: list[int] = (positions if self.token_ids is None else self.token_ids[positions]).tolist()
        return ids

    def masked(self, count: int) -> list[int]:
        """The `count` lowest of the masked token ids."""
        if count <= 0:
            return []
        unmasked = np.flatnonzero(self.values != _NEG_INF)
        if self.token_ids is not None:
            unmasked = self.token_ids[unmasked]
        candidates = np.arange(min(self.vocab_size, count + len(unmasked)), dtype=np.int64)
        lowest: list[int] = np.setdiff1d(candidates, unmasked, assume_unique=True)[:count].tolist()
        return lowest

    def dense(self) -> Floats:
        """A new float32 [V] with -inf for every masked token."""
        if self.token_ids is None:
            return self.values.copy()
        row = np.full(self.vocab_size, _NEG_INF, dtype=np.float32)
        row[self.token_ids] = self.values
        return row


class SparseLogits(Logits):
    """A row of the whole vocabulary in which few tokens have a logit of their own, and all others the same one.

    It is written out when its `values` are first asked for: a request that allows K tokens reads those K.
    """

    __slots__ = ("_listed", "_on_written", "_rest", "_written")

    def __init__(
        self,
        listed: Mapping[int, float],
        rest: float,
        vocab_size: int,
        on_written: Callable[[SparseLogits], None] | None = None,
    ) -> None:
        """listed: token id → its logit. rest: the logit of every other token. on_written: is told of a writing out."""
        self._listed = listed
        self._rest = rest
        self._on_written = on_written
        self._written: Floats | None = None
        self.token_ids = None
        self.vocab_size = vocab_size
        self.memo = None
        self.shrink()

    @property
    def values(self) -> Floats:  # type: ignore[override]
        """float32 [V], read-only."""
        if self._written is None:
            values = np.full(self.vocab_size, self._rest, dtype=np.float32)
            values[list(self._listed)] = list(self._listed.values())
            values.setflags(write=False)
            self._written = values  # when it is whole: another thread, a journal's reader, may ask at the same time
            if self._on_written is not None:
                self._on_written(self)
            return values
        return self._written

    @property
    def is_written_out(self) -> bool:
        """Whether it takes as much memory as any other row."""
        return self._written is not None

    def shrink(self) -> None:
        """Give up `values` and what was made of them, until they are asked for again."""
        self._written = None
        self._best = self._logprobs = self._top = None

    def keep(self, token_ids: Ids) -> Logits:
        """Mask every token but these (int64, ascending, no duplicates)."""
        if len(token_ids) > FEW_TOKENS:
            return super().keep(token_ids)
        kept = [self._listed.get(token_id, self._rest) for token_id in token_ids.tolist()]
        return Logits(np.array(kept, dtype=np.float32), token_ids, self.vocab_size)


def compute_logprobs(values: Floats) -> Floats:
    """log_softmax, float32 [M] → float32 [M]; NaN where nothing is finite."""
    largest = np.maximum.reduce(values, initial=_NEG_INF)
    if not isfinite(largest):
        return np.full_like(values, np.nan)
    shifted = values - largest
    logprobs: Floats = shifted - np.log(np.add.reduce(np.exp(shifted)))
    return logprobs


def _best_token(values: Floats, token_ids: Ids | None) -> int:
    position = int(values.argmax()) if len(values) else 0
    if not len(values) or values[position] == _NEG_INF:
        return 0
    return position if token_ids is None else int(token_ids[position])


def _top_positions(values: Floats, count: int) -> Ids:
    if count >= len(values):
        order = np.argsort(-values, kind="stable")
    else:
        # Of tokens that equal the last one to get in, the lowest ids do: whatever the partition's own order.
        last = np.partition(values, len(values) - count)[len(values) - count] if count else np.float32(np.inf)
        above = np.flatnonzero(values > last)
        equal = np.flatnonzero(values == last)[: count - len(above)]
        chosen = np.concatenate((above, equal))
        order = chosen[np.lexsort((chosen, -values[chosen]))]
    if len(order) and values[order[-1]] == _NEG_INF:
        order = order[values[order] != _NEG_INF]
    return order
