"""Thoughts with a budget."""

from __future__ import annotations

import numpy as np
import pytest

from stubserver.sampling.logits import Logits
from stubserver.sampling.params import SamplingParams, ThinkingMarks
from stubserver.sampling.stages import StepState, thinking_budget
from stubserver.sampling.thinking import find_forced_end

MARKS = ThinkingMarks(start=[1], end=[2, 3])


@pytest.mark.parametrize(
    ("budget", "token_ids", "forced"),
    [
        (0, [7], None),  # no thought
        (0, [1], 2),
        (1, [1], None),
        (1, [1, 7], 2),
        (1, [1, 7, 8], 2),  # a prompt may have more than its budget
        (1, [1, 7, 2], 3),  # the end goes on
        (1, [1, 7, 2, 3], None),  # and is done
        (1, [1, 7, 2, 3, 1], None),  # another thought has a budget of its own
        (1, [1, 7, 2, 3, 1, 7], 2),
        (2, [7, 7, 7, 1, 7], None),  # only what comes after the beginning counts
        (9, [1, 7, 7], None),
    ],
)
def test_after_the_budget_the_end_is_forced(budget: int, token_ids: list[int], forced: int | None) -> None:
    assert find_forced_end(MARKS, budget, token_ids) == forced


def test_the_forced_token_is_above_all_others_masked_or_not() -> None:
    params = SamplingParams(thinking_token_budget=0, thinking_marks=MARKS)
    row = Logits.of([50.0, 0.0, -np.inf, 1.0])
    forced = thinking_budget(row, params, StepState([1], []))
    assert forced.best == 2
    assert forced.values.tolist() == [50.0, 0.0, 1e9, 1.0]
    assert thinking_budget(row, params, StepState([0], [])) is row


def test_without_marks_or_budget_nothing_is_forced() -> None:
    row = Logits.of([1.0, 0.0, 0.0, 0.0])
    assert thinking_budget(row, SamplingParams(thinking_token_budget=0), StepState([1], [])) is row
    assert thinking_budget(row, SamplingParams(thinking_marks=MARKS), StepState([1], [])) is row
