"""Sampling masks: the tokens that a token was drawn from, which vLLM calls sampling distribution replay.

Source of the facts: vLLM 0.32.0, `v1/worker/gpu/sample/output.py` (masks), `v1/engine/input_processor.py` (refusals).
"""

from __future__ import annotations

import numpy as np

from stubserver.errors import ValidationError
from stubserver.sampling.logits import Logits
from stubserver.sampling.params import SamplingParams


def sampling_mask(processed: Logits) -> list[int]:
    """The ids with a finite processed logit, ascending."""
    return processed.ids_at(np.flatnonzero(np.isfinite(processed.values)))


def check_sampling_mask(params: SamplingParams) -> None:
    """Refuse what a mask can't be returned for. Raises ValidationError.

    vLLM 0.32.0 raises a plain ValueError with these words, of which its HTTP server only shows a 500 without a message.
    """
    if params.temperature <= 0:
        raise ValidationError("sampling distribution replay requires temperature > 0")
    if params.top_k <= 0:
        raise ValidationError(
            "sampling distribution replay requires top_k > 0 to bound sampling mask size, reduce transfer overhead, "
            "and avoid potential OOMs"
        )
