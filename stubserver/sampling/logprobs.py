"""Which logprobs a step returns: the sampled token's and the top ones', in one of vLLM's four modes.

Source of the facts: vLLM 0.32.0, `v1/sample/sampler.py` (what is gathered), `v1/engine/logprobs.py` (what is shown).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from stubserver.memory import Memo
from stubserver.sampling.logits import Floats, Logits

LogprobsMode = Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]
LOGPROBS_MODES: tuple[LogprobsMode, ...] = get_args(LogprobsMode)


class TokenLogprobs(NamedTuple):
    """The values of one step: the sampled (or prompt) token first, then the others, each token id once.

    ranks: of one of the best, its place among them, from 1. Of another first token, how many tokens of the vocabulary
    have a value at least as large as its own, itself included. Of asked-for ids vLLM gives the last place in the list.
    """

    token_ids: list[int]
    logprobs: list[float]
    ranks: list[int]


@dataclass(slots=True, eq=False)
class PositionLogprobs:
    """The same with the tokens as text.

    shown: what the wire makes of values that come again, by how they are shown; None for others.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    tokens: Sequence[str]
    ranks: Sequence[int]
    shown: Memo[object, Any] | None = None


def mode_values(logits: Logits, mode: LogprobsMode) -> Floats:
    """What the mode reports of these logits, float32 [M]: they themselves or their logprobs."""
    return logits.values if mode.endswith("logits") else logits.logprobs


def gather_top(logits: Logits, mode: LogprobsMode, token_id: int, count: int) -> TokenLogprobs:
    """The token and the `count` best: `count` or `count` + 1 entries, for the token may be among the best.

    A count of -1 means the whole vocabulary. Masked tokens fill up what is missing, with -inf; where nothing but them
    is left, there are no probabilities: NaN.
    """
    count = logits.vocab_size if count == -1 else count
    values = mode_values(logits, mode)
    best = logits.top(count)
    masked = logits.masked(count - len(best))
    token_ids = logits.ids_at(best) + masked
    absent = _value_of_masked(values, mode)
    logprobs: list[float] = values[best].tolist() + [absent] * len(masked)
    ranks = list(range(1, len(token_ids) + 1))
    if token_id in token_ids:
        place = token_ids.index(token_id)
        first, rank = logprobs.pop(place), ranks.pop(place)
        token_ids.pop(place)
    else:
        first = _value_at(logits, values, token_id, absent)
        rank = _rank(logits, values, first)
    return TokenLogprobs([token_id, *token_ids], [first, *logprobs], [rank, *ranks])


def gather_token_ids(logits: Logits, mode: LogprobsMode, token_id: int, wanted: Sequence[int]) -> TokenLogprobs:
    """The token and the wanted ones in the order asked for, each once: vLLM's `logprob_token_ids`."""
    values = mode_values(logits, mode)
    token_ids = list(dict.fromkeys([token_id, *wanted]))
    absent = _value_of_masked(values, mode)
    logprobs = [_value_at(logits, values, each, absent) for each in token_ids]
    ranks = {token_id: _rank(logits, values, logprobs[0])} | {each: place for place, each in enumerate(wanted, 1)}
    return TokenLogprobs(token_ids, logprobs, [ranks[each] for each in token_ids])


def _value_of_masked(values: Floats, mode: LogprobsMode) -> float:
    """-inf; NaN among the logprobs of a row without a finite value, which are NaN throughout."""
    is_number = mode.endswith("logits") or (len(values) > 0 and values[0] == values[0])
    return -np.inf if is_number else np.nan


def _value_at(logits: Logits, values: Floats, token_id: int, absent: float) -> float:
    position = logits.position(token_id)
    return float(values[position]) if position is not None else absent


def _rank(logits: Logits, values: Floats, value: float) -> int:
    masked = logits.vocab_size - len(values) if value == -np.inf else 0
    return int(np.count_nonzero(values >= value)) + masked
