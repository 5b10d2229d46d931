"""The values of the tokens that a request asks about, before and after everything that is done to the logits."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from math import inf
from typing import NamedTuple

from stubserver.sampling.logits import Logits
from stubserver.sampling.params import SamplingParams
from stubserver.tokenizer.base import Tokenizer

MAX_LABELS = 128
"""How many of the tokens that a request names are looked at."""


class LabelValue(NamedTuple):
    """One token's values at one position. A masked token has -inf."""

    token_id: int
    token: str
    raw_logit: float
    raw_logprob: float
    processed_logit: float
    processed_logprob: float


def asks_for_labels(params: SamplingParams) -> bool:
    """Whether the request names tokens."""
    return bool(params.allowed_token_ids or params.logprob_token_ids or params.logit_bias)


def labels_asked(params: SamplingParams) -> list[int]:
    """The tokens that the request names, each once: the allowed ones, those to report, the biased ones; at most 128."""
    named = chain(params.allowed_token_ids or (), params.logprob_token_ids or (), params.logit_bias or ())
    return list(islice(dict.fromkeys(named), MAX_LABELS))


def label_values(tokenizer: Tokenizer, raw: Logits, processed: Logits, token_ids: Iterable[int]) -> list[LabelValue]:
    """The values of these tokens, in their order."""
    return [
        LabelValue(token_id, tokenizer.token_text(token_id), *_values(raw, token_id), *_values(processed, token_id))
        for token_id in token_ids
    ]


def _values(logits: Logits, token_id: int) -> tuple[float, float]:
    """(logit, logprob)."""
    position = logits.position(token_id)
    if position is None:
        return -inf, -inf
    return float(logits.values[position]), float(logits.logprobs[position])
