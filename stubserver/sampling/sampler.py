"""Choosing the token."""

from __future__ import annotations

import numpy as np

from stubserver.sampling.logits import Logits


def draw(logits: Logits, rng: np.random.Generator) -> int:
    """A token drawn by its probability; token 0 if every token is masked."""
    cumulated = np.cumsum(np.exp(logits.logprobs, dtype=np.float64))
    if not len(cumulated) or not np.isfinite(cumulated[-1]):
        return 0
    position = int(cumulated.searchsorted(rng.random() * cumulated[-1], side="right"))
    return position if logits.token_ids is None else int(logits.token_ids[position])


def make_rng(seed: int) -> np.random.Generator:
    """The generator of one choice: the same draws for the same seed in every process."""
    return np.random.Generator(np.random.PCG64(seed % 2**128))
