"""Which outputs repeat themselves."""

from __future__ import annotations

import pytest

from stubserver.engine.repetition import repeats_itself
from stubserver.sampling.params import Repetition

A, B, C = 1, 2, 3


@pytest.mark.parametrize(
    ("token_ids", "repetition", "repeats"),
    [
        ([A, A], Repetition(1, 0, 2), True),
        ([A], Repetition(1, 0, 2), False),
        ([B, A, A], Repetition(1, 0, 2), True),
        ([A, A, B], Repetition(1, 0, 2), False),  # it has to be at the end
        ([A, B, A, B], Repetition(1, 0, 2), False),
        ([A, B, A, B], Repetition(2, 0, 2), True),
        ([C, A, B, A, B], Repetition(2, 0, 2), True),
        ([A, A], Repetition(2, 2, 2), False),  # a pattern of two has two tokens
        ([A, A, A, A], Repetition(2, 2, 2), True),
        ([A, B, C, A, B, C], Repetition(2, 0, 2), False),
        ([A, B, C, A, B, C], Repetition(5, 0, 2), True),
        ([A, B, C, A, B, C], Repetition(5, 0, 3), False),
        ([A] * 5, Repetition(0, 0, 2), False),  # off
        ([A] * 5, Repetition(1, 0, 0), False),
        ([], Repetition(3, 0, 2), False),
    ],
)
def test_patterns_at_the_end(token_ids: list[int], repetition: Repetition, repeats: bool) -> None:
    assert repeats_itself(token_ids, repetition) is repeats
