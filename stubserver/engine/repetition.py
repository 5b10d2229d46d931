"""Outputs that repeat themselves. Source of the facts: vLLM 0.32.0, `v1/core/sched/utils.py`."""

from __future__ import annotations

from collections.abc import Sequence

from stubserver.sampling.params import Repetition

FINISH_REASON, STOP_REASON = "repetition", "repetition_detected"


def repeats_itself(token_ids: Sequence[int], repetition: Repetition) -> bool:
    """Whether a pattern of one of the sizes stands at the end as often in a row as it has to, the shortest first."""
    count = repetition.min_count
    if repetition.max_pattern_size <= 0 or count < 2:
        return False
    sizes = range(max(1, repetition.min_pattern_size), min(repetition.max_pattern_size, len(token_ids) // count) + 1)
    return any(_ends_with_pattern(token_ids, size, count) for size in sizes)


def _ends_with_pattern(token_ids: Sequence[int], size: int, count: int) -> bool:
    tail = token_ids[len(token_ids) - size * count :]
    return all(tail[position] == tail[position % size] for position in range(size, len(tail)))
