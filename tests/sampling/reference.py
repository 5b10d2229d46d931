"""The row that most tests here use, and plain float64 arithmetic to compare with."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stubserver.sampling.logits import Logits

A, B, SPACE_A, SPACE_B, STARS, EOS = range(6)
T6 = [0.5, 1.5, 3.0, 4.0, 6.0, -1.0]
INF = float("inf")


def log_softmax(row: ArrayLike) -> NDArray[np.float64]:
    wide = np.asarray(row, dtype=np.float64)
    shifted = wide - wide.max()
    return shifted - np.log(np.exp(shifted).sum())


def ids(*token_ids: int) -> NDArray[np.int64]:
    return np.array(token_ids, dtype=np.int64)


def only(row: ArrayLike, *token_ids: int) -> Logits:
    """The row with every token masked but these (ascending)."""
    return Logits.of(row).keep(ids(*token_ids))


def masked_row(row: ArrayLike, *token_ids: int) -> list[float]:
    """The same as a plain row: -inf for every token but these."""
    return [value if token_id in token_ids else -INF for token_id, value in enumerate(np.asarray(row).tolist())]
