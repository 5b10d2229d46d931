"""Steps put together."""

from __future__ import annotations

from collections.abc import Iterator

from stubserver.engine.pieces import Step, merge_steps


def steps(count: int, finish_reason: str = "length") -> Iterator[Step]:
    for number in range(count):
        last = number == count - 1
        yield Step([number], str(number), [], finish_reason if last else None, sampling_mask=[[number]])


def test_the_first_piece_is_one_token_and_the_last_is_what_is_left() -> None:
    assert [step.token_ids for step in merge_steps(steps(8), 3)] == [[0], [1, 2, 3], [4, 5, 6], [7]]
    assert [step.token_ids for step in merge_steps(steps(8), 5)] == [[0], [1, 2, 3, 4, 5], [6, 7]]
    assert [step.token_ids for step in merge_steps(steps(1), 5)] == [[0]]
    assert [step.token_ids for step in merge_steps(steps(3), 10**30)] == [[0], [1, 2]]


def test_a_piece_has_all_of_its_steps() -> None:
    *_, last = merge_steps(steps(4), 4)
    assert last == Step([1, 2, 3], "123", [], "length", None, [[1], [2], [3]])


def test_what_has_not_been_asked_for_is_not_there() -> None:
    *_, last = merge_steps(iter([Step([number], "", None) for number in range(2)] + [Step([2], "", None, "stop")]), 2)
    assert (last.logprobs, last.sampling_mask, last.finish_reason) == (None, None, "stop")
