"""Vectors for texts: scripted ones, and for every other text one that depends on the text alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stubserver.sampling.logits import Floats
from stubserver.script.context import context_seed

DEFAULT_DIMENSION = 8


@dataclass(frozen=True)
class Embeddings:
    """What a pooling model beside the script's would say. vectors: text → float32 [dimension], as written."""

    dimension: int = DEFAULT_DIMENSION
    vectors: Mapping[str, Floats] = field(default_factory=dict)

    def vector(self, text: str, token_ids: Sequence[int], seed: int) -> Floats:
        """The vector of a text, float32 [dimension], of any length: the scripted one, else pseudo-random numbers.

        Those depend on the server's seed and on the token ids alone: they are the same in every process.
        """
        scripted = self.vectors.get(text)
        return seeded_vector(token_ids, self.dimension, seed) if scripted is None else scripted


def seeded_vector(token_ids: Sequence[int], dimension: int, seed: int) -> Floats:
    """Normally distributed numbers, float32 [dimension]; a shorter one is the beginning of a longer one."""
    rng = np.random.Generator(np.random.PCG64(context_seed(seed, token_ids)))
    return rng.standard_normal(dimension).astype(np.float32)


def shorten(vector: Floats, dimension: int | None) -> Floats:
    """The first `dimension` values, as Matryoshka models are shortened; None keeps all."""
    return vector[:dimension]


def normalize(vector: Floats) -> Floats:
    """The same direction with length 1, float32 [D] → [D]; a vector of zeros stays one."""
    length = float(np.linalg.norm(vector.astype(np.float64)))
    return (vector / np.float64(length or 1.0)).astype(np.float32)


def as_vector(values: Sequence[float]) -> NDArray[np.float32]:
    """A read-only float32 vector of these numbers."""
    vector = np.array(values, dtype=np.float32)
    vector.setflags(write=False)
    return vector
