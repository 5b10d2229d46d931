"""Sampling masks: the tokens that a token was drawn from, which vLLM calls sampling distribution replay.

Source of the facts: vLLM 0.32.0, `v1/worker/gpu/sample/output.py`.
"""

from __future__ import annotations

import numpy as np

from stubserver.sampling.logits import Logits


def sampling_mask(processed: Logits) -> list[int]:
    """The ids with a finite processed logit, ascending."""
    return processed.ids_at(np.flatnonzero(np.isfinite(processed.values)))
