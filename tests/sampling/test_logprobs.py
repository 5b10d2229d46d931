"""Which values a step reports: how many, of which tokens, in which order, with which ranks."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import EOS, INF, SPACE_A, SPACE_B, STARS, T6, A, B, log_softmax, only

from stubserver.sampling.logits import Logits
from stubserver.sampling.logprobs import LOGPROBS_MODES, gather_token_ids, gather_top, mode_values

T6_LOGITS = Logits.of(T6)


def test_the_logits_modes_report_logits_and_the_logprobs_modes_logprobs() -> None:
    reported = {mode: mode_values(T6_LOGITS, mode).tolist() for mode in LOGPROBS_MODES}
    assert reported["raw_logits"] == reported["processed_logits"] == T6
    assert reported["raw_logprobs"] == reported["processed_logprobs"] == pytest.approx(log_softmax(T6), abs=1e-6)


def test_a_token_among_the_best_is_not_listed_again() -> None:
    found = gather_top(T6_LOGITS, "raw_logits", STARS, 2)
    assert (found.token_ids, found.logprobs, found.ranks) == ([STARS, SPACE_B], [6.0, 4.0], [1, 2])


def test_a_token_that_is_not_among_the_best_is_one_more() -> None:
    found = gather_top(T6_LOGITS, "raw_logits", B, 2)
    assert (found.token_ids, found.logprobs, found.ranks) == ([B, STARS, SPACE_B], [1.5, 6.0, 4.0], [4, 1, 2])


def test_the_last_of_the_best_comes_first_and_keeps_its_rank() -> None:
    found = gather_top(T6_LOGITS, "raw_logits", SPACE_A, 3)
    assert (found.token_ids, found.ranks) == ([SPACE_A, STARS, SPACE_B], [3, 1, 2])


def test_a_count_of_0_is_the_token_alone() -> None:
    found = gather_top(T6_LOGITS, "raw_logprobs", SPACE_B, 0)
    assert (found.token_ids, found.ranks) == ([SPACE_B], [2])
    assert found.logprobs == pytest.approx([-2.183346], abs=1e-6)


def test_a_count_of_minus_1_is_the_vocabulary() -> None:
    found = gather_top(T6_LOGITS, "raw_logits", SPACE_A, -1)
    assert found.token_ids == [SPACE_A, STARS, SPACE_B, B, A, EOS]
    assert found.logprobs == [3.0, 6.0, 4.0, 1.5, 0.5, -1.0]
    assert found.ranks == [3, 1, 2, 4, 5, 6]


def test_masked_tokens_fill_up_what_is_missing() -> None:
    found = gather_top(only(T6, A, B), "processed_logits", B, 4)
    assert found.token_ids[:2] == [B, A]
    assert set(found.token_ids[2:]) < {SPACE_A, SPACE_B, STARS, EOS}
    assert found.logprobs == [1.5, 0.5, -INF, -INF]
    assert found.ranks == [1, 2, 3, 4]


def test_a_masked_token_has_minus_infinity_and_the_last_rank() -> None:
    """Every token of the vocabulary is at least as large."""
    found = gather_top(only(T6, A, B), "raw_logits", STARS, 1)
    assert (found.token_ids, found.logprobs, found.ranks) == ([STARS, B], [-INF, 1.5], [6, 1])


def test_the_rank_of_a_token_counts_its_ties() -> None:
    """Three of the values are 2 or more, though only one is more."""
    logits = Logits.of([1.0, 2.0, 2.0, 3.0])
    assert gather_top(logits, "raw_logits", 1, 0).ranks == [3]
    assert gather_top(logits, "raw_logits", 2, 1).ranks == [3, 1]


def test_wanted_ids_come_in_their_order_after_the_token() -> None:
    found = gather_token_ids(T6_LOGITS, "raw_logits", STARS, [EOS, A, B])
    assert (found.token_ids, found.logprobs, found.ranks) == ([STARS, EOS, A, B], [6.0, -1.0, 0.5, 1.5], [1, 1, 2, 3])


def test_wanted_ids_come_once_each() -> None:
    found = gather_token_ids(T6_LOGITS, "raw_logits", B, [A, B, A, EOS, B])
    assert (found.token_ids, found.logprobs) == ([B, A, EOS], [1.5, 0.5, -1.0])


def test_the_rank_of_a_wanted_id_is_its_last_place_in_the_list() -> None:
    """So in vLLM 0.32.0, the sampled token's own not excepted."""
    assert gather_token_ids(T6_LOGITS, "raw_logits", STARS, [A, B, STARS]).ranks == [3, 1, 2]
    assert gather_token_ids(T6_LOGITS, "raw_logits", STARS, [A, B, A]).ranks == [1, 3, 2]


def test_wanted_ids_that_are_masked_have_minus_infinity() -> None:
    found = gather_token_ids(only(T6, A, B), "processed_logits", B, [A, STARS])
    assert (found.token_ids, found.logprobs) == ([B, A, STARS], [1.5, 0.5, -INF])


@settings(derandomize=True, deadline=None)
@given(
    row=st.lists(st.integers(-3, 3).map(float), min_size=6, max_size=6),
    kept=st.sets(st.integers(0, 5), min_size=1).map(sorted),
    token_id=st.integers(0, 5),
    count=st.integers(-1, 6),
)
def test_the_token_comes_first_and_the_others_by_rank(
    row: list[float], kept: list[int], token_id: int, count: int
) -> None:
    found = gather_top(only(row, *kept), "raw_logits", token_id, count)
    asked = 6 if count == -1 else count
    others = found.logprobs[1:]
    assert found.token_ids[0] == token_id
    assert len(set(found.token_ids)) == len(found.token_ids)
    assert len(found.token_ids) in (asked, asked + 1)
    assert found.logprobs == [row[each] if each in kept else -INF for each in found.token_ids]
    assert all(better >= worse for better, worse in pairwise(others))
    assert sorted(found.ranks)[:asked] == list(range(1, asked + 1))
