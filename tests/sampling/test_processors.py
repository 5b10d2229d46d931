"""Each operation alone, on rows that can be worked out by hand."""

from math import log

import numpy as np
import pytest
from reference import EOS, INF, SPACE_A, SPACE_B, STARS, T6, A, B, masked_row, only

from stubserver.sampling import processors as ops
from stubserver.sampling.logits import Logits

T6_LOGITS = Logits.of(T6)


def row(logits: Logits) -> list[float]:
    return logits.dense().tolist()


def row_of_probs(*probs: float) -> Logits:
    return Logits.of([log(prob) for prob in probs])


def kept(logits: Logits) -> list[int]:
    return np.flatnonzero(np.isfinite(logits.dense())).tolist()


def test_allowed_token_ids_mask_the_rest() -> None:
    assert row(ops.apply_allowed_token_ids(T6_LOGITS, [B, A, A])) == [0.5, 1.5, -INF, -INF, -INF, -INF]


def test_allowed_token_ids_bring_no_masked_token_back() -> None:
    assert row(ops.apply_allowed_token_ids(only(T6, B, STARS), [A, B])) == [-INF, 1.5, -INF, -INF, -INF, -INF]


def test_logit_bias_is_added() -> None:
    assert row(ops.apply_logit_bias(T6_LOGITS, {A: 5.0, EOS: -2.5})) == [5.5, 1.5, 3.0, 4.0, 6.0, -3.5]


def test_logit_bias_leaves_a_masked_token_masked() -> None:
    assert row(ops.apply_logit_bias(only(T6, B, EOS), {A: 100.0, B: 1.0})) == [-INF, 2.5, -INF, -INF, -INF, -1.0]


def test_min_tokens_masks_what_ends_the_output() -> None:
    assert row(ops.apply_min_tokens(T6_LOGITS, [EOS, STARS], constrained=False)) == [0.5, 1.5, 3.0, 4.0, -INF, -INF]


def test_min_tokens_masks_the_last_token_without_a_grammar() -> None:
    assert kept(ops.apply_min_tokens(only(T6, EOS), [EOS], constrained=False)) == []


def test_min_tokens_leaves_what_a_grammar_leaves_alone() -> None:
    assert kept(ops.apply_min_tokens(only(T6, EOS), [EOS], constrained=True)) == [EOS]
    assert kept(ops.apply_min_tokens(only(T6, A, EOS), [EOS], constrained=True)) == [A]


@pytest.mark.parametrize(
    ("output", "masked"),
    [
        ([], {STARS}),
        ([A], {STARS, B}),
        ([SPACE_A, A], {STARS, B, SPACE_B}),
        ([A, SPACE_A], {STARS}),
    ],
)
def test_a_bad_word_masks_its_last_token_after_its_others(output: list[int], masked: set[int]) -> None:
    words = [[STARS], [A, B], [SPACE_A, A, SPACE_B]]
    processed = ops.apply_bad_words(T6_LOGITS, words, output)
    assert set(range(6)) - set(kept(processed)) == masked


def test_the_prompt_is_no_part_of_a_bad_word() -> None:
    """Only what was generated is looked at, so a word needs as many generated tokens as it has before its last."""
    assert kept(ops.apply_bad_words(T6_LOGITS, [[A, A, B]], [A])) == [A, B, SPACE_A, SPACE_B, STARS, EOS]


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits() -> None:
    """0.5 / 1.25 = 0.4, 6 / 1.25 = 4.8, -1 · 1.25 = -1.25; once, however often a token was seen."""
    processed = ops.apply_repetition_penalty(T6_LOGITS, 1.25, [A, STARS, EOS, STARS])
    assert row(processed) == pytest.approx([0.4, 1.5, 3.0, 4.0, 4.8, -1.25])


def test_repetition_penalty_below_one_favours_seen_tokens() -> None:
    assert row(ops.apply_repetition_penalty(T6_LOGITS, 0.5, [STARS, EOS])) == [0.5, 1.5, 3.0, 4.0, 12.0, -0.5]


def test_repetition_penalty_leaves_a_masked_token_masked() -> None:
    processed = ops.apply_repetition_penalty(only(T6, A, STARS), 2.0, [B, STARS])
    assert row(processed) == [0.5, -INF, -INF, -INF, 3.0, -INF]


def test_frequency_penalty_counts() -> None:
    """Three times id 4: 6 - 3 · 0.5; once id 0: 0.5 - 0.5."""
    processed = ops.apply_frequency_penalty(T6_LOGITS, 0.5, [STARS, A, STARS, STARS])
    assert row(processed) == [0.0, 1.5, 3.0, 4.0, 4.5, -1.0]


def test_presence_penalty_does_not_count() -> None:
    processed = ops.apply_presence_penalty(T6_LOGITS, 0.5, [STARS, A, STARS, STARS])
    assert row(processed) == [0.0, 1.5, 3.0, 4.0, 5.5, -1.0]


def test_penalties_leave_masked_tokens_masked() -> None:
    logits = only(T6, A, STARS)
    assert row(ops.apply_frequency_penalty(logits, -1.0, [B, STARS])) == [0.5, -INF, -INF, -INF, 7.0, -INF]
    assert row(ops.apply_presence_penalty(logits, -1.0, [B, STARS])) == [0.5, -INF, -INF, -INF, 7.0, -INF]


def test_custom_processor_gets_the_whole_row_with_masked_tokens_at_minus_infinity() -> None:
    seen: list[list[float]] = []

    def processor(values: np.ndarray) -> np.ndarray:
        seen.append(values.tolist())
        return values + 1

    assert row(ops.apply_custom_processor(only(T6, A, STARS), processor)) == [1.5, -INF, -INF, -INF, 7.0, -INF]
    assert seen == [masked_row(T6, A, STARS)]


def test_custom_processor_may_bring_a_masked_token_back() -> None:
    assert row(ops.apply_custom_processor(only(T6, A), lambda values: np.arange(6))) == [0, 1, 2, 3, 4, 5]


def test_custom_processor_may_write_into_its_row() -> None:
    def processor(values: np.ndarray) -> np.ndarray:
        values[0] = 9
        return values

    assert row(ops.apply_custom_processor(T6_LOGITS, processor))[0] == 9
    assert T6_LOGITS.values[0] == 0.5


@pytest.mark.parametrize("shape", [(5,), (1, 6), ()])
def test_custom_processor_must_return_a_row_of_the_same_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"must return a row of shape \(6,\), not"):
        ops.apply_custom_processor(T6_LOGITS, lambda values: np.zeros(shape))


def test_temperature_divides() -> None:
    assert row(ops.apply_temperature(T6_LOGITS, 0.5)) == [1.0, 3.0, 6.0, 8.0, 12.0, -2.0]
    assert row(ops.apply_temperature(only(T6, A, EOS), 2.0)) == [0.25, -INF, -INF, -INF, -INF, -0.5]


@pytest.mark.parametrize(("min_p", "expected"), [(0.39, [0, 1, 2]), (0.41, [0, 1]), (0.59, [0, 1]), (0.61, [0])])
def test_min_p_is_a_share_of_the_largest_probability(min_p: float, expected: list[int]) -> None:
    """0.5, 0.3 and 0.2: the shares of the largest are 1, 0.6 and 0.4."""
    assert kept(ops.apply_min_p(row_of_probs(0.5, 0.3, 0.2), min_p)) == expected


def test_min_p_of_one_keeps_the_best_with_its_ties() -> None:
    assert kept(ops.apply_min_p(Logits.of([2.0, 1.0, 2.0]), 1.0)) == [0, 2]


def test_min_p_of_masked_logits_is_a_share_of_the_largest_that_is_left() -> None:
    """Without the 0.5, 0.2 is 2/3 of the largest, 0.3."""
    logits = row_of_probs(0.5, 0.3, 0.2).keep(np.array([1, 2]))
    assert kept(ops.apply_min_p(logits, 0.66)) == [1, 2]
    assert kept(ops.apply_min_p(logits, 0.67)) == [1]


@pytest.mark.parametrize(("top_k", "expected"), [(1, [1, 2]), (2, [1, 2]), (3, [1, 2, 3]), (4, [0, 1, 2, 3])])
def test_top_k_keeps_ties_with_the_last(top_k: int, expected: list[int]) -> None:
    assert kept(ops.apply_top_k(Logits.of([1.0, 3.0, 3.0, 2.0]), top_k)) == expected


def test_top_k_above_the_vocabulary_keeps_everything() -> None:
    assert ops.apply_top_k(T6_LOGITS, 7) is T6_LOGITS


def test_top_k_takes_no_masked_token_in() -> None:
    assert kept(ops.apply_top_k(only(T6, A, B, EOS), 2)) == [A, B]
    assert kept(ops.apply_top_k(only(T6, A), 2)) == [A]
    assert kept(ops.apply_top_k(Logits.of(masked_row(T6, A)), 2)) == [A]


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [(0.99, [0, 1, 2, 3]), (0.91, [0, 1, 2, 3]), (0.89, [0, 1, 2]), (0.71, [0, 1, 2]), (0.69, [0, 1]), (0.39, [0])],
)
def test_top_p_drops_what_together_has_at_most_the_rest(top_p: float, expected: list[int]) -> None:
    """0.4, 0.3, 0.2, 0.1, cumulated from below: 0.1, 0.3, 0.6, 1.0; dropped is what is at most 1 - top_p."""
    assert kept(ops.apply_top_p(row_of_probs(0.4, 0.3, 0.2, 0.1), top_p)) == expected


def test_top_p_drops_a_sum_that_equals_the_rest() -> None:
    """exp(-200) is 0 in float32, and 0 ≤ 1 - 1."""
    assert kept(ops.apply_top_p(Logits.of([0.0, -200.0]), 1.0)) == [0]


def test_top_p_keeps_the_largest_even_where_nothing_is_left_for_it() -> None:
    """1 - 1e-9 is 1 in float32, and the largest has 1."""
    assert kept(ops.apply_top_p(Logits.of([-200.0, 0.0]), 1e-9)) == [1]


def test_top_p_is_over_what_is_left() -> None:
    """0.3 and 0.1 alone are 0.75 and 0.25."""
    logits = row_of_probs(0.4, 0.3, 0.2, 0.1).keep(np.array([1, 3]))
    assert kept(ops.apply_top_p(logits, 0.76)) == [1, 3]
    assert kept(ops.apply_top_p(logits, 0.74)) == [1]


@pytest.mark.parametrize(
    "apply",
    [
        lambda logits: ops.apply_allowed_token_ids(logits, [A, STARS]),
        lambda logits: ops.apply_logit_bias(logits, {STARS: 1.0}),
        lambda logits: ops.apply_min_tokens(logits, [STARS], constrained=False),
        lambda logits: ops.apply_bad_words(logits, [[STARS]], []),
        lambda logits: ops.apply_repetition_penalty(logits, 2.0, [STARS]),
        lambda logits: ops.apply_frequency_penalty(logits, 1.0, [STARS]),
        lambda logits: ops.apply_presence_penalty(logits, 1.0, [STARS]),
        lambda logits: ops.apply_custom_processor(logits, lambda values: values * 2),
        lambda logits: ops.apply_temperature(logits, 2.0),
        lambda logits: ops.apply_min_p(logits, 0.5),
        lambda logits: ops.apply_top_k(logits, 1),
        lambda logits: ops.apply_top_p(logits, 0.5),
    ],
)
@pytest.mark.parametrize("token_ids", [None, [A, SPACE_B, STARS, EOS]])
def test_operations_are_pure(apply, token_ids: list[int] | None) -> None:
    """The input is as before, and the row differs, so that something was done."""
    logits = Logits.of(T6) if token_ids is None else only(T6, *token_ids)
    values, before = logits.values, row(logits)
    values.flags.writeable = False
    assert row(apply(logits)) != before
    assert logits.values is values
    assert row(logits) == before
