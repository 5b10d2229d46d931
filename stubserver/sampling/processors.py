"""The operations on logits, one pure function each: logits in, new logits out.

Names and meanings are vLLM's; the facts were read in vLLM 0.32.0, `v1/sample/`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from stubserver.sampling.logits import Floats, Logits

CustomProcessor = Callable[[Floats], Floats]
"""A custom logits processor: row [V] float32 in, row [V] out."""


def apply_allowed_token_ids(logits: Logits, token_ids: Iterable[int]) -> Logits:
    """Mask every token but these."""
    return logits.keep(np.array(sorted(set(token_ids)), dtype=np.int64))


def apply_logit_bias(logits: Logits, logit_bias: Mapping[int, float]) -> Logits:
    """Add each token's bias."""
    return _add(logits, logit_bias)


def apply_min_tokens(logits: Logits, stop_token_ids: Iterable[int], constrained: bool) -> Logits:
    """Mask what would end the output; unless a grammar leaves nothing else (`constrained`)."""
    masked = logits.mask(stop_token_ids)
    if constrained and not np.isfinite(masked.values).any():
        return logits
    return masked


def apply_bad_words(
    logits: Logits, bad_words_token_ids: Sequence[Sequence[int]], output_token_ids: Sequence[int]
) -> Logits:
    """Mask the last token of each bad word whose other tokens have just been generated."""
    return logits.mask(word[-1] for word in bad_words_token_ids if _is_suffix(word[:-1], output_token_ids))


def apply_repetition_penalty(logits: Logits, penalty: float, seen_token_ids: Iterable[int]) -> Logits:
    """Divide a seen token's logit by the penalty if it is positive, multiply it if not."""
    positions = logits.positions(set(seen_token_ids))
    values = logits.values.copy()
    seen = values[positions]
    factor = np.float32(penalty)
    values[positions] = np.where(seen > 0, seen / factor, seen * factor)
    return logits.with_values(values)


def apply_frequency_penalty(logits: Logits, penalty: float, output_token_ids: Iterable[int]) -> Logits:
    """Subtract the penalty once for every time that a token has been generated."""
    return _add(logits, {token_id: -penalty * count for token_id, count in Counter(output_token_ids).items()})


def apply_presence_penalty(logits: Logits, penalty: float, output_token_ids: Iterable[int]) -> Logits:
    """Subtract the penalty from every token that has been generated."""
    return _add(logits, dict.fromkeys(output_token_ids, -penalty))


FORCED = np.float32(1e9)
"""The logit of a token that has to come."""


def apply_forced_token(logits: Logits, token_id: int) -> Logits:
    """Raise a token above all others, masked or not."""
    values = logits.dense()
    values[token_id] = FORCED
    return Logits.of(values)


def apply_custom_processor(logits: Logits, processor: CustomProcessor) -> Logits:
    """Run a custom processor on the whole row, masked tokens as -inf. Raises ValueError for a row of another shape."""
    row = np.asarray(processor(logits.dense()), dtype=np.float32)
    if row.shape != (logits.vocab_size,):
        raise ValueError(f"a logits processor must return a row of shape ({logits.vocab_size},), not {row.shape}")
    return Logits.of(row)


def apply_temperature(logits: Logits, temperature: float) -> Logits:
    """Divide by the temperature."""
    return logits.with_values(logits.values / np.float32(temperature))


def apply_min_p(logits: Logits, min_p: float) -> Logits:
    """Mask tokens less probable than `min_p` times the most probable one."""
    probs = np.exp(logits.logprobs)
    return _keep_where(logits, probs >= probs.max(initial=np.float32(0)) * np.float32(min_p))


def apply_top_k(logits: Logits, top_k: int) -> Logits:
    """Mask tokens below the k-th largest logit; ties with it stay."""
    if top_k >= len(logits.values):
        return logits
    smallest = np.partition(logits.values, -top_k)[-top_k]
    return _keep_where(logits, logits.values >= smallest)


def apply_top_p(logits: Logits, top_p: float) -> Logits:
    """Mask the least probable tokens that together have at most 1 - `top_p`; the most probable one always stays."""
    order = np.argsort(logits.values, kind="stable")
    mass = np.cumsum(np.exp(logits.logprobs[order]), dtype=np.float32)
    kept = np.empty(len(order), dtype=bool)
    kept[order] = mass > np.float32(1 - top_p)
    kept[order[-1:]] = True
    return _keep_where(logits, kept)


def _add(logits: Logits, amounts: Mapping[int, float]) -> Logits:
    values = logits.values.copy()
    for token_id, amount in amounts.items():
        position = logits.position(token_id)
        if position is not None:
            values[position] += np.float32(amount)
    return logits.with_values(values)


def _keep_where(logits: Logits, kept: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Logits:
    return logits.with_values(np.where(kept, logits.values, np.float32(-np.inf)))


def _is_suffix(suffix: Sequence[int], token_ids: Sequence[int]) -> bool:
    return not suffix or list(token_ids[-len(suffix) :]) == list(suffix)
