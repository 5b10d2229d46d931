"""One-token reads of chosen label tokens: what POST /generative_scoring and POST /v1/systemone are made of.

Source of the facts: vLLM 0.32.0, `entrypoints/generate/label_reads.py`, `entrypoints/generate/generative_scoring`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stubserver.engine.generate import Generation

Probs = NDArray[np.float64]


class LabelRead(NamedTuple):
    """logprobs: float64 [K], of the K distinct `logprob_token_ids` in their order (logits, in the logits modes).

    token_id: the token that was generated.
    """

    logprobs: Probs
    token_id: int


def read_labels(generations: Sequence[Generation]) -> list[LabelRead]:
    """A read per generation; each is of one choice, one token, and some `logprob_token_ids`.

    All are checked before the first one runs. Raises ValidationError, and whatever the script raises.
    """
    for generation in generations:
        generation.check()
    return [_read(generation) for generation in generations]


def _read(generation: Generation) -> LabelRead:
    ((_, step),) = generation.steps()
    assert step.logprobs is not None
    position = step.logprobs[0]
    values = dict(zip(position.token_ids, position.logprobs, strict=True))
    labels = dict.fromkeys(generation.params.logprob_token_ids or ())
    return LabelRead(np.array([values[label] for label in labels], dtype=np.float64), step.token_ids[0])


def compute_label_probs(logprobs: Probs) -> Probs:
    """Probabilities among the labels alone: softmax, float64 [K] → [K]; NaN where every label is impossible."""
    with np.errstate(invalid="ignore"):
        weights = np.exp(logprobs - logprobs.max())
        probs: Probs = weights / weights.sum()
    return probs


def compute_vocab_probs(logprobs: Probs) -> Probs:
    """Probabilities among the whole vocabulary, float64 [K] → [K]; of logits (in their modes) no probabilities."""
    with np.errstate(over="ignore"):
        probs: Probs = np.exp(logprobs)
    return probs
