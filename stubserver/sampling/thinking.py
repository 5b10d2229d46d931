"""Thoughts that have a budget: after so many tokens their end is forced.

Source of the facts: vLLM 0.32.0, `v1/worker/gpu/sample/thinking_budget.py` (Model Runner V2) and recordings of V1.
"""

from __future__ import annotations

from collections.abc import Sequence

from stubserver.sampling.params import ThinkingMarks


def find_forced_end(marks: ThinkingMarks, budget: int, token_ids: Sequence[int]) -> int | None:
    """The token that has to follow these, prompt and output; None while the thought may go on, or where there is none.

    What of the end is there already isn't forced again.
    """
    start, end = _find_last(token_ids, marks.start), _find_last(token_ids, marks.end)
    if start < 0 or start <= end or len(token_ids) - (start + len(marks.start)) < budget:
        return None
    there = max(
        count for count in range(len(marks.end)) if list(token_ids[len(token_ids) - count :]) == [*marks.end[:count]]
    )
    return marks.end[there]


def _find_last(token_ids: Sequence[int], wanted: Sequence[int]) -> int:
    """Where the sequence begins for the last time; -1 if nowhere."""
    for start in range(len(token_ids) - len(wanted), -1, -1):
        if list(token_ids[start : start + len(wanted)]) == list(wanted):
            return start
    return -1
